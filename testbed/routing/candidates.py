"""The routes between two places of a network that a policy may choose from: the default one first, then by delay."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from testbed.grouping import grouped
from testbed.plan.network_state import NetworkState
from testbed.plan.plan import Route

MOST_ROUTES = 64
"""Of one pair of places; of more those with the least delay."""

_MOST_FOUND = 20_000
"""After so many of one pair the search ends: a network with more has enough of them."""


class DirectionsByPlace:
    """All links of a network that are up, by the place that they leave."""

    def __init__(self, network: NetworkState) -> None:
        self._directions = network.links
        up = [(index, link) for index, link in enumerate(network.links) if index not in network.down]
        self._leaving = grouped((link.source, index) for index, link in up)
        self._arriving = grouped((link.target, index) for index, link in up)
        self._links_to: dict[str, dict[str, int]] = {}
        self._near: dict[tuple[str, str, int], Sequence[tuple[int, str]]] = {}

    def between(self, source: str, target: str, default: Route, detour: int) -> tuple[Route, ...]:
        """`default`, then every other route without a loop that has at most `detour` links more than the shortest one.

        Ordered by one-way delay, then number of links, then as the links are listed; at most MOST_ROUTES.
        """
        far = self._links_from_all_to(target)
        found = self._search(source, target, far, far[source] + detour)
        found.sort(key=lambda route: (sum(self._directions[index].delay_s for index in route), len(route), route))
        return (default, *(route for route in found if route != default))[:MOST_ROUTES]

    def _links_from_all_to(self, target: str) -> Mapping[str, int]:
        """The fewest links from every place to `target`."""
        if target not in self._links_to:
            far, waiting = {target: 0}, deque([target])
            while waiting:
                at = waiting.popleft()
                for index in self._arriving.get(at, ()):
                    before = self._directions[index].source
                    if before not in far:
                        far[before] = far[at] + 1
                        waiting.append(before)
            self._links_to[target] = far
        return self._links_to[target]

    def _search(self, source: str, target: str, far: Mapping[str, int], most: int) -> list[Route]:
        """Every route without a loop of at most `most` links, shorter ones first."""
        found: list[Route] = []
        waiting: deque[tuple[str, Route, frozenset[str]]] = deque([(source, (), frozenset([source]))])
        while waiting and len(found) < _MOST_FOUND:
            at, route, seen = waiting.popleft()
            if at == target:
                found.append(route)
                continue
            for index, to in self._leading(at, target, far, most - len(route) - 1):
                if to not in seen:
                    waiting.append((to, (*route, index), seen | {to}))
        return found

    def _leading(self, at: str, target: str, far: Mapping[str, int], most: int) -> Sequence[tuple[int, str]]:
        """The links that leave a place, with where they end, from which at most so many others lead to `target`: few of
        many, and asked for by every route that comes by."""
        known = self._near.get((at, target, most))
        if known is None:
            ends = [(index, self._directions[index].target) for index in self._leaving.get(at, ())]
            known = [(index, to) for index, to in ends if to in far and far[to] <= most]
            self._near[at, target, most] = known
        return known
