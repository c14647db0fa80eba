"""Policies and plans: what a case has to route, and the plan whose cases take the routes that policies chose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

import numpy as np

from testbed.plan import routes
from testbed.plan.background import background_bps
from testbed.plan.network_state import network_at, planned
from testbed.plan.plan import Case, Flow, Framing, Plan, Route
from testbed.planning.resolve import framing_of
from testbed.routing.candidates import DirectionsByPlace
from testbed.routing.demand import Commodity, commodities
from testbed.routing.planner import DETOUR, USUAL_REACH, PlannedCases, Planner, PlannerInput, Reach
from testbed.routing.policies import PolicyChoice, plan_with, policies_once, route
from testbed.routing.routing_problem import RoutingProblem, routing_problem
from testbed.search.incumbent import Watch


class Demands(NamedTuple):
    """What is to be routed in a case, and what is not."""

    elephants: tuple[Commodity, ...]
    mice: tuple[Commodity, ...]
    problem: RoutingProblem
    """Of the elephants, in their order."""


def demands(plan: Plan, case: Case, reach: Reach = USUAL_REACH) -> Demands:
    """What the jobs of a case send, and the routes that it may take, with the rates that background traffic leaves.
    Raises BadInput for a job without pacing."""
    found = commodities(plan, case)
    large = tuple(flow for flow in found if flow.wire_bytes >= reach.elephants_from)
    small = tuple(flow for flow in found if flow.wire_bytes < reach.elephants_from)
    network = network_at(plan, case)
    problem = routing_problem(network, large, reach.detour)
    if plan.background:
        problem = replace(problem, rate_bps=problem.rate_bps - np.array(background_bps(plan, network)))
    return Demands(large, small, problem)


def on_routes(plan: Plan, case: Case, wanted: Demands, choice: Sequence[int]) -> Case:
    """The case with the chosen routes, a candidate's number per elephant; all other flows keep theirs."""
    nodes = routes.nodes_of_ranks(plan)
    over = {
        (elephant.source, elephant.target): wanted.problem.routes_of(flow)[int(choice[flow])]
        for flow, elephant in enumerate(wanted.elephants)
    }
    ends = [(nodes[flow.source], nodes[flow.target]) for flow in plan.flows]
    return replace(case, routes=tuple(over.get(pair, default) for pair, default in zip(ends, case.routes, strict=True)))


def taken(plan: Plan, case: Case, wanted: Demands) -> tuple[int, ...]:
    """The other way round: per elephant, the number of the candidate that it takes in a case."""
    route_of = routes.routes_of_nodes(plan, case)
    return tuple(
        wanted.problem.routes_of(number).index(route_of[flow.source, flow.target])
        for number, flow in enumerate(wanted.elephants)
    )


def framing_for(plan: Plan, detour: int) -> Framing:
    """The framing towards every route that ranks of one job might take: the same, whatever is chosen of them.

    So that what is predicted of one choice does not depend on which others are in the same plan.
    """
    reachable = [(source, taken) for (source, _), candidates in _possible(plan, detour) for taken in candidates]
    return framing_of(plan.network, reachable)


def has_choice(plan: Plan) -> bool:
    """Whether ranks of one job have several routes to each other."""
    return any(len(candidates) > 1 for _, candidates in _possible(plan, DETOUR))


def _possible(plan: Plan, detour: int) -> Iterator[tuple[tuple[str, str], tuple[Route, ...]]]:
    """Pairs of places between which a job may send, with the routes that a policy may choose from."""
    network = planned(plan.network)
    candidates, default = DirectionsByPlace(network), network.routes
    pairs = {pair for job in plan.jobs for pair in permutations(dict.fromkeys(map(routes.datacenter_of, job.nodes)), 2)}
    for pair in sorted(pairs & default.keys()):
        yield pair, candidates.between(*pair, default[pair], detour)


def with_flows(plan: Plan, case: Case, own: Sequence[Flow], flows: Sequence[Flow]) -> Case:
    """A case with routes for its `own` flows, as one with routes for `flows`.

    What it has no route for goes as everything else between the same nodes, else by the default route.
    """
    nodes, default_route = routes.nodes_of_ranks(plan), planned(plan.network).default_route
    known = {(nodes[flow.source], nodes[flow.target]): taken for flow, taken in zip(own, case.routes, strict=True)}
    ends = [(nodes[flow.source], nodes[flow.target]) for flow in flows]
    return replace(case, routes=tuple(known[pair] if pair in known else default_route(*pair) for pair in ends))


def with_policies(
    plan: Plan, policies: Sequence[PolicyChoice], reach: Reach = USUAL_REACH, watch: Watch | None = None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan whose cases are those of `plan` under each policy, policy by policy, and the policies' remarks.

    A planner makes the cases that it likes. Demands of policies are those on the routes that the cases had. With
    several policies labels name both, as in "1f1b on greedy". Raises as `demands` and `route`, and BadInput for a
    policy that is there twice.
    """
    plan = replace(plan, framing=framing_for(plan, reach.detour))
    made = [
        plan_with(chosen, PlannerInput(plan, reach, watch))
        if isinstance(chosen.policy, Planner)
        else _routed(plan, chosen, reach)
        for chosen in policies_once(policies)
    ]
    flows = tuple(dict.fromkeys(flow for planned_cases in made for flow in planned_cases.flows))
    cases, remarks = [], []
    for chosen, planned_cases in zip(policies, made, strict=True):
        for case in planned_cases.cases:
            label = f"{case.label} on {chosen.words}" if len(policies) > 1 else case.label
            cases.append(replace(with_flows(plan, case, planned_cases.flows, flows), label=label))
        remarks += [f"{chosen.label}: {remark}" for remark in planned_cases.remarks]
    plan = replace(plan, flows=flows, cases=tuple(cases), elephants_from=reach.elephants_from)
    return plan, tuple(remarks)


def _routed(plan: Plan, chosen: PolicyChoice, reach: Reach) -> PlannedCases:
    """Every case of a plan on the routes of a policy that chooses routes alone."""
    cases, remarks = [], []
    for case in plan.cases:
        wanted = demands(plan, case, reach)
        made = route(chosen, wanted.problem)
        cases.append(on_routes(plan, case, wanted, made.choice.tolist()))
        if made.remark:
            remarks.append(f"{case.label}: {made.remark}")
    return PlannedCases(plan.flows, tuple(cases), tuple(remarks))
