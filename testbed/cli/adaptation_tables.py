"""What `run` and `report` print of a job that adapted: what it saw, believed and decided, and what that brought."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from testbed.grouping import grouped
from testbed.units import show_change, show_rate, show_size, show_time, show_times


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
    rows = adaptation["iterations"]
    measured_s, never_s = (sum(row[name] for row in rows) for name in ("measured_s", "never_predicted_s"))
    oracle_s = sum(row.get("oracle_predicted_s", row["never_predicted_s"]) for row in rows)
    shown = show_times([measured_s, never_s, oracle_s])
    swaps = sum(row["swapped_to"] is not None for row in rows)
    change = show_change(measured_s / never_s - 1)
    line = f"{len(rows)} iterations with {_swaps(swaps)}: {shown[0]}; never adapting (predicted): {shown[1]} ({change})"
    if "oracle" not in rows[0]:
        return line
    share = share_of_oracle(adaptation)
    gained = "" if share is None else f"; {share:z.0%} of its gain, swaps paid for"
    return f"{line}; oracle (predicted): {shown[2]} with {_swaps(oracle_swaps(adaptation))}{gained}"


def share_of_oracle(adaptation: Mapping[str, Any]) -> float | None:
    """What adapting brought of what an oracle would gain, swaps paid for by both: by the controller as they took, by
    the oracle as they are believed to; and what the controller waited for looks. None where it gains nothing.
    """
    rows, assumed_s = adaptation["iterations"], adaptation.get("swap_s", 0.0)
    never_s, measured_s, oracle_s = (
        sum(row[name] for row in rows) for name in ("never_predicted_s", "measured_s", "oracle_predicted_s")
    )
    paid_s = sum(_took_s(row, assumed_s) for row in rows if row["swapped_to"] is not None)
    paid_s += sum(row.get("look_s", 0.0) for row in rows)
    oracle_paid_s = sum(row.get("oracle_swap_s", assumed_s) for row in rows if row["oracle_swaps"])
    most_s = never_s - oracle_s - oracle_paid_s
    return (never_s - measured_s - paid_s) / most_s if most_s > 0 else None


def _took_s(row: Mapping[str, Any], assumed_s: float) -> float:
    """What a swap took; runs of an earlier testbed did not tell."""
    return assumed_s if row.get("swap_took_s") is None else float(row["swap_took_s"])


def what_a_swap_took(adaptation: Mapping[str, Any]) -> Iterator[str]:
    """By what swaps change, what they took and what they were believed to; and what else keeps the job idle."""
    rows = adaptation["iterations"]
    by_kind = grouped((row["swap"], row) for row in rows if row.get("swap_took_s") is not None)
    for kind, swaps in by_kind.items():
        took_s = [row["swap_took_s"] for row in swaps]
        shown = " to ".join(dict.fromkeys(show_time(each) for each in (min(took_s), max(took_s))))
        first, last = (show_time(row["swap_believed_s"]) for row in (swaps[0], swaps[-1]))
        believed = f"believed to cost {first}" + (f", before the last one {last}" if len(swaps) > 1 else "")
        yield f"{_swaps(len(swaps))} of {kind} took {shown} ({believed})"
    if looks := [row for row in rows if row.get("looked_at")]:
        size, waited_s = (sum(row[name] for row in looks) for name in ("look_bytes", "look_s"))
        count = "1 look" if len(looks) == 1 else f"{len(looks)} looks"
        yield f"{count} at routes that were not used: {show_size(size)} each way, waited for {show_time(waited_s)}"
    idle_s = [row["idle_s"] for row in rows if row.get("idle_s") is not None]
    probing_s = [row["probing_s"] for row in rows if row.get("probing_s") is not None]
    if idle_s and probing_s:
        yield f"idle behind an iteration: {show_time(median(idle_s))}, {show_time(median(probing_s))} of it for probes"


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
        weighed = show_expected(row["expected_s"], row["stays_s"])
        yield "decided", f"{row['swapped_to']} for {row['schedule']}: {weighed}"


def show_expected(expected_s: float, stays_s: float) -> str:
    """The iterations that a swap brings, instead of those without it; longer ones are for what is foreseen."""
    stays, expected = show_times([stays_s, expected_s])
    return f"{expected} expected, not {stays}" + (", for what is foreseen" if expected_s > stays_s else "")
