"""`interleave`: jobs begin a little later than each other, so that one sends while another one computes.

Ours. Training is periodic: what a job sends comes in bursts, at the same moments of every iteration. Two jobs whose
bursts meet on a link slow each other down in every iteration; an offset between their starts that is kept can end that
without any other route. How long each job takes from its own start is predicted by the event model, for an iteration of
all jobs. No two jobs are moved against each other by more than a share of the shortest job's iteration: with a large
offset they would no longer meet, which no training that goes on is helped by. Which job begins later is searched, too,
so that the order in which jobs are named decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from testbed.errors import BadInput
from testbed.plan.events import starts_of
from testbed.plan.plan import Case, Plan
from testbed.planning.prediction import start_s
from testbed.routing.apply import demands, on_routes
from testbed.routing.case_evaluator import CaseEvaluator, Key
from testbed.routing.planner import PlannedCases, Planner, PlannerInput, Reach
from testbed.routing.policies import choose, route
from testbed.routing.start_search import Starts, StartSearch, best_starts, normalised
from testbed.search.incumbent import TimeLimit
from testbed.units import show_time

ShareOption = Annotated[float, Field(gt=0, le=1)]
StepsOption = Annotated[int, Field(ge=1, le=1000)]

_MOST_EVALUATIONS = 100_000
_ROUNDS = 4
"""Offsets, then routes for these offsets, so many times at most."""


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
        best = base = on_chosen(plan, case, task.reach)
        judge = CaseEvaluator(plan, _MOST_EVALUATIONS, time_limit_s, ("interleave", task.watch), begin=base)

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
    """The case with the best offsets found, of jobs that are `within` of the shortest iteration alone apart."""
    jobs, begin = judge.plan.jobs, starts_of(judge.plan, case)
    # the same order and the same draws, however the jobs were listed
    by_name = sorted(range(len(jobs)), key=lambda job: jobs[job].name)
    known = {begin: case}

    def offer(starts_s: Starts) -> Key:
        return judge.offer(known.setdefault(starts_s, replace(case, starts_s=starts_s)))

    found = best_starts(StartSearch(offer, judge.over, by_name, within * min(judge.baseline_s), steps), begin)
    return known[found]


def with_starts(case: Case, starts_s: Sequence[float]) -> Case:
    """The case with its jobs so far from each other; as only differences count, the first of them begins at 0."""
    return replace(case, starts_s=normalised(starts_s))
