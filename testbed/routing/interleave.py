"""`interleave`: jobs begin a little later than each other, so that one sends while another one computes.

Ours. Training is periodic: what a job sends comes in bursts, at the same moments of every iteration. Two jobs whose
bursts meet on a link slow each other down in every iteration; an offset between their starts that is kept can end that
without any other route. How long each job takes from its own start is predicted by the event model, for an iteration of
all jobs. An offset is at most a share of the shortest job's iteration: with a large one the jobs would no longer meet,
which no training that goes on is helped by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from testbed.errors import BadInput
from testbed.plan.plan import Case
from testbed.plan.together import start_s
from testbed.routing.apply import demands, on_routes
from testbed.routing.judge import Judge, Seconds
from testbed.routing.planner import Planned, Planner, Task
from testbed.routing.registry import choose, route
from testbed.units import show_time

Share = Annotated[float, Field(gt=0, le=1)]
Steps = Annotated[int, Field(ge=1, le=1000)]

_MOST_EVALUATIONS = 100_000
_ROUNDS = 4
"""Offsets, then routes for these offsets, so many times at most."""

_FINER = 3
"""How often the steps are halved around the best offset."""


def interleave(
    task: Task, within: Share = 0.25, steps: Steps = 16, routes: str = "greedy-time", time_limit_s: Seconds = 120.0
) -> Planned:
    """Every case with offsets between its jobs, on routes that the policy `routes` chooses for these offsets.

    An offset is at most `within` of the shortest job's iteration alone and is looked for at `steps` places, then
    between them. A case is never predicted to be slower than it is on these routes without offsets.
    """
    policy = choose(routes)
    if isinstance(policy.policy, Planner):
        raise BadInput.of("--policy", "interleave,routes", routes, "a policy that chooses routes alone")
    cases, remarks = [], []
    for case in task.plan.cases:
        plan = replace(task.plan, cases=(case,))
        judge = Judge(plan, _MOST_EVALUATIONS, time_limit_s, ("interleave", task.watch))

        def routed(one: Case, judge: Judge = judge) -> Case:
            wanted = demands(judge.plan, one, task.reach)
            return on_routes(judge.plan, one, wanted, route(policy, wanted.problem).choice.tolist())

        best = base = routed(case)
        try:
            for _ in range(_ROUNDS):
                before = judge.offer(best)
                best = better_starts(judge, best, within, steps)
                best = min((best, routed(best)), key=judge.offer)
                if judge.offer(best) >= before:
                    break
        except KeyboardInterrupt:
            judge.interrupt()
        cases.append(best)
        later = ", ".join(show_time(start_s(plan, best, job)) for job in range(len(plan.jobs)))
        if len(plan.jobs) < 2:
            remarks.append(f"{case.label}: one job alone has nothing to begin later than: only its routes are chosen")
            continue
        gain = 1 - judge.offer(best)[0] / judge.offer(base)[0]
        remarks.append(f"{case.label}: jobs begin at {later}: {gain:.2%} less for the worst one than all at once")
    return Planned(task.plan.flows, tuple(cases), tuple(remarks))


PLANNER = Planner(interleave)


def better_starts(judge: Judge, case: Case, within: float, steps: int) -> Case:
    """The case with the best offset of one job after the other, the others being where they are."""
    plan, bound_s = judge.plan, within * min(judge.usual_s)
    for job in range(1, len(plan.jobs)):  # the first one stays: only differences count
        step_s = bound_s / steps
        for offset_s in np.arange(0, steps + 1) * step_s:
            case = _better(judge, case, job, float(offset_s))
        for _ in range(_FINER):
            step_s /= 2
            for offset_s in _around(start_s(plan, case, job) - plan.jobs[job].start_s, step_s, bound_s):
                case = _better(judge, case, job, offset_s)
    return case


def _around(offset_s: float, step_s: float, bound_s: float) -> Iterator[float]:
    yield from (one for one in (offset_s - step_s, offset_s + step_s) if 0 <= one <= bound_s)


def _better(judge: Judge, case: Case, job: int, offset_s: float) -> Case:
    if judge.over():
        return case
    starts = [start_s(judge.plan, case, number) for number in range(len(judge.plan.jobs))]
    starts[job] = judge.plan.jobs[job].start_s + offset_s
    return min((case, replace(case, starts_s=tuple(starts))), key=judge.offer)
