"""Policies and plans: what a case has to route, and the plan whose cases take the routes that a policy chose."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from testbed.plan import routes
from testbed.plan.plan import Case, Framing, Plan, Route
from testbed.plan.resolve import framing_of
from testbed.routing.demand import Commodity, commodities
from testbed.routing.problem import RoutingProblem, routing_problem
from testbed.routing.registry import Chosen, Routed, route

ELEPHANT_BYTES = 1e6
"""Of an iteration: what sends less keeps to its default route. Our choice; the paper's threshold is not known to us."""

DETOUR = 1
"""Links that a route may have more than the shortest one: all spines of a Clos, two links instead of one in a mesh."""


class Demands(NamedTuple):
    """What is to be routed in a case, and what is not."""

    elephants: tuple[Commodity, ...]
    mice: tuple[Commodity, ...]
    problem: RoutingProblem
    """Of the elephants, in their order."""


class OnRoutes(NamedTuple):
    """A case on the routes that a policy chose."""

    case: Case
    framing: Framing
    """Of a plan with this case alone: how long super-packets may be depends on what they cross."""
    taken: tuple[tuple[str, Route], ...]
    """Per flow of the plan, the datacenter that it leaves and its route."""


def demands(plan: Plan, case: Case, *, elephants_from: float = ELEPHANT_BYTES, detour: int = DETOUR) -> Demands:
    """What the jobs of a case send, and the routes that it may take. Raises BadInput for a job without pacing."""
    found = commodities(plan, case)
    large = tuple(one for one in found if one.wire_bytes >= elephants_from)
    small = tuple(one for one in found if one.wire_bytes < elephants_from)
    return Demands(large, small, routing_problem(plan.network, large, detour))


def on_routes(plan: Plan, case: Case, wanted: Demands, made: Routed) -> OnRoutes:
    """The case with the chosen routes; flows that were not to be routed keep theirs."""
    nodes = routes.nodes_of_ranks(plan)
    over = {
        (one.source, one.target): wanted.problem.routes_of(flow)[int(made.choice[flow])]
        for flow, one in enumerate(wanted.elephants)
    }
    ends = [(nodes[flow.source], nodes[flow.target]) for flow in plan.flows]
    ways = tuple(over.get(pair, usual) for pair, usual in zip(ends, case.routes, strict=True))
    taken = tuple((routes.datacenter_of(source), way) for (source, _), way in zip(ends, ways, strict=True))
    return OnRoutes(replace(case, routes=ways), framing_of(plan.network, taken), taken)


def with_policy(
    plan: Plan, chosen: Chosen, *, elephants_from: float = ELEPHANT_BYTES, detour: int = DETOUR
) -> tuple[Plan, tuple[str, ...]]:
    """The plan in which every case takes the routes that a policy chooses for it, and the policy's remarks.

    Schedules stay what they are; demands are those on the routes that the cases had. Raises as `demands` and `route`.
    """
    routed: list[OnRoutes] = []
    remarks = []
    for case in plan.cases:
        wanted = demands(plan, case, elephants_from=elephants_from, detour=detour)
        made = route(chosen, wanted.problem)
        routed.append(on_routes(plan, case, wanted, made))
        if made.remark:
            remarks.append(f"{chosen.label}: {case.label}: {made.remark}")
    framing = framing_of(plan.network, [one for each in routed for one in each.taken])
    return replace(plan, cases=tuple(one.case for one in routed), framing=framing), tuple(remarks)
