"""The details of a run, from its comparison document: times, memory, messages, the verdict and its reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.cli.adaptation_tables import adaptation_tables
from testbed.cli.event_tables import event_tables, link_event_tables
from testbed.cli.fairness_tables import fairness_lines, fairness_tables
from testbed.cli.full_scale_tables import full_scale_tables
from testbed.cli.goodput_tables import goodput_tables
from testbed.cli.plan_tables import proof_line
from testbed.cli.table_layout import Column, Section, fitted, indented
from testbed.grouping import grouped
from testbed.judge.comparison import (
    JobComparison,
    ScheduleComparison,
    fairness_in,
    job_of,
    jobs_of,
    ranked_pairs,
    rows_of,
)
from testbed.search.proof import Proof
from testbed.thresholds import TIE
from testbed.units import show_change, show_size, show_times


class ReportPart(StrEnum):
    """What can be shown of a run beyond its answer."""

    times = "times"
    memory = "memory"
    messages = "messages"
    checks = "checks"


def details(document: Mapping[str, Any], wanted: Collection[ReportPart], width: int) -> Iterator[RenderableType]:
    """All that a run's comparison document says, by the parts `wanted`, in `width` columns of the screen."""
    rows = rows_of(document)
    first_rank = {job.name: job.first_rank for job in jobs_of(document)} or {"": 0}
    by_job = {name: [row for row in rows if job_of(row) == name] for name in first_rank}
    if ReportPart.times in wanted:
        yield from _times_of_run(document, rows, by_job, width)
    if ReportPart.memory in wanted:
        for name, mine in by_job.items():
            yield from memory_tables(mine, width, first_rank[name])
            yield from (Text(line, style="yellow") for line in over_limit(mine, first_rank[name]))
    if ReportPart.messages in wanted:
        yield from messages_tables(rows, width)
    if ReportPart.checks in wanted:
        yield from _verdict_of_run(rows, width)


def _times_of_run(
    document: Mapping[str, Any],
    rows: Sequence[ScheduleComparison],
    by_job: Mapping[str, Sequence[ScheduleComparison]],
    width: int,
) -> Iterator[RenderableType]:
    """Everything about iteration times, and what they have of the network."""
    where = f"{document['name']} ({document['shaper']}, {document['transport']}, {document['clock']} clock)"
    yield from jobs_tables(where, rows, width)
    for name, mine in by_job.items():
        yield from comparison_tables(_title_of(name, mine) if name else where, mine, width)
        yield from map(Text, ranges(mine))
        yield from full_scale_tables([(row.label, row.full_scale) for row in mine if row.full_scale], width)
        yield from (Text(proof_line(row.label, Proof(**row.solver))) for row in mine if row.solver is not None)
    yield from event_tables(document.get("events", ()), width)
    yield from link_event_tables(document.get("link_events", ()), width)
    yield from adaptation_tables(document.get("adaptation"))
    yield from goodput_tables(document.get("goodput", ()), width)
    fairness = fairness_in(document)
    yield from fairness_tables(fairness, width)
    yield from map(Text, fairness_lines(fairness))
    yield Text(ranking_line(rows, document.get("ranking_tie", TIE)))


def _verdict_of_run(rows: Sequence[ScheduleComparison], width: int) -> Iterator[RenderableType]:
    """What was checked, why schedules cannot be trusted, and what else was found."""
    table = verdict(rows, width)
    if table is not None:
        yield table
    yield from (Text(line, style="yellow") for line in uncovered(rows))
    for reason, names in _said(rows, "reasons").items():  # not to trust a schedule
        yield Text(f"{names} untrusted: {reason}", style="red")
    for note, names in _said(rows, "notes").items():
        yield Text(f"{names}, noted, which leaves the time right: {note}", style="yellow")


def ranking_line(rows: Sequence[ScheduleComparison], tie: float) -> str:
    """How many pairs of schedules measuring ranks as predicted; those that the prediction does not rank are ties.

    And of which schedules the model has not all that was measured, so that an order was predicted of something else.
    """
    beyond = [name_of(row) for row in rows if not row.covered]
    counts = [str(row.packets_lost) for row in rows if row.packets_lost is not None]  # of what was to lose some
    lost = f" (packets lost: {', '.join(counts)})" if counts else ""
    names = f"; not covered by the model: {all_of(beyond, rows)}{lost}" if beyond else ""
    return f"measured ranking: {_ranking(rows, tie)}{names}"


def _ranking(rows: Sequence[ScheduleComparison], tie: float) -> str:
    found = ranked_pairs(rows, tie)
    decided, close = found.as_predicted + found.otherwise, f" (within {tie:.0%})" if tie > TIE else ""
    if decided + found.ties == 0:
        return "nothing to rank"
    ties = f"{found.ties} {'is a tie' if found.ties == 1 else 'are ties'} by the prediction{close}"
    if decided == 0:
        return f"nothing decided, all pairs ({found.ties}) are ties by the prediction{close}"
    pairs = "the only pair" if decided + found.ties == 1 else f"{found.as_predicted} of {decided + found.ties} pairs"
    if found.as_predicted == decided > 1 and not found.ties:
        pairs = f"all {decided} pairs"
    if found.otherwise:
        pairs = f"{found.as_predicted} of {decided + found.ties} pairs, NOT in {found.otherwise}"
    return f"as predicted in {pairs}{f', {ties}' if found.ties else ''}"


def _title_of(job: str, rows: Sequence[ScheduleComparison]) -> str:
    alone = any(isinstance(row, JobComparison) and row.alone_of is not None for row in rows)
    return f"{job}, beside the others and alone" if alone else f"{job}, beside the others"


def _said(rows: Sequence[ScheduleComparison], what: str) -> dict[str, str]:
    """Every text in that field of rows once, with the schedules it is given for."""
    found = grouped((text, name_of(row)) for row in rows for text in getattr(row, what))
    return {text: all_of(names, rows) for text, names in found.items()}


def name_of(row: ScheduleComparison) -> str:
    """What a row is called among all: its label, of several jobs with the job's name."""
    return f"{row.label}: {row.job}" if isinstance(row, JobComparison) else row.label


def all_of(names: Sequence[str], rows: Sequence[ScheduleComparison]) -> str:
    """The names of some of the rows in words."""
    return "all schedules" if len(names) == len(rows) > 1 else ", ".join(names)


# --- jobs beside each other ----------------------------------------------------------------------


def jobs_tables(title: str, rows: Sequence[ScheduleComparison], width: int) -> list[Table]:
    """What jobs cost each other in every case: predicted alone and together, and measured.

    Measured alone where they were trained so, in a table of its own.
    """
    known = [row for row in rows if isinstance(row, JobComparison) and row.alone_of is None]
    if not known:
        return []
    times = [(row.predicted_alone_s, row.predicted_s, row.measured_alone_s, row.measured_s) for row in known]
    shown = show_times([time for row in times for time in row])
    columns = [
        Column("alone", shown[0::4]),
        Column("together", shown[1::4]),
        Column("slower by", [show_change(row.slowdown_predicted - 1) for row in known]),
    ]
    if any(row.slowdown_measured is not None for row in known):
        found = ["-" if row.slowdown_measured is None else show_change(row.slowdown_measured - 1) for row in known]
        measured = [Column("alone", shown[2::4]), Column("together", shown[3::4]), Column("slower by", found)]
        both = [f"{row.label}: {row.job}" for row in known]
        sections = (Section(f"{title}: predicted", columns), Section("measured, alone and together", measured))
        key = Column("case: job", both, left=True)
        return [table for section in sections for table in fitted(key, [section], width)]
    columns.append(Column("measured", shown[3::4]))
    before = ["", *(row.label for row in known)]
    labels = ["" if row.label == label else row.label for row, label in zip(known, before, strict=False)]
    names = Column("job", [row.job for row in known], left=True)
    tables = fitted(Column("case", labels, left=True), [Section(title, [names, *columns])], width)
    if len(tables) == 1:
        return tables
    both = [f"{row.label}: {row.job}" for row in known]  # so that every row says whose it is
    return fitted(Column("case: job", both, left=True), [Section(title, columns)], width)


# --- measured against predicted ------------------------------------------------------------------


def comparison_tables(title: str, rows: Sequence[ScheduleComparison], width: int) -> list[Table]:
    """Measured against predicted, a row per schedule, in as many tables as `width` columns of the screen make of it.

    On a real clock another: expected with what this machine adds, as measured before the run.
    """
    key = Column("schedule", [row.label for row in rows], left=True)
    times, ratios = _times(rows), _ratios(rows)
    trusted = Column("trusted", [show_trusted(row) for row in rows])
    tables = fitted(key, [Section(title, [*times, trusted]), Section("measured / predicted", ratios)], width)
    if any(row.predicted_on_this_host_s is not None for row in rows):
        section = Section("with what this machine adds (others: not disturbed)", _on_this_host(rows))
        tables[1:1] = fitted(key, [section], width)
    return tables


def ranges(rows: Sequence[ScheduleComparison]) -> list[str]:
    """A line for every prediction that hangs on who comes first, and whether what was measured lies in it."""
    lines = []
    for row in rows:
        low, high = row.predicted_range_s
        if low < high:
            shown = show_times([low, high, row.measured_s])
            inside = "in it" if low * (1 - _NEAR) <= row.measured_s <= high * (1 + _NEAR) else "outside"
            who = "by who comes first of messages that meet"
            lines.append(f"{row.label}: predicted {shown[0]} to {shown[1]}, {who}; measured {shown[2]}, {inside}")
    return lines


_NEAR = 2e-4
"""Share of a time by which it may be outside a range, and is in it nevertheless: what predictions without a tie are
off by."""


def _times(rows: Sequence[ScheduleComparison]) -> list[Column]:
    measured, predicted = _halves([row.measured_s for row in rows], [row.predicted_s for row in rows])
    return [
        Column("measured", measured),
        Column("+- IQR", show_times([row.measured_iqr_s for row in rows])),
        Column("predicted", predicted),
        Column("error", [show_change(row.error, 2) for row in rows]),
        *p95_columns(rows),
    ]


def p95_columns(rows: Sequence[ScheduleComparison]) -> list[Column]:
    """The 95th percentiles of iterations, where any were predicted to differ."""
    if not any(row.varies for row in rows):
        return []
    measured, predicted = _halves([row.measured_p95_s for row in rows], [row.predicted_p95_s for row in rows])
    return [Column("p95\nmeasured", measured), Column("p95\npredicted", predicted)]


def _ratios(rows: Sequence[ScheduleComparison]) -> list[Column]:
    def pair(measured: str, predicted: str) -> str:
        return f"{measured} / {predicted}"

    speedups = [
        "-"
        if row.speedup_measured is None or row.speedup_predicted is None
        else pair(f"{row.speedup_measured:.2f}x", f"{row.speedup_predicted:.2f}x")
        for row in rows
    ]
    bubbles = [pair(f"{row.bubble_measured:z.1%}", f"{row.bubble_predicted:z.1%}") for row in rows]
    peaks = [pair(f"{row.peak_in_flight_measured:g}", f"{row.peak_in_flight_predicted:g}") for row in rows]
    return [Column("bubble m/p", bubbles), Column("in flight m/p", peaks), Column("speed-up m/p", speedups)]


def show_trusted(row: ScheduleComparison) -> Text:
    """Of a measurement that can be trusted but is of something else than the prediction: only that it was measured. In
    part: nothing that was checked failed, and not all could be."""
    if row.partly_checked:
        return Text("in part", style="yellow")
    if not row.trusted:
        return Text("NO", style="bold red")
    return Text("yes", style="green") if row.covered else Text("measured", style="yellow")


def uncovered(rows: Sequence[ScheduleComparison]) -> list[str]:
    """A line for everything that was measured and is not in the model, with the schedules that it is true of, and how
    many packets were lost where that is no fault."""
    rest = "only the measurement can be trusted, not the comparison with the prediction"
    lost = [f"{name_of(row)}: {row.packets_lost} packets lost" for row in rows if row.packets_lost is not None]
    return [f"{names}: {rest}: {line}" for line, names in _said(rows, "left_out").items()] + lost


def _on_this_host(rows: Sequence[ScheduleComparison]) -> list[Column]:
    """The prediction with what this machine adds; iterations that it disturbed, and the median of the others."""
    expected, others = _halves(
        [row.predicted_on_this_host_s for row in rows], [row.measured_undisturbed_s for row in rows]
    )
    spread, off = [], []
    for row in rows:
        middle, low, high = row.predicted_on_this_host_s, row.on_this_host_low_s, row.on_this_host_high_s
        known = middle is not None and low is not None and high is not None
        spread.append(f"{show_change(low / middle - 1)} {show_change(high / middle - 1)}" if known else "-")  # type: ignore[operator]
        off.append("-" if row.error_on_this_host is None else show_change(row.error_on_this_host, 2))
    disturbed = ["-" if row.disturbed_iterations is None else str(row.disturbed_iterations) for row in rows]
    return [
        Column("expected", expected),
        Column("19 of 20 in", spread),
        Column("off by", off),
        Column("disturbed", disturbed),
        Column("others", others),
    ]


def _halves(one: Sequence[float | None], other: Sequence[float | None]) -> tuple[list[str], list[str]]:
    """Two columns of times in one unit."""
    shown = show_times([*one, *other])
    return shown[: len(one)], shown[len(one) :]


# --- memory --------------------------------------------------------------------------------------


def memory_tables(rows: Sequence[ScheduleComparison], width: int, first_rank: int = 0) -> list[Table]:
    """Bytes of the rank that holds most in every schedule, measured / predicted, beside what its limit allows.

    Ranks are numbered from `first_rank` on.
    """
    known = [row for row in rows if row.memory and row.memory["measured"]]
    if not known:
        return []
    parts = ("activations", "parameters", "gradients", "optimizer", "buffers")
    cells: dict[str, list[str]] = {part: [] for part in parts}
    ranks, limits = [], []
    for row in known:
        memory = row.memory or {}
        held = memory["measured"]
        rank = max(range(len(held)), key=lambda index: sum(held[index].values()))
        ranks.append(str(first_rank + rank))
        for part in parts:
            expected = memory["predicted"]
            share = "-" if expected is None else f"{show_size(expected[rank][part])}"
            cells[part].append(f"{show_size(held[rank][part])} / {share}")
        limits.append("-" if memory["activations_limit"] is None else show_size(memory["activations_limit"][rank]))
    columns = [Column("rank", ranks), Column("activations", cells["activations"]), Column("limit", limits)]
    columns += [Column(part, cells[part]) for part in parts[1:]]
    key = Column("schedule", [row.label for row in known], left=True)
    return fitted(key, [Section("memory of the fullest rank, measured / predicted", columns)], width)


def over_limit(rows: Sequence[ScheduleComparison], first_rank: int = 0) -> list[str]:
    """A line for every schedule that holds more bytes of activations than its limit of microbatches stands for."""
    lines = []
    for row in rows:
        shares = (row.memory or {}).get("over_limit") or [0.0]
        rank = max(range(len(shares)), key=shares.__getitem__)
        if shares[rank] > 0:
            limit = show_size((row.memory or {})["activations_limit"][rank])
            lines.append(
                f"{row.label}: rank {first_rank + rank} holds {shares[rank]:.1%} more than its limit, {limit} of "
                "activations: it counts microbatches as they are after F, and more is kept between I and W"
            )
    return lines


# --- messages ------------------------------------------------------------------------------------


def messages_tables(rows: Sequence[ScheduleComparison], width: int) -> list[Table]:
    """How far messages came from their predictions, a row per pair of ranks; none where no arrival is known."""
    flows: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        for flow in row.messages:
            flows.setdefault((flow["source_rank"], flow["target_rank"]), []).append(flow)
    known = {pair: [part for part in parts if part["arrival_median_s"] is not None] for pair, parts in flows.items()}
    known = {pair: parts for pair, parts in known.items() if parts}
    if not known:
        return []
    counts = [
        "/".join(str(sum(part[name] for part in flows[pair])) for name in ("awaited", "messages")) for pair in known
    ]
    cells = [_flow_cells(parts) for parts in known.values()]
    headings = ("arrival:\nmedian", "\nworst", "on the way:\nmedian", "\np90", "\nworst")
    columns = [
        Column(heading, of_flows, unit="ms")
        for heading, of_flows in zip(headings, zip(*cells, strict=True), strict=True)
    ]
    key = Column("\nflow", [f"{source} -> {target}" for source, target in known], left=True)
    title = "messages, measured - predicted, in ms, over all schedules"
    return fitted(key, [Section(title, [Column("\nawaited", counts), *columns])], width)


def _flow_cells(known: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the schedules' medians and percentiles the middle one, of their worst the worst."""

    def typical(name: str) -> str:
        return show_milliseconds(sorted(part[name] for part in known)[len(known) // 2])

    def worst(name: str) -> str:
        return show_milliseconds(max((part[name] for part in known), key=abs))

    arrivals = typical("arrival_median_s"), worst("arrival_worst_s")
    return [*arrivals, typical("extra_median_s"), typical("extra_p90_s"), worst("extra_worst_s")]


def show_milliseconds(seconds: float) -> str:
    """A difference in ms, with its sign, to a microsecond."""
    return f"{seconds * 1e3:+z.3f}"


# --- the verdict ---------------------------------------------------------------------------------


def verdict(rows: Sequence[ScheduleComparison], width: int) -> RenderableType | None:
    """What the verdict rests on: every question with the worst answer of any schedule, and the reason of its limit.

    A table where `width` columns hold it, else two lines for each question.
    """
    table = Table(title="verdict", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("checked", "found", "limit", "why this limit"):
        table.add_column(column, justify="right" if column in ("found", "limit") else "left", no_wrap=True)
    lines: list[RenderableType] = [
        Text("verdict: what was checked, found, allowed, and why this limit", style="italic")
    ]
    for question in dict.fromkeys(check["question"] for row in rows for check in row.checks):
        answers = [check for row in rows for check in row.checks if check["question"] == question]
        failed = [check for check in answers if not check["ok"] and not check.get("not_taken")]
        shown = failed[0] if failed else max(answers, key=lambda check: number_in(check["found"]))
        found, limit, why = shown["found"], shown["limit"], shown["why"]
        why = shown.get("not_taken") or why
        style = "red" if failed else ""
        table.add_row(question, found, limit, Text(why, style="dim"), style=style)
        lines += [
            Text(f"{question:32} {found:>9}  limit {limit}", style=style),
            indented(Text(why, style="dim")),
        ]
    if len(lines) == 1:
        return None
    return table if Console(width=10_000).measure(table).maximum <= width else Group(*lines)


def number_in(found: str) -> float:
    """What an answer counts, for the worst of several; words count nothing."""
    try:
        return abs(float(found.rstrip("% ms")))
    except ValueError:
        return 0.0
