"""Without pacing, what F, I, W and B take on this machine: measured in runs of their own, before any case."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any, NamedTuple

from testbed.judge import iterations
from testbed.plan.plan import Plan
from testbed.plan.resolve import generate
from testbed.progress import Reporter
from testbed.session import deadlines
from testbed.session.loop import Loop
from testbed.spec.choice import ScheduleChoice
from testbed.spec.workload import Pacing
from testbed.trace.tables import KINDS, UNNOTICED_WAIT_S, Table
from testbed.train.job import Job

SCHEDULES = ("zb-h1", "1f1b")
"""The first splits its backwards, the second does not: together they tell F, I, W and B. All ranks compute and send
meanwhile, as they do when the cases are trained."""

MEASURED_ITERATIONS = 5

Samples = dict[tuple[str, int], list[float]]
"""(kind, pipeline rank) -> per iteration, the mean of what its actions took in s."""


class Profile(NamedTuple):
    """What actions take, and what that was derived from."""

    pacing: Pacing
    document: dict[str, Any]
    """profile.json"""


def profile(plan: Plan, loop: Loop, reporter: Reporter) -> Profile:
    """Measure the first job's actions, rank by rank. Raises RunFailed."""
    workload = plan.jobs[0].workload
    guess = Pacing(F="1 ms", I="1 ms", W="1 ms")  # only the order of actions matters here
    samples: Samples = defaultdict(list)
    total = len(SCHEDULES) * (workload.warmup + MEASURED_ITERATIONS)
    deadline = deadlines.of_unknown_iteration()
    with reporter.step("profiling the unpaced computation", total=total) as step:
        reporter.note(f"each iteration has to end within {deadline}")
        for name in SCHEDULES:
            schedule = generate(plan, ScheduleChoice(schedule=name), guess).schedule
            job = Job(schedule, workload, None, workload.warmup + MEASURED_ITERATIONS)
            for iteration, (records,) in enumerate(loop.run([job], deadline)):
                if iteration >= workload.warmup:
                    _add(samples, iterations.trace(records).actions)
                step.advance()
    return summary(samples, plan.jobs[0].mesh.pp, recompute=workload.recompute)


def _add(samples: Samples, actions: Table) -> None:
    for rank in sorted(set(actions["rank"].tolist())):
        mine = actions[actions["rank"] == rank]
        taken = durations(mine)
        for code, kind in enumerate(KINDS):
            if (of_kind := mine["kind"] == code).any():
                samples[str(kind), rank].append(float(taken[of_kind].mean()))


def durations(actions: Table) -> Table:
    """Seconds that each of one rank's actions kept it busy, in the order they were done.

    From the end of the one before it, or from when its input came if the rank waited for it, until its output was
    handed to the network.
    """
    waited = actions["ready_s"] - actions["reached_s"] > UNNOTICED_WAIT_S
    begins = actions["reached_s"].copy()
    begins[1:] = actions["end_s"][:-1]
    begins[waited] = actions["ready_s"][waited]
    result: Table = actions["end_s"] - begins
    return result


def summary(samples: Samples, ranks: int, *, recompute: bool) -> Profile:
    """The median over iterations of each mean over an iteration's actions.

    An iteration takes the sum of its actions, rare slow ones included: their mean. An iteration that something else
    disturbed must not count: the median of the means.
    """
    found = {key: statistics.median(values) for key, values in samples.items()}

    def of(kind: str, rank: int) -> float:
        # the forward that a recomputing backward runs again is added to it by plan/costs.py
        again = found["F", rank] if recompute and kind in ("I", "B") else 0.0
        return max(0.0, found[kind, rank] - again)

    times = {kind: [f"{of(kind, rank):.9f} s" for rank in range(ranks)] for kind in ("F", "I", "W", "B")}
    per_iteration = {f"{kind} rank {rank}": values for (kind, rank), values in sorted(samples.items())}
    return Profile(Pacing(**times), {"pacing": times, "mean_s_per_iteration": per_iteration})
