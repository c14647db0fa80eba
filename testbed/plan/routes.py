"""Which directions traffic takes: policies decide before anything is built, model and lab use what they decided."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

from testbed.errors import BadInput
from testbed.plan.plan import Case, DefaultRoute, Network, Plan, Route
from testbed.spec.topology import Direction, Topology

Policy = Callable[[Sequence[Direction], str, str], Route | None]
"""(directions, source datacenter, target datacenter) -> route; None where no way exists."""


def shortest(directions: Sequence[Direction], source: str, target: str) -> Route | None:
    """The way of least one-way delay; of equals the one with fewer links, then with the links listed first."""
    queue: list[tuple[float, int, Route, str]] = [(0.0, 0, (), source)]
    known: set[str] = set()
    while queue:
        delay_s, links, route, at = heapq.heappop(queue)
        if at == target:
            return route
        if at in known:
            continue
        known.add(at)
        for index, direction in enumerate(directions):
            if direction.source == at and direction.target not in known:
                further = (delay_s + direction.delay_s, links + 1, (*route, index), direction.target)
                heapq.heappush(queue, further)
    return None


POLICIES: dict[str, Policy] = {"shortest": shortest}
"""By name."""


def default_routes(topology: Topology, policy: str = "shortest") -> tuple[DefaultRoute, ...]:
    """Of every connected pair of different datacenters: as `routes` of the topology says, else by the policy."""
    directions = topology.directions()
    given = {
        (route.source, route.target): topology.given_route(number, route)
        for number, route in enumerate(topology.routes)
    }
    found = []
    for source in topology.datacenters:
        for target in topology.datacenters:
            if source == target:
                continue
            route = given.get((source, target)) or POLICIES[policy](directions, source, target)
            if route is not None:
                found.append(DefaultRoute(source, target, route))
    return tuple(found)


def by_datacenters(network: Network) -> dict[tuple[str, str], Route]:
    """(source, target) -> default route; () inside a datacenter. A pair without a way is left out."""
    datacenters = datacenters_of(network)
    return {(name, name): () for name in datacenters} | {(one.source, one.target): one.route for one in network.routes}


def all_directions(network: Network) -> tuple[Direction, ...]:
    """What messages may cross, by number: the directions of links, then network cards."""
    return network.directions + network.cards


def card_routes(network: Network) -> dict[str, Route]:
    """Per node, its network card as the beginning of a route; a node without one is left out."""
    first = len(network.directions)
    return {card.source: (first + number,) for number, card in enumerate(network.cards)}


def datacenters_of(network: Network) -> tuple[str, ...]:
    """The datacenters in the order of the topology's file."""
    return tuple(dict.fromkeys(node.datacenter for node in network.nodes))


def datacenter_of(node: str) -> str:
    """The datacenter of a node."""
    return node.partition("/")[0]


def between(network: Network, source: str, target: str) -> Route:
    """The default route between two nodes. Raises BadInput when there is no way."""
    pair = datacenter_of(source), datacenter_of(target)
    route = by_datacenters(network).get(pair)
    if route is None:
        raise BadInput.of(network.name, "links", f"no path {pair[0]} -> {pair[1]}", "connected datacenters")
    return route


def routes_of_nodes(plan: Plan, case: Case) -> dict[tuple[str, str], Route]:
    """(source node, target node) -> the route of the flows between them in a case.

    Raises BadInput when flows between the same two nodes have different routes: a lab routes by addresses.
    """
    nodes = nodes_of_ranks(plan)
    found: dict[tuple[str, str], Route] = {}
    for flow, route in zip(plan.flows, case.routes, strict=True):
        pair = nodes[flow.source], nodes[flow.target]
        if found.setdefault(pair, route) != route:
            raise BadInput.of(
                f"case {case.label}", "routes", f"{found[pair]} and {route} from {pair[0]} to {pair[1]}", "one route"
            )
    return found


def nodes_of_ranks(plan: Plan) -> Mapping[int, str]:
    """The node of every rank of all jobs."""
    return dict(_nodes_of_ranks(plan))


def _nodes_of_ranks(plan: Plan) -> Iterator[tuple[int, str]]:
    for job in plan.jobs:
        yield from zip(job.mesh.ranks, job.nodes, strict=True)
