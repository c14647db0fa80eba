"""A network without some of its switches and links: what is left of it, and which of its routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.errors import BadInput, listed
from testbed.plan.plan import DefaultRoute, Network, Route
from testbed.plan.routes import by_datacenters, datacenters_of, shortest_from


class Left(NamedTuple):
    """What is left of a network."""

    network: Network
    """Lost directions are not in it, so those behind them have other numbers; what has no way any more, no route."""
    numbers: tuple[int, ...]
    """Of every direction that is left, its number in the whole network."""

    def in_whole(self, route: Sequence[int]) -> Route:
        """A route with the numbers of the whole network."""
        return tuple(self.numbers[index] for index in route)

    def of_whole(self, route: Sequence[int]) -> Route | None:
        """A route of the whole network with the numbers of this one; None where a part of it is lost."""
        known = {number: index for index, number in enumerate(self.numbers)}
        return tuple(known[index] for index in route) if all(index in known for index in route) else None


def lost_directions(network: Network, name: str, source: str = "--lose", field: str = "name") -> frozenset[int]:
    """The directions that go with a switch or a link of that name. Raises BadInput, of `source`, for anything else."""
    found = frozenset(
        index
        for index, one in enumerate(network.directions)
        if one.link == name or (name in network.switches and name in (one.source, one.target))
    )
    if not found:
        known = [*network.switches, *dict.fromkeys(one.link for one in network.directions)]
        why = "; what has nodes stays" if name in {node.datacenter for node in network.nodes} else ""
        raise BadInput.of(source, field, name, f"a switch or a link ({listed(known)}){why}")
    return found


def all_lost(network: Network, names: Sequence[str]) -> frozenset[int]:
    """The directions that go with all of them. Raises as `lost_directions`."""
    return frozenset[int]().union(*(lost_directions(network, name) for name in names))


def left_of(network: Network, names: Sequence[str]) -> Left:
    """The network without these switches and links. Raises BadInput for other names.

    Default routes stay where they can; others become the ways of least delay.
    """
    if not names:
        return Left(network, tuple(range(len(network.directions))))
    lost = all_lost(network, names)
    numbers = tuple(index for index in range(len(network.directions)) if index not in lost)
    smaller = replace(network, directions=tuple(network.directions[index] for index in numbers), routes=())
    left = Left(smaller, numbers)
    ways = {source: shortest_from(smaller.directions, source) for source in datacenters_of(network)}
    kept = []
    for one in network.routes:
        route = left.of_whole(one.route)
        route = ways[one.source].get(one.target) if route is None else route
        if route is not None:
            kept.append(DefaultRoute(one.source, one.target, route))
    return Left(replace(smaller, routes=tuple(kept)), numbers)


def default_routes(network: Network, lost: Sequence[str]) -> dict[tuple[str, str], Route]:
    """(source, target) -> default route without what is lost; in the whole network's numbers.

    What answers a flow takes it where nothing is sent the other way. Raises as `left_of`.
    """
    if not lost:
        return by_datacenters(network)
    left = left_of(network, lost)
    return {pair: left.in_whole(route) for pair, route in by_datacenters(left.network).items()}
