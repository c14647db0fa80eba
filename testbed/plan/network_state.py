"""What links are: as a plan says, and as they really are at a moment of a training. Two values of one type.

Nothing outside the lab reads a plan's directions but this file: whoever asks says of which case, and of when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from testbed.errors import BadInput, listed, require
from testbed.pipeline.link import LinkChange, LinkCost
from testbed.plan.plan import Case, Network, Plan, Route
from testbed.plan.routes import by_datacenters, datacenter_of, datacenters_of, shortest_from
from testbed.plan.timeline import Moment, begins, events_until, events_within
from testbed.spec.topology import Direction


class Piece(NamedTuple):
    """A span of time in which links stay as they are; the next one ends it, or the iteration does."""

    from_s: float
    """Seconds from the moment that the first state is of."""
    network: NetworkState


@dataclass(frozen=True)
class NetworkState:
    """Links and network cards, by the numbers that they have in the plan; what is down keeps its number."""

    name: str
    datacenters: tuple[str, ...]
    """What has nodes, in the order of the topology's file ..."""
    switches: tuple[str, ...]
    """... and what has none."""
    links: tuple[Direction, ...]
    """Directions: forward of the first link, its reverse, and so on."""
    cards: tuple[Direction, ...]
    """Network cards, numbered after the links."""
    planned_routes: Mapping[tuple[str, str], Route]
    """(source, target) -> the default route of the whole network; () inside a datacenter."""
    down: frozenset[int] = frozenset()
    """The numbers of the links that are down."""
    held: tuple[int, ...] = ()
    """The numbers of the links that send nothing for now, and keep what comes: each as often as there are outages of it
    that are not over."""
    later: tuple[Piece, ...] = ()
    """What becomes of it until the end of the iteration, in order of time; () where it stays as it is."""

    @cached_property
    def everything(self) -> tuple[Direction, ...]:
        """What messages may cross, by number: links, then network cards."""
        return self.links + self.cards

    @cached_property
    def card_routes(self) -> dict[str, Route]:
        """Per node, its network card as the beginning of a route; a node without one is left out."""
        return {card.source: (len(self.links) + number,) for number, card in enumerate(self.cards)}

    @cached_property
    def routes(self) -> Mapping[tuple[str, str], Route]:
        """(source, target) -> default route; a pair without one is left out.

        As planned where nothing of it is down, else the one of least delay. What answers a flow takes it where nothing
        is sent in the other direction.
        """
        if not self.down:
            return self.planned_routes
        shortest = {source: self.routes_from(source) for source in self.datacenters}
        found = {}
        for (source, target), planned in self.planned_routes.items():
            route = planned if self.down.isdisjoint(planned) else shortest[source].get(target)
            if route is not None:
                found[source, target] = route
        return found

    def routes_from(self, source: str) -> dict[str, Route]:
        """The routes of least delay from a place to all that can be reached over links that are up."""
        if not self.down:
            return shortest_from(self.links, source)
        up = [number for number in range(len(self.links)) if number not in self.down]
        found = shortest_from([self.links[number] for number in up], source)
        return {target: tuple(up[index] for index in route) for target, route in found.items()}

    def default_route(self, source: str, target: str) -> Route:
        """The default route between two nodes. Raises BadInput when there is none."""
        pair = datacenter_of(source), datacenter_of(target)
        route = self.routes.get(pair)
        if route is None:
            raise BadInput.of(self.name, "links", f"no path {pair[0]} -> {pair[1]}", "connected datacenters")
        return route

    def directions_of(self, name: str) -> frozenset[int]:
        """The numbers of the links that go with a switch or a link of that name. Raises BadInput for anything else."""
        found = frozenset(
            number
            for number, direction in enumerate(self.links)
            if direction.link == name or (name in self.switches and name in (direction.source, direction.target))
        )
        if not found:
            known = [*self.switches, *dict.fromkeys(direction.link for direction in self.links)]
            why = "; what has nodes stays" if name in self.datacenters else ""
            raise BadInput.of(self.name, "name", name, f"a switch or a link ({listed(known)}){why}")
        return found

    def without(self, *names: str) -> NetworkState:
        """The same with switches and links of these names down. Raises BadInput for other names."""
        return replace(self, down=self.down.union(*map(self.directions_of, names)))

    def with_direction(
        self, name: str, number: int, delay_s: float | None, rate_bps: float | None, *, sends: bool | None
    ) -> NetworkState:
        """The same with one direction, by the name of its link and its number, as given; None leaves what it has.

        Raises BadInput where there is no such direction.
        """
        of_name = [index for index, link in enumerate(self.links) if link.link == name]
        require(bool(of_name), self.name, "name", name, f"a link ({listed(dict.fromkeys(x.link for x in self.links))})")
        require(number in of_name, self.name, "direction", number, f"a direction of {name} ({listed(of_name)})")
        was = self.links[number]
        now = was._replace(
            delay_s=was.delay_s if delay_s is None else delay_s, rate_bps=was.rate_bps if rate_bps is None else rate_bps
        )
        held = list(self.held)
        if sends is False:
            held = sorted([*held, number])
        elif sends and number in held:
            held.remove(number)
        return replace(self, links=(*self.links[:number], now, *self.links[number + 1 :]), held=tuple(held))


def planned(network: Network) -> NetworkState:
    """What a plan says that links are, before anything happens to them."""
    sites, routes = datacenters_of(network), by_datacenters(network)
    return NetworkState(network.name, sites, network.switches, network.directions, network.cards, routes)


def network_at(plan: Plan, case: Case, time: Moment | None = None) -> NetworkState:
    """What links really are in a case's training from a moment on, until the end of that iteration.

    By default from when the case begins. Raises BadInput for an event of something that the network has not.
    """
    state, later = planned(plan.network), []
    if not plan.events:
        return state
    at = begins(case) if time is None else time
    for event in events_until(plan, case, at):
        state = event.on_network(state)
    after = state
    for event in events_within(plan, case, at):
        before, after = after, event.on_network(after)
        if after != before:
            later.append(Piece(event.at.seconds - at.seconds, after))
    return replace(state, later=tuple(later)) if later else state


def link_costs(network: NetworkState) -> tuple[LinkCost, ...]:
    """What the model's links cost, by number; while one sends nothing, what they cost when it does."""
    return _costs(network.everything)


@lru_cache(maxsize=16)
def _costs(links: tuple[Direction, ...]) -> tuple[LinkCost, ...]:
    """Kept, since every prediction of a plan asks for the same ones."""
    return tuple(LinkCost(link.delay_s, 8.0 / link.rate_bps) for link in links)


def link_changes(network: NetworkState) -> tuple[LinkChange, ...]:
    """What becomes of the model's links until the end of the iteration."""
    found = [LinkChange(0.0, number, network.links[number].delay_s, math.inf) for number in sorted(set(network.held))]
    before = network
    for piece in network.later:
        for number, (was, now) in enumerate(zip(_sending(before), _sending(piece.network), strict=True)):
            if was != now:
                found.append(LinkChange(piece.from_s, number, *now))
        before = piece.network
    return tuple(found)


def _sending(network: NetworkState) -> list[tuple[float, float]]:
    """Delay, and seconds for a byte, of every link."""
    return [
        (cost.delay_s, math.inf if number in network.held else cost.seconds_per_byte)
        for number, cost in enumerate(link_costs(network))
    ]


def changed_rates(network: Network, numbers: Sequence[int], rate_bps: float) -> Network:
    """A plan's network with another rate on these directions."""
    return changed_directions(
        network, lambda number, direction: direction._replace(rate_bps=rate_bps) if number in numbers else direction
    )


def changed_directions(network: Network, change: Callable[[int, Direction], Direction]) -> Network:
    """A plan's network with what becomes of each direction, by its number."""
    return replace(network, directions=tuple(change(*pair) for pair in enumerate(network.directions)))
