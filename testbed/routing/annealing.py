"""Simulated annealing over one route number per destination, as the paper's simulator has it as a baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from testbed.model.network import Ints
from testbed.routing.routing_problem import RoutingProblem
from testbed.search.incumbent import Incumbent

_HOTTEST, _COLDEST = 1000.0, 0.1
_COOLER = 0.99
"""Per step. These, the moves and the energy are read from ofircohen205/dcn-simulators, very
likely the paper's simulator."""


class _Destinations(NamedTuple):
    """Who receives."""

    of_flow: Ints
    """Per flow, its destination by number."""
    place: Ints
    """Per destination, where it is."""
    flows: list[Ints]
    """Per destination, the flows that it receives."""


def annealing(
    problem: RoutingProblem,
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1,
    restarts: Annotated[int, Field(ge=1, le=1000)] = 1,
) -> Ints:
    """Swaps the routes of two destinations; energy: most flows on a direction x directions that have so many.

    All flows to one node share a route number; it begins as in `static`. The best of everything that was seen counts,
    over all `restarts`.
    """
    hosts = np.stack((problem.target, problem.target_host))
    unique, of_flow = np.unique(hosts, axis=1, return_inverse=True)
    of_flow = of_flow.reshape(-1).astype(np.int64)
    flows = [np.flatnonzero(of_flow == number) for number in range(unique.shape[1])]
    destinations = _Destinations(of_flow, unique[0], flows)
    incumbent: Incumbent[Ints] = Incumbent()
    for number in range(restarts):
        _cool(problem, destinations, unique[1].copy(), np.random.default_rng(seed + number), incumbent)
    return incumbent.best[of_flow] % problem.choices


@dataclass
class _Loads:
    """How many flows cross every link, while destinations change their routes."""

    problem: RoutingProblem
    flows: list[Ints]
    """Per destination, the flows that it receives."""
    load: Ints
    crossed: dict[tuple[int, int], Ints] = field(default_factory=dict)
    """(destination, route number) -> the links that its flows cross, each as often as they do."""

    def add(self, destination: int, route: int, change: int) -> None:
        """So many more of each of a destination's flows, on the routes of that number."""
        if (destination, route) not in self.crossed:
            candidates = [self.problem.routes_of(int(flow)) for flow in self.flows[destination]]
            links = [link for each in candidates for link in each[route % len(each)]]
            self.crossed[destination, route] = np.array(links, np.int64)
        np.add.at(self.load, self.crossed[destination, route], change)

    def energy(self) -> int:
        """Most flows on a link, times the links that have so many."""
        most = int(self.load.max(initial=0))
        return most * int((self.load == most).sum())


def _cool(
    problem: RoutingProblem, destinations: _Destinations, state: Ints, rng: np.random.Generator, best: Incumbent[Ints]
) -> None:
    """Offer the route numbers of every destination that have less energy than all before; `state` is where to begin."""
    count = len(state)
    loads = _Loads(problem, destinations.flows, np.zeros(problem.n_links, np.int64))
    for number in range(count):
        loads.add(number, int(state[number]), 1)
    energy = loads.energy()
    best.offer(state.copy(), energy)
    temperature = _HOTTEST
    while temperature > _COLDEST and count > 1:
        one, other = _two(rng, destinations.place)
        _swap(loads, state, (one, other))
        changed = loads.energy()
        if changed <= energy or rng.random() < math.exp((energy - changed) / temperature):
            energy = changed
            if energy < best.best_s:
                best.offer(state.copy(), energy)
        else:
            _swap(loads, state, (one, other))
        temperature *= _COOLER


def _two(random: np.random.Generator, place: Ints) -> tuple[int, int]:
    """Half the time any two destinations, half the time two in one place (where there are two)."""
    one = int(random.integers(len(place)))
    others = np.flatnonzero(place == place[one]) if random.random() < 0.5 else np.arange(len(place))
    others = others[others != one]
    return (one, int(random.choice(others))) if len(others) else (one, one)


def _swap(loads: _Loads, state: Ints, two: tuple[int, int]) -> None:
    for number in two:
        loads.add(number, int(state[number]), -1)
    state[list(two)] = state[list(two[::-1])]
    for number in two:
        loads.add(number, int(state[number]), 1)
