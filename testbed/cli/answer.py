"""What `run` ends with and `report` shows of a run, from its files: one table, what failed, and the answer last."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.cli.adaptation_tables import what_it_brought
from testbed.cli.goodput_tables import goodput_lines
from testbed.cli.options import show
from testbed.cli.run_tables import all_of, name_of, number_in, p95_columns, show_trusted, uncovered
from testbed.cli.table_layout import Column, Section, fitted, indented
from testbed.grouping import grouped
from testbed.judge.comparison import (
    BASELINE,
    JobComparison,
    ScheduleComparison,
    costs_of_others,
    jobs_at_work,
    ranked_pairs,
    rows_of,
)
from testbed.results.load import Run
from testbed.thresholds import TIE
from testbed.units import show_change, show_span, show_time, show_times

_MOST_JOBS = 2
"""Of more jobs the answer names the one that the others slow down most, not the fastest schedule of each."""


_MOST_REASONS = 2
"""Of more failed checks only the lines are shown: their reasons would push the answer off a screen of 24 lines."""

_MOST_EVENTS = 2


def print_answer(console: Console, run: Run, directory: Path, *, pages: int) -> None:
    """The answer to what was asked of a run, the last line of all; above it what it rests on.

    `directory` is where the results are, or will be, and `pages` how many pages of pictures are in it.
    """
    if run.schedules:
        rows, place = rows_of(run.comparison), shlex.quote(str(directory))
        show(console, *answer_tables(run.comparison, rows, console.width), *_checks(rows, place, console.width))
        further = f" to timeline-{pages}.svg" if pages > 1 else ""
        also = " and adaptation.svg" if run.comparison.get("adaptation") else ""
        look = f" (look at timeline.svg{further}{also})" if pages else ""
        for text in (f"results in {directory}/{look}", f"details: testbed report {place} --details"):
            console.print(text, highlight=False, markup=False, soft_wrap=True)  # in one piece, to be copied
    if not run.complete:
        console.print(Text(what_is_missing(run), style="bold red"))
    for line in goodput_lines(run.comparison.get("goodput", ())):
        console.print(Text(line))
    if said := sentence(run):
        console.print(Text(said, style="bold"))


def sentence(run: Run) -> str:
    """The answer to what was asked of a run; "" where no schedule is finished.

    Of a job that adapted it is what that brought: its schedules had other links, so none is the fastest.
    """
    if not run.schedules:
        return ""
    document, rows = run.comparison, rows_of(run.comparison)
    if (adaptation := document.get("adaptation")) and adaptation["iterations"]:
        said = f"{what_it_brought(adaptation)}; {_trust(rows)}"
    else:
        said = answer(rows, document.get("ranking_tie", TIE), document.get("events", ()))
    return said if run.complete else f"{said}; incomplete"


def what_is_missing(run: Run) -> str:
    """Of an incomplete run, in a sentence."""
    finished, asked = run.schedules, run.asked
    missing = [name for name in asked if name not in finished]
    if not missing:
        return "this run is incomplete: it ended before it could say which schedules it was to measure"
    ended = run.comparison.get("ended", {})
    named = [f"{name} ({ended[name]})" if name in ended else name for name in missing]
    return f"this run is incomplete: {len(finished)} of {len(asked)} schedules finished, not {', '.join(named)}"


# --- the table -----------------------------------------------------------------------------------


def answer_tables(document: Mapping[str, Any], rows: Sequence[ScheduleComparison], width: int) -> list[Table]:
    """Measured, predicted and trusted, a row per schedule, or per case and job; the fastest ones in bold.

    One table where `width` columns of the screen hold it.
    """
    adapted = bool(document.get("adaptation"))  # its schedules had other links: they are not held against each other
    fastest = set() if adapted else {name_of(row) for row in _fastest_rows(rows)}
    names = [Text(name_of(row), style="bold" if name_of(row) in fastest else "") for row in rows]
    times = show_times(
        [seconds for row in rows for seconds in (row.measured_s, *row.predicted_range_s)],
    )
    predicted = [show_span(low, high) for low, high in zip(times[1::3], times[2::3], strict=True)]
    columns = [
        Column("measured", times[0::3]),
        Column("predicted", predicted),
        Column("error", [show_change(row.error, 2) for row in rows]),
        *p95_columns(rows),
        *([] if adapted else _gain(rows)),
        Column("trusted", [show_trusted(row) for row in rows]),
    ]
    where = f"{document['shaper']}, {document['transport']}, {document['clock']} clock"
    key = Column("case: job" if _several(rows) else "schedule", names, left=True)
    return fitted(key, [Section(f"{document['name']} ({where})", columns)], width)


def _several(rows: Sequence[ScheduleComparison]) -> bool:
    return any(isinstance(row, JobComparison) for row in rows)


def _gain(rows: Sequence[ScheduleComparison]) -> list[Column]:
    """Of one job how many times faster a schedule is than 1F1B, where that was measured as well.

    Of several what the others cost each of them.
    """
    if not _several(rows):
        speedups = [row.speedup_measured for row in rows]
        if not any(speedups):
            return []
        return [Column(f"x {BASELINE}", ["-" if speedup is None else f"{speedup:.2f}" for speedup in speedups])]
    whose, costs = costs_of_others(rows)
    return [Column(f"others cost\n({whose})", ["-" if cost is None else show_change(cost) for cost in costs])]


# --- what was checked ----------------------------------------------------------------------------


def _checks(rows: Sequence[ScheduleComparison], place: str, width: int) -> Iterator[RenderableType]:
    """How many checks were passed; every one that failed, of few with the reason; what the model leaves out.

    `place` is the directory for whoever copies a command.
    """
    checks = [(row, check) for row in rows for check in row.checks]
    absent = [check for _, check in checks if check.get("not_taken")]
    failed = [(row, check) for row, check in checks if not check["ok"] and not check.get("not_taken")]
    noted = sum(len(row.notes) for row in rows)
    questions = dict.fromkeys(check["question"] for _, check in failed)
    with_reasons = len(questions) <= _MOST_REASONS
    if checks:
        taken = len(checks) - len(absent)
        said = f"checks: {taken - len(failed)} of {taken} passed"
        said += f", {len(absent)} could not be taken" if absent else ""
        said += f", {noted} noted that leave the times right" if noted else ""
        yield Text(said if with_reasons else f"{said}; why: testbed report {place} --checks")
    for question in questions:
        yield from _failed(
            [answer for answer in failed if answer[1]["question"] == question], rows, width, with_reasons
        )
    shown = {reason for _, check in failed for reason in check.get("reasons", ())}
    for row in rows:  # of earlier versions, whose checks do not say why
        for reason in row.reasons:
            if reason not in shown:
                yield Text(f"{name_of(row)} untrusted: {reason}", style="red")
    for line in uncovered(rows):
        yield Text(line, style="yellow")


def _failed(
    failed: Sequence[tuple[ScheduleComparison, Mapping[str, Any]]],
    rows: Sequence[ScheduleComparison],
    width: int,
    with_reason: bool,
) -> Iterator[RenderableType]:
    """One question's answers that failed: the worst of them, and of which schedules, in one line where that fits."""
    worst = max((check for _, check in failed), key=lambda check: number_in(check["found"]))
    found = f"FAILED {worst['question']}: {worst['found']}, limit {worst['limit']}"
    named = f"{found} ({all_of([name_of(row) for row, _ in failed], rows)})"
    counted = f"{found} ({len(failed)} of {len(rows)})"
    yield Text(named if len(named) <= width else counted, style="bold red")
    if with_reason and (reasons := worst.get("reasons")):
        more = f" (and {len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
        yield indented(Text(f"{reasons[0]}{more}", style="red"), by=2)


# --- the sentence --------------------------------------------------------------------------------


def answer(rows: Sequence[ScheduleComparison], tie: float, events: Sequence[Mapping[str, Any]] = ()) -> str:
    """In one sentence: what is fastest and by how much, whether in the predicted order, and whether to trust it.

    Schedules that are predicted within the share `tie` of each other are not ranked. Of `events` between iterations
    (those of comparison.json) it is said what they cost.
    """
    fastest = _of_jobs(rows) if _several(rows) else [_of_schedules(rows)]
    parts = [*fastest, _of_p95(rows), *_of_events(events), _order(rows, tie), _trust(rows)]
    return "; ".join(filter(None, parts))


def _of_schedules(rows: Sequence[ScheduleComparison], job: str = "") -> str:
    """Of the rows of one job: the fastest of those that can be trusted, or of all."""
    first, *equal = _fastest_of(rows)
    whose = f"of {job} " if job else ""
    at_full_scale = first.full_scale and first.full_scale.get("measured_s")
    time = show_time(first.measured_s) + (f" ({show_time(at_full_scale)} at full scale)" if at_full_scale else "")
    if len(rows) == 1:
        return f"{whose}{first.label}".strip() + f": {time}, predicted {_predicted(first)}"
    among = [row for row in rows if row.trusted]
    which = "fastest" if len(among) in (0, len(rows)) else f"fastest of the {len(among)} trusted"
    names = ", ".join(row.label for row in (first, *equal))
    said = f"{which} {whose}".strip() + f": {names}, {time}"
    if first.speedup_measured is not None and first.schedule != BASELINE:
        said += f", {first.speedup_measured:.2f} x {BASELINE}"
    return said


def _of_p95(rows: Sequence[ScheduleComparison]) -> str:
    """Which schedule of one job is the fastest by the 95th percentile, where that is another one than by the median."""
    known = [(row.measured_p95_s, row) for row in rows if row.trusted and row.measured_p95_s is not None]
    if _several(rows) or len(known) < 2 or not any(row.varies for _, row in known):
        return ""
    least_s, least = min(known, key=lambda pair: pair[0])
    return "" if least in _fastest_of(rows) else f"by 95th percentile: {least.label}, {show_time(least_s)}"


def _predicted(row: ScheduleComparison) -> str:
    """One time and how far off it is, or the range that it is."""
    low_s, high_s = row.predicted_range_s
    if low_s == high_s:
        return f"{show_time(row.predicted_s)} ({show_change(row.error, 2)})"
    low, high = show_times([low_s, high_s])
    return f"{high}, whoever comes first" if low == high else f"{show_span(low, high)} by who comes first"


def _fastest_of(rows: Sequence[ScheduleComparison]) -> list[ScheduleComparison]:
    """Those with the least time of all that can be trusted (or of all, where none can); one, unless times are equal."""
    among = [row for row in rows if row.trusted] or list(rows)
    least = min(row.measured_s for row in among)
    return [row for row in among if row.measured_s <= least * (1 + TIE)]


def _rows_by_job(rows: Sequence[ScheduleComparison]) -> dict[str, list[JobComparison]]:
    """By job, its rows of the cases in which most jobs are at work: others are not to be held against them."""
    known = [row for row in rows if isinstance(row, JobComparison) and row.alone_of is None]
    at_work = jobs_at_work(known)
    most = max((len(names) for names in at_work.values()), default=0)
    return grouped((row.job, row) for row in known if len(at_work[row.label]) == most)


def _fastest_rows(rows: Sequence[ScheduleComparison]) -> list[ScheduleComparison]:
    """What the sentence calls the fastest; none where there is nothing to choose from."""
    of_each: list[Sequence[ScheduleComparison]] = list(_rows_by_job(rows).values()) if _several(rows) else [rows]
    return [row for of_job in of_each if len(of_job) > 1 for row in _fastest_of(of_job)]


def _of_jobs(rows: Sequence[ScheduleComparison]) -> list[str]:
    by_job = _rows_by_job(rows)
    parts = [_of_schedules(mine, job) for job, mine in by_job.items()] if len(by_job) <= _MOST_JOBS else []
    beside = [row for mine in by_job.values() for row in mine]
    if len(by_job) > 1:
        slowed = max(beside, key=_slowdown)
        how = "measured" if slowed.slowdown_measured is not None else "predicted"
        cost = show_change(_slowdown(slowed) - 1)
        most = f"most slowed by the others: {slowed.job} under {slowed.label}, {cost}"
        parts.append(f"{'no job slowed by the others' if cost == show_change(0.0) else most} ({how})")
    return parts


def _of_events(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """What iterations took before and after each event, of the job that it slowed most; of many none: see details."""
    if len(events) > _MOST_EVENTS:
        return []
    parts = []
    for event in events:
        known = [job for job in event["iterations"] if job["before_s"] and job["after_s"]]
        if known:
            most = max(known, key=lambda job: job["after_s"] / job["before_s"])
            whose = f" ({most['job']})" if len(known) > 1 else ""
            before, after = show_times([most["before_s"], most["after_s"]])
            parts.append(f"{event['label']}: {before} -> {after}{whose}")
    return parts


def _slowdown(row: JobComparison) -> float:
    return row.slowdown_predicted if row.slowdown_measured is None else row.slowdown_measured


def _order(rows: Sequence[ScheduleComparison], tie: float) -> str:
    found = ranked_pairs(rows, tie)
    decided = found.as_predicted + found.otherwise
    if found.otherwise:
        return f"measured order NOT as predicted in {found.otherwise} of {decided + found.ties} pairs"
    if not decided:
        return "predicted too close to rank" if found.ties else ""
    ties = f" ({found.ties} of {decided + found.ties} pairs tied)" if found.ties else ""
    return f"measured order as predicted{ties}"


def _trust(rows: Sequence[ScheduleComparison]) -> str:
    wrong = [name_of(row) for row in rows if not row.trusted and not row.partly_checked]
    if wrong:
        return "NOT trusted" if len(wrong) == len(rows) == 1 else f"NOT trusted: {all_of(wrong, rows)}"
    if absent := list(dict.fromkeys(question for row in rows for question in row.not_taken)):
        return f"what could be checked is right; not checked: {', '.join(absent)}"
    trusted = "trusted" if len(rows) == 1 else "all trusted"
    if all(row.covered for row in rows):
        return trusted
    return f"{trusted}, as measurements: the model lacks what the plan asks for"
