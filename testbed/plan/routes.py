"""Which directions traffic takes: decided before anything is built, model and lab use what was decided.

Here are default routes, between datacenters; testbed/routing has policies that choose a route for each flow.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from testbed.errors import BadInput
from testbed.grouping import grouped
from testbed.plan.plan import Case, DefaultRoute, Network, Plan, Route
from testbed.spec.topology import Direction, Topology


def shortest(directions: Sequence[Direction], source: str, target: str) -> Route | None:
    """The route of least one-way delay; of equals the one with fewer links, then with the links listed first."""
    return shortest_from(directions, source).get(target)


def shortest_from(directions: Sequence[Direction], source: str) -> dict[str, Route]:
    """The routes that `shortest` finds from a datacenter to every other that can be reached (Dijkstra's algorithm)."""
    return _shortest_from(_leaving(directions), source)


def _leaving(directions: Sequence[Direction]) -> Mapping[str, Sequence[_Step]]:
    """Per place, the directions that leave it."""
    return grouped((one.source, (index, one.target, one.delay_s)) for index, one in enumerate(directions))


def _shortest_from(leaving: Mapping[str, Sequence[_Step]], source: str) -> dict[str, Route]:
    start: _Reached = (0.0, 0, ())
    queue: list[tuple[_Reached, str]] = [(start, source)]
    best = {source: start}
    found: dict[str, Route] = {}
    while queue:
        nearest, at = heapq.heappop(queue)
        if at in found:
            continue
        delay_s, links, found[at] = nearest
        for index, target, more_s in leaving.get(at, ()):
            known = best.get(target)
            if target in found or (known is not None and delay_s + more_s > known[0]):
                continue  # before a route is put together: in a mesh nearly all are longer
            further = (delay_s + more_s, links + 1, (*found[at], index))
            if known is None or further < known:
                best[target] = further
                heapq.heappush(queue, (further, target))
    return found


_Step = tuple[int, str, float]
"""Number of a direction, where it leads, its delay in seconds."""

_Reached = tuple[float, int, Route]
"""Delay in seconds, number of links, directions."""


def default_routes(topology: Topology) -> tuple[DefaultRoute, ...]:
    """Of every connected pair of different datacenters with nodes: as the topology's `routes` say, else `shortest`."""
    leaving, given = _leaving(topology.directions()), topology.given_routes()
    ends = [name for name, site in topology.datacenters.items() if site.nodes]
    found = []
    for source in ends:
        shortest = _shortest_from(leaving, source)
        for target in ends:
            route = given.get((source, target)) or shortest.get(target)
            if source != target and route is not None:
                found.append(DefaultRoute(source, target, route))
    return tuple(found)


def by_datacenters(network: Network) -> dict[tuple[str, str], Route]:
    """(source, target) -> default route; () inside a datacenter. A pair without one is left out."""
    datacenters = datacenters_of(network)
    return {(name, name): () for name in datacenters} | {
        (default.source, default.target): default.route for default in network.routes
    }


def datacenters_of(network: Network) -> tuple[str, ...]:
    """The datacenters in the order of the topology's file."""
    return tuple(dict.fromkeys(node.datacenter for node in network.nodes))


def datacenter_of(node: str) -> str:
    """The datacenter of a node."""
    return node.partition("/")[0]


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


def routes_of_ranks(plan: Plan, case: Case) -> dict[tuple[int, int], Route]:
    """(source rank, target rank) -> the route of their flows in a case."""
    return {(flow.source, flow.target): route for flow, route in zip(plan.flows, case.routes, strict=True)}


def nodes_of_ranks(plan: Plan) -> Mapping[int, str]:
    """The node of every rank of all jobs."""
    return {rank: node for job in plan.jobs for rank, node in zip(job.mesh.ranks, job.nodes, strict=True)}
