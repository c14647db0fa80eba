"""What this machine adds to every message, measured in the lab before each case: never fitted on what follows.

One-forward-one-backward of the same job is trained for a few iterations; where a case joins other ranks than that does
(two stages on a rank), its own schedule is. A message's extra time is from the end of the slot that made it to its
arrival, less what the model says; it holds the copying, TCP, gloo, and every wait for a processor. A case is predicted
with all that was measured until then: a machine has its phases.

So few iterations are spoilt by one stall. Those that the witnesses say were disturbed are trained again, for no longer
than the measurement itself takes, and left out while they are the exception. A machine that is disturbed most of the
time is measured as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.judge import iterations
from testbed.judge.messages import Likeness, MessageTimes, message_times
from testbed.judge.witnesses import disturbed
from testbed.lab import host_settings
from testbed.lab.machine_witness import Witness
from testbed.model.host_prediction import ExtraTimes, Floats, FlowName
from testbed.model.replay import on_the_way_s
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.plan.events import at_work
from testbed.plan.exchange import sites_of
from testbed.plan.plan import Case, Plan
from testbed.planning.prediction import loads_of, parts_of, simulate_together
from testbed.planning.resolve import generate
from testbed.progress import Reporter
from testbed.session import deadlines
from testbed.session.loop import Loop, start_margin_s
from testbed.session.rounds import WitnessedRounds, task_of
from testbed.spec.choice import ScheduleChoice
from testbed.trace.tables import MESSAGE_KINDS, Trace

SCHEDULE = "1f1b"
"""Every rank waits for most of its messages under it, so that their arrival is known."""

BUDGET_S, BUDGET_SHARE = 10.0, 0.3
"""All measurements of a run may take this long, and this share of what its cases take."""

LEAST_ITERATIONS, LEAST_AGAIN, MOST_ITERATIONS = 3, 2, 16
"""As many iterations before a case as fit into the budget, at least these many before the first and before a later one,
and at most these: three show most flows often enough to draw from."""

LEAST_CALM = 2
"""Calm iterations, for the others to be left out: of one alone it is not known what usually differs."""

REPEATS = 3
"""So often at most the disturbed ones are trained again."""

WARM_UP, WARM_UP_AGAIN = 3, 1
"""The first iterations touch their memory for the first time; of a later measurement, only one finds no receives
posted."""


@dataclass(frozen=True)
class MessageCosts:
    """What was measured of one job before a case."""

    extra: ExtraTimes
    rows: Sequence[iterations.IterationRow]
    """Of the measured iterations: what the machine does to a run while nothing else is known of it."""
    first_rank: int = 0
    """Of the job; flows have its ranks counted from 0."""

    def with_later(self, later: MessageCosts) -> MessageCosts:
        """Both measurements."""
        return MessageCosts(self.extra.with_later(later.extra), [*self.rows, *later.rows], self.first_rank)


def as_document(jobs: Sequence[MessageCosts]) -> dict[str, Any]:
    """message_costs.json: percentiles of the extra time by flow, in seconds, over all jobs."""
    return {
        "iterations": len(jobs[0].rows),
        "extra_s": [
            {
                "source_rank": of_job.first_rank + source,
                "target_rank": of_job.first_rank + target,
                "kind": MESSAGE_KINDS[kind],
                **percentiles(np.concatenate(parts)),
            }
            for of_job in jobs
            for (source, target, kind), parts in of_job.extra.by_flow.items()
        ],
    }


def percentiles(times: Floats) -> dict[str, float]:
    """A distribution in a few numbers."""
    shown = zip(("p10", "median", "p90", "p99", "worst"), np.percentile(times, (10, 50, 90, 99, 100)), strict=True)
    return {"count": len(times), "mean": float(times.mean()), **{name: float(value) for name, value in shown}}


class Observed(NamedTuple):
    """Iterations of one job under one schedule, warm-up left out."""

    first_rank: int
    problem: Problem
    ranks: Likeness
    predicted: Trace
    rows: list[iterations.IterationRow]
    traces: list[Trace]
    on_the_way_s: list[Floats | None]
    """Per trace, what its messages should have taken by all that was sent (model/replay.py)."""
    iterations: int
    """How many were trained, with warm-up."""

    def with_more(self, more: Observed) -> Observed:
        """These iterations, then those of another time under the same schedule."""
        return self._replace(
            rows=[*self.rows, *more.rows],
            traces=[*self.traces, *more.traces],
            on_the_way_s=[*self.on_the_way_s, *more.on_the_way_s],
            iterations=self.iterations + more.iterations,
        )


def observe(
    plan: Plan,
    case: Case,
    schedules: Sequence[Schedule],
    loop: Loop,
    reporter: Reporter,
    witness: Witness,
    *,
    real_time: bool,
    again: bool = False,
    share: float = math.inf,
    most: int = MOST_ITERATIONS,
) -> list[Observed]:
    """Train the jobs at work in a case for a while, with these schedules on its routes: at most this share of what the
    cases take.

    `again`: not for the first time in this lab. `most`: iterations without warm-up. Raises RunFailed.
    """
    jobs, loads = {number: plan.jobs[number] for number in at_work(plan, case)}, loads_of(plan, case, schedules)
    predicted = simulate_together(plan, case, loads)
    seconds = float(predicted.makespans()[0])
    warm_up = WARM_UP_AGAIN if again else WARM_UP
    count = warm_up + min(most, _measured_iterations(plan, seconds, share, again=again))
    seen = [
        Observed(
            job.mesh.first_rank,
            load.problem,
            Likeness(load.problem.first_like, load.problem.tensor, sites_of(job)),
            part,
            [],
            [],
            [],
            count,
        )
        for job, load, part in zip(jobs.values(), loads, parts_of(plan, case, predicted), strict=True)
    ]
    tasks = {number: task_of(job, load, count) for (number, job), load in zip(jobs.items(), loads, strict=True)}
    with (
        reporter.step("measuring what this machine adds to messages", total=count) as step,
        host_settings.real_time(real_time),
    ):
        deadline = deadlines.of_iteration(seconds)
        reporter.note(f"each iteration has to end within {deadline}")
        margin_s = start_margin_s(plan, case)
        for number, ended in enumerate(WitnessedRounds(loop, tasks, deadline, witness, lambda number: margin_s)):
            for job, mine in zip(jobs, seen, strict=True) if number >= warm_up else ():
                mine.rows.append(ended.row(job, warm_up))
                mine.traces.append(ended.trace(job))
            step.advance()
    for traces in zip(*(observed.traces for observed in seen), strict=True):
        for mine, due_s in zip(seen, on_the_way_s(loads, traces), strict=True):
            mine.on_the_way_s.append(due_s)
    return seen


def _measured_iterations(plan: Plan, seconds: float, share: float, *, again: bool) -> int:
    """How many iterations of so many seconds before one case."""
    cases = len(plan.cases)
    cases_s = cases * max(job.workload.warmup + job.workload.iterations for job in plan.jobs) * seconds
    fits = min(BUDGET_S, share * cases_s) / seconds - WARM_UP - (cases - 1) * WARM_UP_AGAIN
    return int(min(max(fits / cases, LEAST_AGAIN if again else LEAST_ITERATIONS), MOST_ITERATIONS))


def measure(
    plan: Plan,
    case: Case,
    earlier: Sequence[MessageCosts] | None,
    loop: Loop,
    reporter: Reporter,
    witness: Witness,
    *,
    real_time: bool,
) -> list[MessageCosts] | None:
    """What messages of every job at work take beyond the model, before a case is trained.

    None where no arrival is known. `earlier` was measured before the cases before. Raises RunFailed.
    """
    schedules = [schedule_for(plan, case, job) for job in range(len(plan.jobs))]
    observing = partial(observe, plan, case, schedules, loop, reporter, witness, real_time=real_time)
    seen = observing(again=earlier is not None, share=BUDGET_SHARE)
    seen = with_repeats(seen, lambda count: observing(again=True, most=count), reporter)
    found = of_observed(seen)
    if found is None:
        return None if earlier is None else list(earlier)
    return (
        found if earlier is None else [of_job.with_later(later) for of_job, later in zip(earlier, found, strict=True)]
    )


def schedule_for(plan: Plan, case: Case, job: int) -> Schedule:
    """1F1B; where the job's memory does not hold it, or the case has its stages elsewhere, that of the case."""
    made = costs.schedule_of(plan, case, job=job)
    assert made is not None  # the job is paced
    try:
        own = generate(plan, ScheduleChoice(schedule=SCHEDULE), job=job).schedule
    except BadInput:
        return made
    return own if own.stage_to_rank == made.stage_to_rank else made


def with_repeats(
    seen: Sequence[Observed], again: Callable[[int], Sequence[Observed]], reporter: Reporter
) -> list[Observed]:
    """Train as many iterations `again` as the machine disturbed, until as many are calm as there were in all.

    No more than there were in all; the disturbed ones stay among what was seen. Raises RunFailed.
    """
    wanted = left = len(seen[0].rows)
    found = list(seen)
    for _ in range(REPEATS):
        disturbed_ones = wanted - len(calm([observed.rows for observed in found]))
        if disturbed_ones <= 0 or left <= 0:
            break
        reporter.note(f"the machine was busy otherwise in {disturbed_ones} of {len(found[0].rows)} iterations: again")
        more = again(min(disturbed_ones, left))
        left -= len(more[0].rows)
        found = [observed.with_more(later) for observed, later in zip(found, more, strict=True)]
    return found


def of_observed(seen: Sequence[Observed]) -> list[MessageCosts] | None:
    """Per job, the extra times of its messages in the iterations that tell of the machine as it usually is.

    None where no arrival is known of a job that sends messages.
    """
    chosen = representative([observed.rows for observed in seen])
    found = [_extra_times(observed, chosen) for observed in seen]
    silent = [observed.predicted.n_ranks == 1 for observed in seen]
    if all(silent) or not all(extra.by_flow or alone for extra, alone in zip(found, silent, strict=True)):
        return None
    return [
        MessageCosts(extra, [observed.rows[index] for index in chosen], observed.first_rank)
        for extra, observed in zip(found, seen, strict=True)
    ]


def _extra_times(seen: Observed, chosen: Sequence[int]) -> ExtraTimes:
    each = [
        message_times(trace, seen.predicted, paced=True, ranks=seen.ranks, on_the_way_s=due_s)
        for trace, due_s in ((seen.traces[index], seen.on_the_way_s[index]) for index in chosen)
    ]
    return _of_iterations([(times, np.ones(len(times.rows), bool)) for times in each], seen.problem)


def in_the_run(times: MessageTimes, problem: Problem) -> ExtraTimes:
    """The extra times of all messages of a case, iteration by iteration."""
    numbers = times.rows["iteration"]
    return _of_iterations([(times, numbers == iteration) for iteration in np.unique(numbers)], problem)


def _of_iterations(each: Sequence[tuple[MessageTimes, NDArray[np.bool_]]], problem: Problem) -> ExtraTimes:
    """The extra times of the messages of each iteration: which rows are its own."""
    flows: dict[FlowName, list[list[float]]] = {}
    for number, (times, mine) in enumerate(each):
        known = mine & ~np.isnan(times.extra_s)
        names = zip(*(times.rows[name][known].tolist() for name in ("source_rank", "target_rank", "kind")), strict=True)
        for flow, extra_s in zip(names, times.extra_s[known].tolist(), strict=True):
            flows.setdefault(flow, [[] for _ in each])[number].append(extra_s)
    by_flow = {flow: [np.array(part) for part in parts] for flow, parts in sorted(flows.items())}
    return ExtraTimes(by_flow, frozenset(flow for flow in by_flow if problem.crosses(*flow[:2])))


def representative(jobs: Sequence[Sequence[iterations.IterationRow]]) -> list[int]:
    """The calm iterations where they are at least half, and no fewer than `LEAST_CALM`; else all: a machine that is
    disturbed most of the time will be so in what follows."""
    alone, count = calm(jobs), len(jobs[0])
    return alone if len(alone) >= max(LEAST_CALM, count / 2) else list(range(count))


def calm(jobs: Sequence[Sequence[iterations.IterationRow]]) -> list[int]:
    """The iterations in which the machine disturbed no job, by its witnesses."""
    found: list[int] = np.flatnonzero(~np.any([disturbed(rows, rows) for rows in jobs], axis=0)).tolist()
    return found
