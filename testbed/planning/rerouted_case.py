"""A case on one choice of routes after another, predicted without being put together anew each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from testbed.model.rerouted import JobRoutes, ReroutedJobs, ReroutedRun
from testbed.pipeline.problem import Problem, Route
from testbed.plan.events import at_work
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.rank_routes import RankRoutes
from testbed.planning.prediction import loads_of_case

_Pair = tuple[int, int]


class _ReroutedFlow(NamedTuple):
    """A flow of the plan, as it is in a job."""

    pair: _Pair
    """Source and target among the ranks of a pipeline, or the members of a collective."""
    number: int
    """Of the flow in the plan: a case has a route for each."""
    card: Route
    """What it crosses before that."""


class ReroutedCase:
    """Predicts cases that are one case on other routes."""

    def __init__(self, plan: Plan, case: Case) -> None:
        """Of a case where `one_stands_for_all`. Raises BadInput for a job whose times only a run can tell."""
        loads, working = loads_of_case(plan, case), at_work(plan, case)
        self._jobs = ReroutedJobs(loads)
        numbers = {(flow.source, flow.target): number for number, flow in enumerate(plan.flows)}
        taken = RankRoutes(plan, case)
        self._flows = [
            _flows_of(plan.jobs[number], load.problem, numbers, taken)
            for number, load in zip(working, loads, strict=True)
        ]

    def run(self, case: Case) -> ReroutedRun:
        """What the event model says of the case on these routes, an iteration of every job at work in it."""

        def on(each: Sequence[Sequence[_ReroutedFlow]]) -> list[Mapping[_Pair, Route]]:
            return [{flow.pair: flow.card + case.routes[flow.number] for flow in flows} for flows in each]

        return self._jobs.run([JobRoutes(*map(on, of_job)) for of_job in self._flows])


def _flows_of(
    job: Job, problem: Problem, numbers: Mapping[_Pair, int], taken: RankRoutes
) -> tuple[list[list[_ReroutedFlow]], ...]:
    """Those of every pipeline of a job, of the all-gather of every stage, and of its reduction."""
    mesh = job.mesh
    members = list(product(range(mesh.dp), range(mesh.tp)))
    pipelines = [[mesh.pipeline(*of)[rank] for rank in range(mesh.pp)] for of in members]
    stages = [[mesh.rank(replica, rank, tensor) for replica, tensor in members] for rank in problem.stage_to_rank]

    def of(ranks: Sequence[int]) -> list[_ReroutedFlow]:
        return [
            _ReroutedFlow((a, b), numbers[source, target], taken.card(source))
            for (a, source), (b, target) in product(enumerate(ranks), repeat=2)
            if (source, target) in numbers
        ]

    within, between = list(map(of, pipelines)), list(map(of, stages))
    return within, between[: len(problem.all_gather)], between[: len(problem.reductions)]
