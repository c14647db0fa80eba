"""What the model says of the jobs of a case: each alone, and all of them on the links that they share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.grouping import grouped
from testbed.model.lower import Load
from testbed.model.simulate import ends_of_jobs, simulate_jobs
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import peak_in_flight
from testbed.plan import costs
from testbed.plan.background import rates_change
from testbed.plan.events import at_work, phases, starts_of, trainings
from testbed.plan.free_rounds import require_free
from testbed.plan.network_state import network_at
from testbed.plan.plan import Case, Job, Plan
from testbed.planning.drawn_iterations import (
    is_uniform,
    phase_of,
    rank_changes,
    simulate_rounds,
    slots_in,
    times_of_rounds,
    typical_loads,
    varies,
)
from testbed.planning.free_training import free_ranges, free_training, mean_times_s, own_phase_of, with_iterations
from testbed.planning.ties import Range, orders_of, range_keys, ranges_in, ranges_of_orders, worst_s
from testbed.planning.training_prediction import (
    Segment,
    TrainingPrediction,
    as_round,
    link_events_of,
    simulate_training,
)
from testbed.trace.predictions import predicted_summary, predicted_times_s
from testbed.trace.tables import Trace, concatenate

BASELINE = "1f1b"
"""What speed-ups are over."""

RangesByLabel = Mapping[str, Sequence[Range | None]]
"""By label of a case, what `ranges_of_case` says of its jobs."""


class JobPrediction(NamedTuple):
    """One job in one case; seconds from its own start."""

    number: int
    """Of the job in the plan."""
    job: Job
    schedule: Schedule
    alone_s: float
    """As if no other job were there."""
    together_s: float
    """With an iteration of all jobs at once, from one common start."""
    bubble_alone: float
    bubble_together: float
    p95_s: float | None
    """Where iterations differ on purpose, the time that one of twenty takes longer than, with all jobs; every other
    number is a median then. None where one stands for all."""


def predict_together(plan: Plan, case: Case) -> Trace:
    """The trace of one iteration of every job at work in a case, on the case's routes: the typical one where they
    differ on purpose.

    Raises BadInput for a job whose times only a run can tell.
    """
    return simulate_together(plan, case, typical_loads(plan, case, loads_of_case(plan, case)))


def simulate_together(plan: Plan, case: Case, loads: Sequence[Load]) -> Trace:
    """The trace of the jobs at work in a case; jobs and ranks have the numbers of the plan."""
    return numbered(plan, case, simulate_jobs(loads))


def numbered(plan: Plan, case: Case, trace: Trace) -> Trace:
    """A trace of the jobs at work, with the numbers of the plan."""
    working = at_work(plan, case)
    if len(working) == len(plan.jobs):
        return trace
    parts, first = [], 0
    for index, number in enumerate(working):
        job = plan.jobs[number]
        own = trace.of_job(index, range(first, first + job.mesh.size))
        parts.append(own.as_job(number, job.mesh.ranks))
        first += job.mesh.size
    return replace(concatenate(parts), n_ranks=trace.n_ranks)


class _Known(NamedTuple):
    """What was predicted of a training."""

    plan: Plan
    case: Case
    strict: bool
    found: TrainingPrediction


_KNOWN: deque[_Known] = deque(maxlen=4)
"""Of the last ones: deadlines, warnings and the verdict ask for the same."""

_MOST_KEPT = 100_000
"""Rows of the trace of one of them."""


def predict_training(plan: Plan, case: Case, *, strict: bool = True) -> TrainingPrediction:
    """All iterations of a case whose schedules are made; nobody may write into its trace. Raises as `training_of`."""
    for known in _KNOWN:
        if known.plan is plan and known.case is case and known.strict >= strict:
            return known.found
    found = training_of(plan, case, loads_of_case(plan, case), strict=strict)
    tables = found.trace.actions, found.trace.messages
    if sum(map(len, tables)) <= _MOST_KEPT:
        for table in tables:
            table.flags.writeable = False
        _KNOWN.append(_Known(plan, case, strict, found))
    return found


def training_of(plan: Plan, case: Case, loads: Sequence[Load], *, strict: bool = True) -> TrainingPrediction:
    """All iterations of the jobs at work in a case, or those that stand for the ones behind them; jobs and ranks have
    the numbers of the plan.

    Raises BadInput for an event that comes after the training, or that cannot be played in it; unless `strict`, as for
    a schedule that a controller might have chosen, such an event has no effect then, or none on what waits for it.
    """
    if plan.rounds == "free":
        free = free_training(plan, case, loads)
        return free._replace(trace=numbered(plan, case, free.trace))
    events, slots_change = link_events_of(plan, case), frozenset(one.round for one in rank_changes(plan, case))
    if not events and not slots_change and not rates_change(plan):
        trace = simulate_rounds(plan, case, loads)
        by_round = {
            number: [
                load._replace(slots_s=slots_s)
                for load, slots_s in zip(loads, slots_in(plan, case, loads, number), strict=True)
            ]
            for number in trace.iterations().tolist()
        }
        return TrainingPrediction(numbered(plan, case, trace), (), by_round)
    cases = next((cases for cases in trainings(plan.cases) if case.label in [one.label for one in cases]), [case])
    place = [one.label for one in cases].index(case.label)
    segments = []
    for known, phase in zip(cases[: place + 1], phases(plan, cases), strict=False):
        one = case if known.label == case.label else known  # which may have other microbatches than the plan's has
        mine = loads if one is case else loads_of_case(plan, one)
        slots = partial(slots_in, plan, one, mine)
        down = network_at(plan, one).down
        segments.append(Segment(phase.rounds, mine, slots, varies(plan, one), slots_change, down))
    found = simulate_training(plan, events, segments, ends=place == len(cases) - 1, strict=strict)
    return found._replace(trace=numbered(plan, case, found.trace))


def differ(plan: Plan, case: Case) -> bool:
    """Whether iterations of a case differ by what happens to links, ranks or the traffic beside the jobs."""
    return bool(link_events_of(plan, case) or rank_changes(plan, case)) or rates_change(plan)


def iteration_times(plan: Plan, case: Case) -> tuple[float, ...]:
    """Per job at work in a case, seconds that an iteration takes from its start, beside one of every other job.

    The median where they differ on purpose, the mean where jobs run freely. Without a trace, for what judges many
    cases. Raises as `predict_together`.
    """
    loads = loads_of_case(plan, case)
    if plan.rounds == "free":
        return mean_times_s(plan, case, loads)
    if not all(is_uniform(plan.jobs[number]) for number in at_work(plan, case)):
        return tuple(np.median(times_of_rounds(plan, case, loads), axis=0).tolist())
    return tuple(end - load.start_s for end, load in zip(ends_of_jobs(loads), loads, strict=True))


def ranges_of_case(plan: Plan, case: Case) -> list[Range | None]:
    """Per job of a case, the times that it may take by who comes first; None where that is one time.

    Raises as `predict_together`.
    """
    if one_stands_for_all(plan, case):
        return list(times_and_ranges(plan, case).ranges or ())
    return ranges_of_training(plan, case, predict_training(plan, case))


def one_stands_for_all(plan: Plan, case: Case) -> bool:
    """Whether all iterations of a case are alike, whatever routes it takes: nothing changes, varies, or runs freely."""
    uniform = all(is_uniform(plan.jobs[number]) for number in at_work(plan, case))
    return uniform and plan.rounds == "together" and not differ(plan, case)


class TimesAndRanges(NamedTuple):
    """Per job at work in a case."""

    times_s: tuple[float, ...]
    """As `iteration_times`."""
    ranges: tuple[Range | None, ...] | None
    """As `ranges_of_case`; None where they were not asked for."""


def times_and_ranges(plan: Plan, case: Case, most_events: float = math.inf) -> TimesAndRanges:
    """`iteration_times` and `ranges_of_case` of a case, whose jobs become one program for both where they can.

    Without ranges where one run of the event model costs more than `most_events` (they take many runs).
    Raises as `predict_together`.
    """
    if not one_stands_for_all(plan, case):
        return TimesAndRanges(iteration_times(plan, case), tuple(ranges_of_case(plan, case)))
    loads = loads_of_case(plan, case)
    orders = orders_of(loads)
    times_s = tuple(end - load.start_s for end, load in zip(orders.predicted_s, loads, strict=True))
    return TimesAndRanges(times_s, tuple(ranges_in(orders, loads)) if orders.events <= most_events else None)


def ranges_of_training(plan: Plan, case: Case, training: TrainingPrediction) -> list[Range | None]:
    """The same of a training that is predicted: of its usual iteration, about the median of all that count."""
    rounds = training.compared(phase_of(plan, case).measured)
    usual = training.usual(rounds)
    if plan.rounds == "free":
        return free_ranges(plan, case, training.loads_of(usual))
    found, parts = ranges_of_orders(training.loads_of(usual)), parts_of(plan, case, training.trace)
    return [
        one and one.moved(predicted_summary(part, rounds).makespan_s - predicted_summary(part, [usual]).makespan_s)
        for one, part in zip(found, parts, strict=True)
    ]


def ranges_of_plan(plan: Plan) -> RangesByLabel:
    """By label of every case whose schedules are made, what `ranges_of_case` says of it."""
    return {
        case.label: ranges_of_case(plan, case) for case in plan.cases if all(job.rows is not None for job in case.jobs)
    }


def worst_times(plan: Plan, case: Case) -> tuple[float, ...]:
    """As `iteration_times`, the most that an iteration may take by who comes first.

    What chooses between cases goes by this: the best of lucky ends is no choice that can be kept to.
    """
    times_s, ranges = times_and_ranges(plan, case)
    assert ranges is not None  # however many events there are
    return tuple(worst_s(*each) for each in zip(times_s, ranges, strict=True))


def freely(plan: Plan) -> Plan:
    """A plan with schedules whose jobs run freely, each until all have trained what is asked for.

    Raises BadInput for a plan with something that goes by rounds.
    """
    require_free(plan)
    plan = replace(plan, rounds="free")
    return with_iterations(plan, [loads_of_case(plan, case) for case in plan.cases])


def start_s(plan: Plan, case: Case, job: int) -> float:
    """When a job begins in a case, in seconds from the common start."""
    return starts_of(plan, case)[job]


def loads_of(plan: Plan, case: Case, schedules: Sequence[Schedule]) -> list[Load]:
    """What the jobs at work put on the network on the routes of a case; `schedules` are those of all jobs."""
    loads = []
    for number in at_work(plan, case):
        problem = costs.timed_problem(plan, case, schedules[number], job=number)
        receives = plan.jobs[number].workload.receives
        loads.append(Load(problem, schedules[number], start_s(plan, case, number), receives))
    return loads


def parts_of(plan: Plan, case: Case, trace: Trace) -> list[Trace]:
    """Per job at work, its part of a trace of all: its ranks counted from 0, its times from its own start."""
    return [
        trace.of_job(number, plan.jobs[number].mesh.ranks, start_s(plan, case, number))
        for number in at_work(plan, case)
    ]


def predict_jobs(plan: Plan, case: Case) -> list[JobPrediction]:
    """Every job at work in a case, alone and together, medians where iterations differ. Raises as `training_of`."""
    found, training = [], predict_training(plan, case)
    usual = training.usual(training.compared(phase_of(plan, case).measured))
    parts, loads = parts_of(plan, case, training.trace), training.loads_of(usual)
    for index, (number, load, beside) in enumerate(zip(at_work(plan, case), loads, parts, strict=True)):
        alone = predict_alone(plan, case, training.loads_of_job(index), number) if len(parts) > 1 else beside
        rounds = training.compared(own_phase_of(plan, case, number).measured)
        both = [predicted_summary(one, rounds, mean=plan.rounds == "free") for one in (alone, beside)]
        times, bubbles = [one.makespan_s for one in both], [one.bubble_ratio for one in both]
        differ = varies(plan, case) or plan.rounds == "free"
        p95_s = float(np.percentile(predicted_times_s(beside, rounds), 95)) if differ else None
        shown = times[0], times[1], bubbles[0], bubbles[1], p95_s
        found.append(JobPrediction(number, plan.jobs[number], load.schedule, *shown))
    return found


def predict_alone(plan: Plan, case: Case, loads: Mapping[int, Load], job: int) -> Trace:
    """The trace of a job's iterations as if no other one were there, from its `loads` by number of the round, for all
    up to the next one: where links or ranks change, as they are in each with all jobs.
    """
    if plan.rounds == "together" and differ(plan, case):
        return concatenate([as_round(simulate_jobs([one._replace(start_s=0.0)]), n) for n, one in loads.items()])
    load = loads[min(loads)]
    alone, of_job = load._replace(start_s=0.0, slots_s=None), replace(case, alone=plan.jobs[job].name)
    if plan.rounds == "free":
        return free_training(plan, of_job, [alone]).trace
    return simulate_rounds(plan, of_job, [alone])


class PredictedRow(NamedTuple):
    """What the model says of one job in one case, under the names that comparison.json has; seconds, shares."""

    case: Case
    number: int
    """Of the job in the plan."""
    job: str
    schedule: str
    """The family."""
    predicted_s: float
    """With an iteration of all jobs at once, from one common start; the median where iterations differ on purpose."""
    predicted_p95_s: float | None
    """What one iteration of twenty takes longer than; None where they do not differ on purpose."""
    predicted_range: Range | None
    predicted_alone_s: float
    slowdown_predicted: float
    bubble_predicted: float
    bubble_alone_predicted: float
    peak_in_flight_predicted: float
    """Microbatches."""
    speedup_predicted: float | None
    """Over the job's first case with 1F1B; None without one."""

    @property
    def ends(self) -> dict[str, float | None]:
        """Between what the time lies by who comes first."""
        return range_keys(self.predicted_range)


def predicted_rows(plan: Plan) -> list[PredictedRow]:
    """Every job at work in every case, case by case. Raises as `predict_together`."""
    rows, baselines = [], dict[int, float]()
    for case in plan.cases:
        for found, predicted_range in zip(predict_jobs(plan, case), ranges_of_case(plan, case), strict=True):
            schedule = case.jobs[found.number].choice.schedule
            if schedule == BASELINE:
                baselines.setdefault(found.number, found.together_s)
            row = PredictedRow(
                case,
                found.number,
                found.job.name,
                schedule,
                found.together_s,
                found.p95_s,
                predicted_range,
                found.alone_s,
                found.together_s / found.alone_s,
                found.bubble_together,
                found.bubble_alone,
                max(peak_in_flight(found.schedule)),
                None,
            )
            rows.append(row)
    return [
        row._replace(speedup_predicted=baselines[row.number] / row.predicted_s) if row.number in baselines else row
        for row in rows
    ]


def ranges_of_rows(rows: Sequence[PredictedRow]) -> RangesByLabel:
    """As `ranges_of_plan`, of rows that are known."""
    return grouped((row.case.label, row.predicted_range) for row in rows)


def loads_of_case(plan: Plan, case: Case) -> list[Load]:
    """What the jobs at work put on the network under the schedules of a case. Raises as `predict_together`."""
    return loads_of(plan, case, [_schedule(plan, case, number) for number in range(len(plan.jobs))])


def _schedule(plan: Plan, case: Case, number: int) -> Schedule:
    schedule = costs.schedule_of(plan, case, job=number)
    if schedule is None:
        expected = f"seconds for F, I and W: without them only a run can make {case.label}"
        raise BadInput.of(plan.jobs[number].workload.name, "pacing", "none", expected)
    return schedule
