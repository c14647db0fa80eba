"""`joint`: routes and pipeline schedules of all jobs chosen together, by what the event model says of their iterations.

Ours. A schedule hides some delays and not others, and routes decide which delays there are; so either choice depends on
the other one. The search begins from every policy with the schedules that were asked for, and from every schedule on
the default routes: its result is predicted to be no slower than any of these. Then routes and schedules take turns
(a flow's route; a job's schedule, made anew for the routes where its family looks at them) until nothing is better, and
from the best again with some routes drawn anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from testbed.errors import DoesNotFit, RunFailed
from testbed.full_scale.similitude_bound import ideal
from testbed.plan import costs, routes
from testbed.plan.plan import Case, JobSchedule, Plan, Route
from testbed.planning.resolve import Combination, with_combinations
from testbed.planning.schedules import candidates, every_choice, with_options
from testbed.routing.apply import demands, on_routes, with_flows
from testbed.routing.case_evaluator import CaseEvaluator, EvaluationLimit, Key
from testbed.routing.interleave import better_starts
from testbed.routing.planner import PlannedCases, Planner, PlannerInput
from testbed.routing.policies import POLICIES, PolicyChoice, route
from testbed.schedule.registry import Generated, family_of, generate_choice
from testbed.search.incumbent import TimeLimit
from testbed.spec.choice import ScheduleChoice
from testbed.units import show_time

ECMP_SEEDS = range(1, 21)
_LIMITED = {"time_limit_s": 5.0, "most": 20_000}
"""Options of exact policies, where they have such: what takes them longer is not asked of them."""

_SEARCHED = {"evaluations": 60}
"""Options of the searching families, where the workload does not list them: a fixed effort, so that it can be repeated,
and a small one, since they are asked for many routes."""

_OFFSETS = 16
"""Of a job's start, within what is allowed."""

_STARTS = 3
"""So many of the best beginnings are followed."""

_DRAWN = 3
"""Flows whose routes are drawn anew when nothing more is found, and one more each time that nothing comes of it."""

_IN_VAIN = 8
"""So often in a row nothing comes of that which is not known: there are no more choices."""


def joint(
    task: PlannerInput,
    evaluations: EvaluationLimit = 1500,
    time_limit_s: TimeLimit = 120.0,
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1,
    within: Annotated[float, Field(ge=0, le=1)] = 0.0,
    schedules: bool = True,
) -> PlannedCases:
    """One case: the best schedules and routes found within `evaluations` of the event model.

    What the search begins from is judged in any case, and counts: with fewer evaluations than that it ends there.

    Above 0, `within` allows offsets between the jobs' starts as well, up to this share of the shortest iteration.
    Without `schedules` every job keeps one of those that were asked for: routes alone are searched.

    Jobs are compared worst first, each by its iteration beside the others over what it takes alone in the plan's first
    case. The same seed gives the same case unless `time_limit_s` wall seconds or Ctrl-C ended the search, or an exact
    policy did not finish in its 5 wall seconds.
    """
    found = [_choices(task.plan, job) if schedules else {} for job in range(len(task.plan.jobs))]
    search = _JointSearch(task, found, (evaluations, time_limit_s), seed, within)
    with search.judge.incumbent.until_interrupted():
        search.run()
    return PlannedCases(search.plan.flows, (search.named(),), (search.remark(),))


PLANNER = Planner(joint)


class _JointSearch:
    """What the steps share."""

    def __init__(
        self,
        task: PlannerInput,
        choices: Sequence[dict[str, ScheduleChoice]],
        limits: tuple[int, float],
        seed: int,
        within: float,
    ) -> None:
        """`choices` are those of every job by label; `limits` evaluations and wall seconds."""
        self.reach, self.within, self.choices = task.reach, within, choices
        self.made = [_made(task, mine, job) for job, mine in enumerate(choices)]
        self.plan = _with_all_flows(task.plan, self.made)
        self.judge = CaseEvaluator(self.plan, *limits, ("joint", task.watch))
        self.random = np.random.default_rng(seed)
        self.on_routes: dict[tuple[object, ...], JobSchedule | None] = {}
        """Schedules made for routes, by job, choice and its routes."""
        self.fixed_key: Key = self.judge.best_key
        self.default_key: Key = self.judge.best_key

    def run(self) -> None:
        """All of it. KeyboardInterrupt leaves the best so far in the judge."""
        begins = [(self.judge.offer(case), number, case) for number, case in enumerate(self._beginnings())]
        begins.sort(key=lambda begin: begin[:2])
        for _, _, case in begins[:_STARTS]:
            self._descend(case)
        in_vain = 0
        while not self.judge.over() and in_vain < _IN_VAIN:
            before = self.judge.judged
            # the wider, the less comes of it; not from the policies again, which would be better than what is drawn
            self._descend(self._drawn(self.judge.best, _DRAWN + in_vain), policies=False)
            in_vain = in_vain + 1 if self.judge.judged == before else 0

    # --- where to begin ------------------------------------------------------------------------

    def _beginnings(self) -> Iterator[Case]:
        """Every policy with the schedules that were asked for; every schedule on the default routes."""
        for case in self.plan.cases:
            for routed in self._by_policies(case, every=True):
                self.fixed_key = min(self.fixed_key, self.judge.offer(routed))
                yield routed
        for case in self.plan.cases:
            for scheduled in self._by_schedules(case):
                self.default_key = min(self.default_key, self.judge.offer(scheduled))
                yield scheduled

    def _by_policies(self, case: Case, *, every: bool) -> Iterator[Case]:
        """The routes that policies choose for a case; of all, or of those that take next to no time."""
        wanted = demands(self.plan, case, self.reach)
        for chosen in _policies(every=every):
            try:
                made = route(chosen, wanted.problem)
            except (DoesNotFit, RunFailed):  # made for other networks, or for fewer flows; its time was over
                continue
            yield on_routes(self.plan, case, wanted, made.choice.tolist())

    def _by_schedules(self, case: Case) -> Iterator[Case]:
        """Every family for one job, and for all jobs that have room for it."""
        for job, mine in enumerate(self.made):
            for schedule in mine.values():
                yield _with_schedule(case, job, schedule)
        for label in self.made[0] if len(self.made) > 1 else ():
            if all(label in mine for mine in self.made):
                yield replace(case, jobs=tuple(mine[label] for mine in self.made))

    def _drawn(self, case: Case, count: int) -> Case:
        """The case with the routes of so many flows by chance."""
        wanted = demands(self.plan, case, self.reach)
        free = np.flatnonzero(wanted.problem.choices > 1)
        route_of = routes.routes_of_nodes(self.plan, case)
        for flow in self.random.choice(free, min(count, len(free)), replace=False).tolist():
            ends = wanted.elephants[flow].source, wanted.elephants[flow].target
            route_of[ends] = wanted.problem.routes_of(flow)[int(self.random.integers(wanted.problem.choices[flow]))]
        return _on(self.plan, case, route_of)

    # --- taking turns --------------------------------------------------------------------------

    def _descend(self, case: Case, *, policies: bool = True) -> None:
        """Better routes, then better schedules, until neither is found; with `policies` also by the greedy ones."""
        key = self.judge.offer(case)
        while not self.judge.over():
            case = self._better_schedules(self._better_routes(case, policies=policies))
            if self.within:
                case = better_starts(self.judge, case, self.within, _OFFSETS)
            found = self.judge.offer(case)
            if found >= key:
                return
            key = found

    def _better_routes(self, case: Case, *, policies: bool) -> Case:
        """One flow after the other, those with the most bytes first, on the best of its routes."""
        wanted = demands(self.plan, case, self.reach)
        if policies:
            case = min((case, *self._by_policies(case, every=False)), key=self.judge.offer)
        order = np.argsort(-wanted.problem.wire_bytes, kind="stable").tolist()
        for flow in order:
            elephant = wanted.elephants[flow]
            for candidate in wanted.problem.routes_of(flow):
                if self.judge.over():
                    return case
                route_of = routes.routes_of_nodes(self.plan, case)
                route_of[elephant.source, elephant.target] = candidate
                case = min((case, _on(self.plan, case, route_of)), key=self.judge.offer)
        return case

    def _better_schedules(self, case: Case) -> Case:
        """One job after the other, each with the best of all families on these routes."""
        for job, mine in enumerate(self.made):
            for label, choice in self.choices[job].items():
                if self.judge.over():
                    return case
                for schedule in (mine.get(label), self._for_routes(case, job, choice)):
                    if schedule is not None:
                        case = min((case, _with_schedule(case, job, schedule)), key=self.judge.offer)
        return case

    def _for_routes(self, case: Case, job: int, choice: ScheduleChoice) -> JobSchedule | None:
        """What a family that looks at links makes for the routes of a case; None where it does not, or cannot."""
        if not family_of(choice).uses_spare_memory:
            return None
        ranks = self.plan.jobs[job].mesh.ranks
        mine = tuple(route for flow, route in zip(self.plan.flows, case.routes, strict=True) if flow.source in ranks)
        mark = job, choice.label, mine
        if mark not in self.on_routes:
            self.on_routes[mark] = _generated(self.plan, case, job, choice)
        return self.on_routes[mark]

    # --- what came of it -----------------------------------------------------------------------

    def named(self) -> Case:
        """The best case, called by its schedules."""
        best = self.judge.best
        return replace(best, label=" + ".join(dict.fromkeys(job.choice.label for job in best.jobs)))

    def remark(self) -> str:
        """How it was found, and against what."""
        best, judge = self.judge.best, self.judge
        baseline = routes.routes_of_nodes(self.plan, self.plan.cases[0])
        moved = sum(route != baseline[pair] for pair, route in routes.routes_of_nodes(self.plan, best).items())
        jobs = zip(self.plan.jobs, best.jobs, judge.seconds(best), strict=True)
        predicted = ", ".join(
            f"{job.name} {show_time(took)} with {schedule.choice.label}" for job, schedule, took in jobs
        )
        fixed, default = (1 - judge.best_key[0] / key[0] for key in (self.fixed_key, self.default_key))
        return (
            f"predicted are {predicted}; {moved} pairs of nodes leave their default routes. The worst job "
            f"takes {fixed:.2%} less than with the schedules asked for under the best policy, {default:.2%} less than "
            f"with the best schedules on default routes ({judge.judged} cases judged)"
        )


def _choices(plan: Plan, job: int) -> dict[str, ScheduleChoice]:
    """By label, the schedules that a job may get: its own and all quick families."""
    found = {}
    for choice in every_choice(plan, job=job):
        listed = choice in plan.jobs[job].workload.schedules
        found[choice.label] = choice if listed else with_options(choice, _SEARCHED)
    return found


def _made(task: PlannerInput, choices: dict[str, ScheduleChoice], job: int) -> dict[str, JobSchedule]:
    """By label, a job's schedules on the default routes, of those that fit."""
    found = candidates(task.plan, list(choices.values()), task.watch, job=job, judge=False).found
    return {
        predicted.choice.label: _scheduled(task.plan, job, predicted.choice, predicted.generated) for predicted in found
    }


def _scheduled(plan: Plan, job: int, choice: ScheduleChoice, made: Generated) -> JobSchedule:
    stages = costs.stages_of(plan.jobs[job], choice)
    return JobSchedule(choice, stages, made.schedule.rows, made.proof, made.remarks)


def _generated(plan: Plan, case: Case, job: int, choice: ScheduleChoice) -> JobSchedule | None:
    try:
        blank = JobSchedule(choice, costs.stages_of(plan.jobs[job], choice), None, None)
        problem = costs.problem_of_case(plan, _with_schedule(case, job, blank), job=job)
        return _scheduled(plan, job, choice, generate_choice(choice, ideal(plan, plan.jobs[job], problem)))
    except DoesNotFit:
        return None


def _with_all_flows(plan: Plan, made: Sequence[dict[str, JobSchedule]]) -> Plan:
    """The plan with the flows of all these schedules; its cases take the default routes for those that they lack."""
    most = max(map(len, made))
    each = [list(mine.values()) or [job] for mine, job in zip(made, plan.cases[0].jobs, strict=True)]
    combined = [
        Combination(str(number), tuple(mine[min(number, len(mine) - 1)].choice for mine in each))
        for number in range(most)
    ]
    others = with_combinations(plan, combined, [{} for _ in plan.jobs]).flows
    flows = tuple(dict.fromkeys((*plan.flows, *others)))
    return replace(plan, flows=flows, cases=tuple(with_flows(plan, case, plan.flows, flows) for case in plan.cases))


def _policies(*, every: bool) -> Iterator[PolicyChoice]:
    """Registered policies that choose routes alone, with every seed of `ecmp`; or only the greedy ones."""
    for name in POLICIES:
        if not every and not name.startswith("greedy"):
            continue
        policy = POLICIES[name]
        if isinstance(policy, Planner):
            continue
        chosen = PolicyChoice(name, policy)
        chosen = replace(chosen, options={key: value for key, value in _LIMITED.items() if chosen.takes(key)})
        yield from (chosen.with_seed(seed) for seed in ECMP_SEEDS) if name == "ecmp" else (chosen,)


def _with_schedule(case: Case, job: int, schedule: JobSchedule) -> Case:
    return replace(case, jobs=(*case.jobs[:job], schedule, *case.jobs[job + 1 :]))


def _on(plan: Plan, case: Case, route_of: dict[tuple[str, str], Route]) -> Case:
    nodes = routes.nodes_of_ranks(plan)
    return replace(case, routes=tuple(route_of[nodes[flow.source], nodes[flow.target]] for flow in plan.flows))
