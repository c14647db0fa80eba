"""A routing problem as a value: flows, the routes that each may take, and what the directions of the network carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints
from testbed.plan import routes
from testbed.plan.network_state import NetworkState
from testbed.plan.plan import Route
from testbed.routing.candidates import DirectionsByPlace
from testbed.routing.demand import Commodity


class Routes(NamedTuple):
    """The routes of all pairs of places as flat arrays; route numbers count over all pairs."""

    first_route: Ints
    """Per pair (and one more), its first route: candidate k of pair p is route first_route[p] + k."""
    first_link: Ints
    """Per route (and one more), where its directions begin in `links`."""
    links: Ints


@dataclass(frozen=True)
class RoutingProblem:
    """Flows to be routed. Arrays have an entry per flow unless they say otherwise; a policy must not change them."""

    rate_bps: Floats
    """Per direction of the network: links, then network cards."""
    link_target: Ints
    """Per direction that is a link, the place where it ends, by number. The other directions are network cards, which
    every route of their node begins with."""
    candidates: tuple[tuple[Route, ...], ...]
    """Per pair of places, the routes over links that its flows may take, the default one first."""
    pair: Ints
    """Which pair of places, an index into `candidates`; every flow has somewhere to go."""
    source: Ints
    """The place that it leaves (a datacenter, a leaf or a spine), by number."""
    target: Ints
    target_host: Ints
    """Number of the receiving node in its place."""
    job: Ints
    wire_bytes: Floats
    """In an iteration."""
    collective_bytes: Floats
    """Of these, of data parallelism."""
    card: Ints
    """The network card that it begins with, as a number of a direction; -1 without one."""
    when: tuple[tuple[tuple[float, float], ...], ...] = ()
    """Spans of seconds in which messages are under way; () where that is not known."""

    @property
    def n_links(self) -> int:
        """How many directions are links."""
        return len(self.link_target)

    @property
    def n_flows(self) -> int:
        """How many flows there are."""
        return len(self.pair)

    @property
    def n_jobs(self) -> int:
        """How many jobs have flows, or may have."""
        return int(self.job.max()) + 1 if len(self.job) else 0

    def routes_of(self, flow: int) -> tuple[Route, ...]:
        """The routes that a flow may take, the default one first."""
        return self.candidates[int(self.pair[flow])]

    @cached_property
    def routes(self) -> Routes:
        """All candidates as arrays."""
        counts = [len(candidate) for candidate in self.candidates]
        lengths = [len(route) for candidate in self.candidates for route in candidate]
        flat = [index for candidate in self.candidates for route in candidate for index in route]
        return Routes(_firsts(counts), _firsts(lengths), np.array(flat, np.int64))

    @cached_property
    def choices(self) -> Ints:
        """How many routes each flow may take."""
        return np.diff(self.routes.first_route)[self.pair]

    def crossed(self, choice: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """Per flow (and one more) where its directions begin, and the directions: those of links, then its card."""
        chosen = self.routes.first_route[self.pair] + np.asarray(choice, np.int64)
        begins, ends = self.routes.first_link[chosen], self.routes.first_link[chosen + 1]
        carded = (self.card >= 0).astype(np.int64)
        first = _firsts(ends - begins + carded)
        links = np.empty(int(first[-1]), np.int64)
        on_links = np.ones(len(links), bool)
        on_links[first[1:][carded > 0] - 1] = False
        links[on_links] = self.routes.links[_ranges(begins, ends)]
        links[~on_links] = self.card[carded > 0]
        return first, links


def _firsts(counts: Sequence[int] | Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.asarray(counts, np.int64))))


def _ranges(begins: Ints, ends: Ints) -> Ints:
    """begins[0] to ends[0], then begins[1] to ends[1], and so on, ends excluded."""
    lengths = ends - begins
    first = _firsts(lengths)
    return np.arange(first[-1]) - np.repeat(first[:-1] - begins, lengths)


def routing_problem(network: NetworkState, wanted: Sequence[Commodity], detour: int = 1) -> RoutingProblem:
    """The problem of routing what is `wanted`; inside a place there is nothing to choose.

    `detour` is how many links a route may have more than the shortest one. Raises BadInput where there is no route.
    """
    directions = DirectionsByPlace(network)
    known: dict[tuple[str, str], int] = {}
    candidates: list[tuple[Route, ...]] = []
    ends = [(routes.datacenter_of(commodity.source), routes.datacenter_of(commodity.target)) for commodity in wanted]
    for flow, pair in zip(wanted, ends, strict=True):
        if pair not in known:
            known[pair] = len(candidates)
            default = network.default_route(flow.source, flow.target)
            candidates.append(directions.between(*pair, default, detour) if default else ((),))
    return _problem(network, wanted, candidates, [known[pair] for pair in ends])


def settled_problem(network: NetworkState, wanted: Sequence[Commodity], routes: Sequence[Route]) -> RoutingProblem:
    """The same where nothing is left to choose: every flow has one candidate, its own of `routes`."""
    return _problem(network, wanted, [(route,) for route in routes], range(len(routes)))


def _problem(
    network: NetworkState, wanted: Sequence[Commodity], candidates: Sequence[tuple[Route, ...]], pair: Sequence[int]
) -> RoutingProblem:
    places = [*network.datacenters, *network.switches]
    numbers = {name: number for number, name in enumerate(places)}
    cards = {node: card for node, (card,) in network.card_routes.items()}
    ends = [(routes.datacenter_of(flow.source), routes.datacenter_of(flow.target)) for flow in wanted]
    return RoutingProblem(
        rate_bps=np.array([link.rate_bps for link in network.everything]),
        link_target=np.array([numbers[link.target] for link in network.links], np.int64),
        candidates=tuple(candidates),
        pair=np.array(pair, np.int64),
        source=np.array([numbers[a] for a, _ in ends], np.int64),
        target=np.array([numbers[b] for _, b in ends], np.int64),
        target_host=np.array([int(flow.target.partition("/")[2]) for flow in wanted], np.int64),
        job=np.array([flow.job for flow in wanted], np.int64),
        wire_bytes=np.array([flow.wire_bytes for flow in wanted]),
        collective_bytes=np.array([flow.collective_bytes for flow in wanted]),
        card=np.array([cards.get(flow.source, -1) for flow in wanted], np.int64),
        when=tuple(flow.when for flow in wanted),
    )
