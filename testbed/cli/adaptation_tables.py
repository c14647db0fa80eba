"""What `run` and `report` print of a job that adapted: what it saw, believed and decided, and what that brought."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean, median
from typing import Any

from rich.table import Table
from rich.text import Text

from testbed.units import show_change, show_rate, show_time, show_times


def adaptation_tables(adaptation: Mapping[str, Any] | None) -> Iterator[Table | Text]:
    """A row for each thing that there is to say of an iteration; then all of them together."""
    if adaptation is None:
        return
    table = Table(title=f"what {adaptation['controller']} saw and decided", title_justify="left")
    table.add_column("iteration", justify="right")
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("what", overflow="fold")
    for row in adaptation["iterations"]:
        took = show_time(row["measured_s"])
        for number, (word, what) in enumerate(_said(row)):
            table.add_row(*(("", "") if number else (str(row["iteration"]), took)), word, what)
    if table.row_count:
        yield table
    if adaptation["iterations"]:
        yield Text(what_it_brought(adaptation))
        yield from map(Text, what_a_swap_took(adaptation))


def what_it_brought(adaptation: Mapping[str, Any]) -> str:
    """All iterations as measured, beside those of a job that never adapts and of an oracle, as predicted.

    Runs of an earlier testbed have no oracle.
    """
    rows, swap_s = adaptation["iterations"], adaptation.get("swap_s", 0.0)
    measured_s, never_s = (sum(row[name] for row in rows) for name in ("measured_s", "never_predicted_s"))
    oracle_s = sum(row.get("oracle_predicted_s", row["never_predicted_s"]) for row in rows)
    shown = show_times([measured_s, never_s, oracle_s])
    swaps = sum(row["swapped_to"] is not None for row in rows)
    change = show_change(measured_s / never_s - 1)
    line = f"{len(rows)} iterations with {_swaps(swaps)}: {shown[0]}; never adapting (predicted): {shown[1]} ({change})"
    if "oracle" not in rows[0]:
        return line
    known = oracle_swaps(adaptation)
    most_s, gain_s = never_s - oracle_s - known * swap_s, never_s - measured_s - swaps * swap_s
    share = f"; {gain_s / most_s:.0%} of its gain, swaps at {show_time(swap_s)} paid for" if most_s > 0 else ""
    return f"{line}; oracle (predicted): {shown[2]} with {_swaps(known)}{share}"


def what_a_swap_took(adaptation: Mapping[str, Any]) -> Iterator[str]:
    """By how much longer the job is idle behind an iteration where it swaps, in the mean; nothing where it never does.

    It is idle behind every iteration: there it sends probes and asks its controller.
    """
    idle_s: dict[bool, list[float]] = {True: [], False: []}
    for row in adaptation["iterations"]:
        if row.get("idle_s") is not None:
            idle_s[row["swapped_to"] is not None].append(row["idle_s"])
    if all(idle_s.values()):
        swapping_s, usual_s = mean(idle_s[True]), median(idle_s[False])
        took, told = show_time(swapping_s - usual_s), show_time(adaptation["swap_s"])
        yield f"a swap took {took} (taken to cost {told}): idle for {show_time(swapping_s)}, else {show_time(usual_s)}"


def oracle_swaps(adaptation: Mapping[str, Any]) -> int:
    """How often the oracle goes on with another family's schedule or with one made anew."""
    return sum(bool(row["oracle_swaps"]) for row in adaptation["iterations"])


def _swaps(count: int) -> str:
    return "1 swap" if count == 1 else f"{count} swaps"


def _said(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if row["alarms"]:
        yield "seen", f"{', '.join(row['alarms'])}: not as before"
    for name in row["changes"]:
        if name in row["delay_s"]:
            rate_bps = row["rate_bps"][name]
            rate = "any rate" if rate_bps is None else show_rate(rate_bps)
            yield "believed", f"{name}: {show_time(row['delay_s'][name])}, {rate}"
        else:
            yield "believed", f"{name}: other slots"
    if row["swapped_to"] is not None:
        stays, expected = show_times([row["stays_s"], row["expected_s"]])
        yield "decided", f"{row['swapped_to']} for {row['schedule']}: {expected} expected, not {stays}"
