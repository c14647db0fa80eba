"""What this machine adds to every message, measured in the lab before the first case: never fitted on what follows.

One-forward-one-backward of the same job is trained for a few iterations. A message's extra time is from the end of the
slot that made it to its arrival, less what the model says; it holds the copying, TCP, gloo, and every wait for a
processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.judge import iterations
from testbed.judge.messages import message_times
from testbed.judge.witnesses import disturbed
from testbed.lab import host
from testbed.lab.witness import MachineWitness
from testbed.model.host import ExtraTimes, Floats
from testbed.model.simulate import simulate
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.plan.plan import Plan
from testbed.plan.resolve import generate
from testbed.progress import Reporter
from testbed.schedule.registry import Generated
from testbed.session import deadlines
from testbed.session.loop import Loop
from testbed.spec.choice import ScheduleChoice
from testbed.trace.tables import Trace
from testbed.train.job import Job

SCHEDULE = "1f1b"
"""Every rank waits for most of its messages under it, so that their arrival is known."""

BUDGET_S, BUDGET_SHARE = 10.0, 0.3
"""The measurement before a run may take this long, and this share of what its cases take."""

LEAST_ITERATIONS, MOST_ITERATIONS = 3, 16
"""As many iterations as fit into the budget, within these bounds: three show most flows often enough to draw from."""

WARM_UP = 3
"""The first iterations touch their memory for the first time."""


@dataclass(frozen=True)
class MessageCosts:
    """What was measured before the first case."""

    extra: ExtraTimes
    rows: Sequence[iterations.IterationRow]
    """Of the measured iterations: what the machine does to a run while nothing else is known of it."""

    def as_json(self) -> dict[str, Any]:
        """For message_costs.json: percentiles of the extra time by flow, in seconds."""
        return {
            "schedule": SCHEDULE,
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
    """Iterations of the schedule above, warm-up left out."""

    problem: Problem
    predicted: Trace
    rows: list[iterations.IterationRow]
    traces: list[Trace]
    iterations: int
    """How many were trained, with warm-up."""


def observe(
    plan: Plan, loop: Loop, reporter: Reporter, witness: MachineWitness, *, real_time: bool, share: float = math.inf
) -> Observed:
    """Train the first job for a while, at most this share of what the cases take. Raises RunFailed."""
    made, workload = _schedule(plan), plan.jobs[0].workload
    problem = costs.problem_for(plan, made.schedule)
    predicted = simulate(problem, made.schedule, receives=workload.receives)
    seconds = float(predicted.makespans()[0])
    cases_s = len(plan.cases) * (workload.warmup + workload.iterations) * seconds
    fits = min(BUDGET_S, share * cases_s) / seconds - WARM_UP
    count = WARM_UP + int(min(max(fits, LEAST_ITERATIONS), MOST_ITERATIONS))
    durations = tuple(tuple(problem.duration(action) for action in row) for row in made.schedule.rows)
    seen = Observed(problem, predicted, [], [], count)
    with (
        reporter.step("measuring what this machine adds to messages", total=count) as step,
        host.real_time(real_time),
    ):
        before = witness.read()
        deadline = deadlines.of_iteration(seconds)
        reporter.note(f"each iteration has to end within {deadline}")
        for number, (records,) in enumerate(loop.run([Job(made.schedule, workload, durations, count)], deadline)):
            now = witness.read()
            if number >= WARM_UP:
                seen.rows.append(iterations.iteration_row(records, WARM_UP, now.since(before)))
                seen.traces.append(iterations.trace(records))
            before = now
            step.advance()
    return seen


def measure(
    plan: Plan, loop: Loop, reporter: Reporter, witness: MachineWitness, *, real_time: bool
) -> MessageCosts | None:
    """What messages of the first job take beyond the model. None where no arrival is known. Raises RunFailed."""
    return of_observed(observe(plan, loop, reporter, witness, real_time=real_time, share=BUDGET_SHARE))


def of_observed(seen: Observed) -> MessageCosts | None:
    """The extra times of the messages of undisturbed iterations; None where no arrival is known."""
    calm = _calm(seen.rows)
    flows: dict[tuple[int, int], list[list[float]]] = {}
    for number, index in enumerate(calm):
        times = message_times(seen.traces[index], seen.predicted, paced=True)
        for row, extra_s in zip(times.rows, times.extra_s, strict=True):
            if not np.isnan(extra_s):
                pair = int(row["source_rank"]), int(row["target_rank"])
                flows.setdefault(pair, [[] for _ in calm])[number].append(float(extra_s))
    if not flows:
        return None
    by_flow = {pair: [np.array(one) for one in parts] for pair, parts in sorted(flows.items())}
    crossing = frozenset(pair for pair in by_flow if seen.problem.paths[0].route(*pair))
    return MessageCosts(ExtraTimes(by_flow, crossing), [seen.rows[index] for index in calm])


def _calm(rows: Sequence[iterations.IterationRow]) -> list[int]:
    """The iterations that the machine did not disturb; all where too few were left alone."""
    alone = np.flatnonzero(~disturbed(rows, rows)).tolist()
    return alone if len(alone) >= LEAST_ITERATIONS else list(range(len(rows)))


def _schedule(plan: Plan) -> Generated:
    """1F1B; where the job's memory does not hold it, the schedule of the first case. Raises BadInput."""
    try:
        return generate(plan, ScheduleChoice(schedule=SCHEDULE))
    except BadInput:
        schedule = costs.schedule_of(plan, plan.cases[0])
        if schedule is None:
            raise
        return Generated(schedule, None)
