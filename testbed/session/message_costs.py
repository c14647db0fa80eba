"""What this machine adds to every message, measured in the lab before each case: never fitted on what follows.

One-forward-one-backward of the same job is trained for a few iterations; where a case joins other ranks than that does
(two stages on a rank), its own schedule is. A message's extra time is from the end of the slot that made it to its
arrival, less what the model says; it holds the copying, TCP, gloo, and every wait for a processor. A case is predicted
with all that was measured until then: a machine has its phases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.judge import iterations
from testbed.judge.messages import Likeness, message_times
from testbed.judge.witnesses import disturbed
from testbed.lab import host
from testbed.lab.witness import MachineWitness
from testbed.model.host import ExtraTimes, Floats
from testbed.model.simulate import simulate
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.plan.exchange import sites_of
from testbed.plan.plan import Plan
from testbed.plan.resolve import generate
from testbed.progress import Reporter
from testbed.session import deadlines
from testbed.session.loop import Loop
from testbed.spec.choice import ScheduleChoice
from testbed.trace.tables import Trace
from testbed.train.job import Job

SCHEDULE = "1f1b"
"""Every rank waits for most of its messages under it, so that their arrival is known."""

BUDGET_S, BUDGET_SHARE = 10.0, 0.3
"""All measurements of a run may take this long, and this share of what its cases take."""

LEAST_ITERATIONS, LEAST_AGAIN, MOST_ITERATIONS = 3, 2, 16
"""As many iterations before a case as fit into the budget, at least these many before the first and before a later one,
and at most these: three show most flows often enough to draw from."""

WARM_UP, WARM_UP_AGAIN = 3, 1
"""The first iterations touch their memory for the first time; of a later measurement, only one finds no receives
posted."""


@dataclass(frozen=True)
class MessageCosts:
    """What was measured before a case."""

    extra: ExtraTimes
    rows: Sequence[iterations.IterationRow]
    """Of the measured iterations: what the machine does to a run while nothing else is known of it."""

    def with_later(self, later: MessageCosts | None) -> MessageCosts:
        """Both measurements."""
        if later is None:
            return self
        return MessageCosts(self.extra.with_later(later.extra), [*self.rows, *later.rows])

    def as_json(self) -> dict[str, Any]:
        """For message_costs.json: percentiles of the extra time by flow, in seconds."""
        return {
            "iterations": len(self.rows),
            "extra_s": [
                {"source_rank": source, "target_rank": target, **percentiles(np.concatenate(parts))}
                for (source, target), parts in self.extra.by_flow.items()
            ],
        }


def percentiles(times: Floats) -> dict[str, float]:
    """A distribution in a few numbers."""
    shown = zip(("p10", "median", "p90", "p99", "worst"), np.percentile(times, (10, 50, 90, 99, 100)), strict=True)
    return {"count": len(times), "mean": float(times.mean()), **{name: float(value) for name, value in shown}}


class Observed(NamedTuple):
    """Iterations of one schedule, warm-up left out."""

    problem: Problem
    ranks: Likeness
    predicted: Trace
    rows: list[iterations.IterationRow]
    traces: list[Trace]
    iterations: int
    """How many were trained, with warm-up."""


def observe(
    plan: Plan,
    schedule: Schedule,
    loop: Loop,
    reporter: Reporter,
    witness: MachineWitness,
    *,
    real_time: bool,
    again: bool = False,
    share: float = math.inf,
) -> Observed:
    """Train the first job for a while, at most this share of what the cases take. Raises RunFailed.

    `again`: not for the first time in this lab.
    """
    workload = plan.jobs[0].workload
    problem = costs.problem_for(plan, schedule)
    predicted = simulate(problem, schedule, receives=workload.receives)
    seconds = float(predicted.makespans()[0])
    warm_up = WARM_UP_AGAIN if again else WARM_UP
    count = warm_up + _measured_iterations(plan, seconds, share, again=again)
    durations = tuple(tuple(problem.duration(action) for action in row) for row in schedule.rows)
    ranks = Likeness(problem.alike, problem.tensor, sites_of(plan.jobs[0]))
    seen = Observed(problem, ranks, predicted, [], [], count)
    with (
        reporter.step("measuring what this machine adds to messages", total=count) as step,
        host.real_time(real_time),
    ):
        before = witness.read()
        deadline = deadlines.of_iteration(seconds)
        reporter.note(f"each iteration has to end within {deadline}")
        job = Job(schedule, workload, durations, count, problem.turn_s, sites=sites_of(plan.jobs[0]))
        for number, (records,) in enumerate(loop.run([job], deadline)):
            now = witness.read()
            if number >= warm_up:
                seen.rows.append(iterations.iteration_row(records, warm_up, now.since(before)))
                seen.traces.append(iterations.trace(records))
            before = now
            step.advance()
    return seen


def _measured_iterations(plan: Plan, seconds: float, share: float, *, again: bool) -> int:
    """How many iterations of so many seconds before one case."""
    workload, cases = plan.jobs[0].workload, len(plan.cases)
    cases_s = cases * (workload.warmup + workload.iterations) * seconds
    fits = min(BUDGET_S, share * cases_s) / seconds - WARM_UP - (cases - 1) * WARM_UP_AGAIN
    return int(min(max(fits / cases, LEAST_AGAIN if again else LEAST_ITERATIONS), MOST_ITERATIONS))


def measure(
    plan: Plan,
    made: Schedule,
    earlier: MessageCosts | None,
    loop: Loop,
    reporter: Reporter,
    witness: MachineWitness,
    *,
    real_time: bool,
) -> MessageCosts | None:
    """What messages of the first job take beyond the model, before the schedule `made` is trained. Raises RunFailed.

    None where no arrival is known. `earlier` was measured before the cases before.
    """
    again = earlier is not None
    schedule = schedule_for(plan, made)
    seen = observe(plan, schedule, loop, reporter, witness, real_time=real_time, again=again, share=BUDGET_SHARE)
    found = of_observed(seen)
    return earlier.with_later(found) if earlier is not None else found


def schedule_for(plan: Plan, made: Schedule) -> Schedule:
    """1F1B; where the job's memory does not hold it, or `made` has its stages elsewhere, that itself."""
    try:
        usual = generate(plan, ScheduleChoice(schedule=SCHEDULE)).schedule
    except BadInput:
        return made
    return usual if usual.stage_to_rank == made.stage_to_rank else made


def of_observed(seen: Observed) -> MessageCosts | None:
    """The extra times of the messages of undisturbed iterations; None where no arrival is known."""
    calm = _calm(seen.rows)
    flows: dict[tuple[int, int], list[list[float]]] = {}
    for number, index in enumerate(calm):
        times = message_times(seen.traces[index], seen.predicted, paced=True, ranks=seen.ranks)
        for row, extra_s in zip(times.rows, times.extra_s, strict=True):
            if not np.isnan(extra_s):
                pair = int(row["source_rank"]), int(row["target_rank"])
                flows.setdefault(pair, [[] for _ in calm])[number].append(float(extra_s))
    if not flows:
        return None
    by_flow = {pair: [np.array(one) for one in parts] for pair, parts in sorted(flows.items())}
    crossing = frozenset(pair for pair in by_flow if seen.problem.crosses(*pair))
    return MessageCosts(ExtraTimes(by_flow, crossing), [seen.rows[index] for index in calm])


def _calm(rows: Sequence[iterations.IterationRow]) -> list[int]:
    """The iterations that the machine did not disturb; all where too few were left alone."""
    alone = np.flatnonzero(~disturbed(rows, rows)).tolist()
    return alone if len(alone) >= LEAST_ITERATIONS else list(range(len(rows)))
