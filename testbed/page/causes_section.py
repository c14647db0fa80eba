"""Where the time of an iteration goes: what the model says of each cause, and what was measured beyond it."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.judge.comparison import ScheduleComparison, job_of
from testbed.model.bubble import TimeByCause, time_by_cause
from testbed.page.bars import Bar, chart, legend
from testbed.page.markup import Markup, joined, note, table, tag
from testbed.page.subject import Subject, entries_head, row_name
from testbed.plan import costs
from testbed.plan.plan import Plan
from testbed.results.run_files import RunFiles
from testbed.units import show_time, show_times

_SEEN = 5e-4
"""Share of a bar from which a cause is in the legend."""

NAMES = (
    "work",
    "imbalance",
    "fill and drain",
    "latency",
    "wire",
    "queueing",
    "data parallel",
    "others",
    "beyond the model",
)
"""All but the first are bubble."""

_MEANINGS = (
    "Work: mean over the ranks of the time they compute. Imbalance: what the busiest rank computes beyond that. "
    "Fill and drain: waiting that the order causes on a network that costs nothing. Latency, wire, queueing: added by "
    "one-way delays, by the time messages take on links, and by their waiting for each other and for traffic that is "
    "no job's. Others: other jobs on the same links, late receives, and what drawn slots add to their medians. Beyond "
    "the model: measured less predicted."
)


def causes(subject: Subject) -> Markup:
    """Bars and a table, an entry of the comparison in each row. Raises BadInput for a damaged plan.json."""
    missing = subject.lacks("plan.json")
    if missing or not subject.rows:
        return note(missing or "Not shown: no schedule is finished.")
    files = RunFiles(subject.directory)
    known, unknown = [], []
    for row in subject.rows:
        found = _causes(files, row)
        if found is None:
            unknown.append(row_name(row))
        else:
            known.append((row, _parts(row, found)))
    bars = [Bar(row_name(row), parts, row.predicted_s, show_time(row.measured_s)) for row, parts in known]
    head, body = entries_head(subject.rows), []
    for row, parts in known:
        shown = show_times([*parts, row.predicted_s, row.measured_s])
        body.append([row_name(row), *shown])
    return joined(
        [
            *(
                [
                    legend(NAMES, "predicted", _present([parts for _, parts in known])),
                    chart("Time of an iteration by cause", bars, NAMES),
                    tag(
                        "details",
                        tag("summary", "In numbers"),
                        table("Seconds of an iteration by cause", [head, *NAMES, "predicted", "measured"], body),
                        tag("p", _MEANINGS, class_="small"),
                    ),
                ]
                if known
                else []
            ),
            note(f"No causes of {', '.join(unknown)}: what its actions take only a run can tell.") if unknown else None,
        ]
    )


def _causes(files: RunFiles, row: ScheduleComparison) -> TimeByCause | None:
    """Of one job by itself; None where its actions have no times, or its order was not written down."""
    plan, case = files.plan, files.case(row.label)
    number = _number(plan, row)
    job = plan.jobs[number]
    schedule = costs.schedule_of(plan, case, job=number)
    if schedule is None or (job.workload.pacing is None and job.profile is None):
        return None
    return time_by_cause(costs.timed_problem(plan, case, schedule, job=number), schedule)


def _number(plan: Plan, row: ScheduleComparison) -> int:
    return [job.name for job in plan.jobs].index(job_of(row)) if job_of(row) else 0


def _present(parts: Sequence[Sequence[float]]) -> set[int]:
    """The numbers of the causes that can be seen in any bar."""
    return {index for each in parts for index, part in enumerate(each) if part > _SEEN * sum(each)}


def _parts(row: ScheduleComparison, found: TimeByCause) -> list[float]:
    """In the order of NAMES; what rounds to nothing is 0."""
    parts = [*found, row.predicted_s - found.makespan_s, row.measured_s - row.predicted_s]
    return [0.0 if abs(part) < 1e-9 * row.predicted_s else part for part in parts]
