"""`interleave`: jobs begin a little later than each other, so that one sends while another one computes.

Ours. Training is periodic: what a job sends comes in bursts, at the same moments of every iteration. Two jobs whose
bursts meet on a link slow each other down in every iteration; an offset between their starts that is kept can end that
without any other route. How long each job takes from its own start is predicted by the event model, for an iteration of
all jobs. No two jobs are moved against each other by more than a share of the shortest job's iteration: with a large
offset they would no longer meet, which no training that goes on is helped by. Which job begins later is searched, too,
so that the order in which jobs are named decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from testbed.errors import BadInput
from testbed.plan.plan import Case, Plan
from testbed.planning.prediction import start_s
from testbed.routing.apply import demands, on_routes
from testbed.routing.case_evaluator import CaseEvaluator, Key
from testbed.routing.planner import PlannedCases, Planner, PlannerInput, Reach
from testbed.routing.policies import choose, route
from testbed.search.incumbent import TimeLimit
from testbed.units import show_time

ShareOption = Annotated[float, Field(gt=0, le=1)]
StepsOption = Annotated[int, Field(ge=1, le=1000)]

_MOST_EVALUATIONS = 100_000
_ROUNDS = 4
"""Offsets, then routes for these offsets, so many times at most."""

_FINER = 5
"""How often the steps are halved around the best offsets."""

_FOLLOWED = 8
"""So many of the best places of the steps that are no worse than their neighbours are looked at more closely: what lies
between two steps is up to a step shorter, and the fourth best has been the way to the best."""

_DRAWN = 4
"""With more than two jobs, so many beginnings by chance beside all at once."""


def interleave(
    task: PlannerInput,
    within: ShareOption = 0.25,
    steps: StepsOption = 16,
    routes: str = "greedy-time",
    time_limit_s: TimeLimit = 120.0,
) -> PlannedCases:
    """Every case with offsets between its jobs, on routes that the policy `routes` chooses for these offsets.

    Two jobs are at most `within` of the shortest job's iteration alone apart, either of them first; that is looked for
    at `steps` places to either side, then between them. A case is never predicted to be slower than it is on these
    routes without offsets.
    """
    on_chosen, cases, remarks = routes_by("interleave", routes), [], []
    for case in task.plan.cases:
        plan = replace(task.plan, cases=(case,))
        judge = CaseEvaluator(plan, _MOST_EVALUATIONS, time_limit_s, ("interleave", task.watch))

        best = base = on_chosen(plan, case, task.reach)
        with judge.incumbent.until_interrupted():
            for _ in range(_ROUNDS):
                before = judge.offer(best)
                best = better_starts(judge, best, within, steps)
                best = min((best, on_chosen(judge.plan, best, task.reach)), key=judge.offer)
                if judge.offer(best) >= before:
                    break
        cases.append(best)
        later = ", ".join(show_time(start_s(plan, best, job)) for job in range(len(plan.jobs)))
        if len(plan.jobs) < 2:
            remarks.append(f"{case.label}: one job alone has nothing to begin later than: only its routes are chosen")
            continue
        gain = 1 - judge.offer(best)[0] / judge.offer(base)[0]
        remarks.append(f"{case.label}: jobs begin at {later}: {gain:.2%} less for the worst one than all at once")
    return PlannedCases(task.plan.flows, tuple(cases), tuple(remarks))


PLANNER = Planner(interleave)


def routes_by(planner: str, policy: str) -> Callable[[Plan, Case, Reach], Case]:
    """A case on the routes that a policy chooses, which is the planner's option `routes`. Raises BadInput."""
    chosen = choose(policy)
    if isinstance(chosen.policy, Planner):
        raise BadInput.of("--policy", f"{planner},routes", policy, "a policy that chooses routes alone")

    def routed(plan: Plan, case: Case, reach: Reach) -> Case:
        wanted = demands(plan, case, reach)
        return on_routes(plan, case, wanted, route(chosen, wanted.problem).choice.tolist())

    return routed


def better_starts(judge: CaseEvaluator, case: Case, within: float, steps: int) -> Case:
    """The case with the best offsets found, one job after the other while the others are where they are.

    With more than two jobs also from offsets drawn at random (always the same): one job at a time may find nothing.
    """
    jobs = judge.plan.jobs
    # the same order and the same draws, however the jobs were listed
    by_name = sorted(range(len(jobs)), key=lambda job: jobs[job].name)
    if len(jobs) < 2:
        return case
    bound_s = within * min(judge.baseline_s)
    draw, found = np.random.default_rng(1), [_one_by_one(judge, case, by_name, bound_s, steps)]
    for _ in range(_DRAWN if len(jobs) > 2 else 0):
        offsets = dict(zip(by_name, (draw.random(len(jobs)) * bound_s).tolist(), strict=True))
        drawn = with_starts(case, [offsets[job] for job in range(len(jobs))])
        if not judge.over():
            found.append(_one_by_one(judge, drawn, by_name, bound_s, steps))
    return min((case, *found), key=judge.offer)


def _one_by_one(judge: CaseEvaluator, case: Case, order: Sequence[int], bound_s: float, steps: int) -> Case:
    """The best offset of one job after the other, until none is better."""
    key = judge.offer(case)
    # of two jobs, moving either one is the same
    for _ in range(_ROUNDS if len(order) > 2 else 1):
        for job in order[1:]:
            case = _moved(judge, case, job, bound_s, steps)
        if len(order) > 2:
            case = _moved(judge, case, order[0], bound_s, steps)
        if judge.offer(case) >= key:
            break
        key = judge.offer(case)
    return case


def _moved(judge: CaseEvaluator, case: Case, job: int, bound_s: float, steps: int) -> Case:
    """The case with the best offset of one job: at every step, then closer around the best of them."""
    starts_s = [start_s(judge.plan, case, number) for number in range(len(judge.plan.jobs))]
    now_s, others_s = starts_s[job], starts_s[:job] + starts_s[job + 1 :]
    # a job that begins further from the others by itself may stay where it is, and come nearer
    least = min(max(others_s) - bound_s, now_s)
    most = max(min(others_s) + bound_s, now_s)

    def at(begin_s: float) -> Case:
        return with_starts(case, [*starts_s[:job], begin_s, *starts_s[job + 1 :]])

    def worth(begin_s: float) -> tuple[Key, float]:
        # nothing new is judged when it is over
        return (judge.offer(at(begin_s)) if not judge.over() else (math.inf,)), abs(begin_s - now_s)

    grid = sorted({now_s, *(least + (most - least) * step / (2 * steps) for step in range(2 * steps + 1))})
    found = [(worth(begin_s), begin_s) for begin_s in grid]
    valleys = [
        tried
        for place, tried in enumerate(found)
        if all(tried[0][0] <= beside[0][0] for beside in found[max(0, place - 1) : place + 2])
    ]
    for _, near in sorted(valleys)[:_FOLLOWED]:
        step_s, best = (most - least) / (2 * steps), (worth(near), near)
        for _ in range(_FINER):
            step_s /= 2
            around = (begin_s for begin_s in (best[1] - step_s, best[1] + step_s) if least <= begin_s <= most)
            best = min(best, *((worth(begin_s), begin_s) for begin_s in around))
        found.append(best)
    return min((case, at(min(found)[1])), key=judge.offer)


def with_starts(case: Case, starts_s: Sequence[float]) -> Case:
    """The case with its jobs so far from each other; as only differences count, the first of them begins at 0."""
    first = min(starts_s)
    return replace(case, starts_s=tuple(begin_s - first for begin_s in starts_s))
