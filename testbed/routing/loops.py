"""The inner loops of routing, on arrays: plain Python, or the same functions compiled for many flows.

Everything that is compiled is in this file and calls nothing outside it.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from testbed.model.network import Bools, Floats, Ints
from testbed.model.simulate import COMPILED as COMPILED_MODEL
from testbed.routing.routing_problem import Routes

if TYPE_CHECKING:
    from testbed.model.compile import CompiledFunctions

COMPILED = ("fill", "place", "colour")
"""What `loops` compiles of this module."""

LARGE = 4_000
"""Flows times routes or directions: from here on it is worth to wait for the compiled form to be imported ..."""

LARGE_BESIDE = 1_000
"""... and from here on where the event model runs compiled, so that the compiler is imported."""

TOLERANCE = 1e-9
"""Relative: rates, and ends of messages, that differ by less are equal."""


def loops(size: int) -> ModuleType | CompiledFunctions:
    """The functions below, compiled where `size` (flows times routes or directions) is large."""
    large = LARGE_BESIDE if COMPILED_MODEL in sys.modules else LARGE
    return sys.modules[__name__] if size < large else _compiled()


@cache
def _compiled() -> CompiledFunctions:
    from testbed.model.compile import compiled_modules  # slow to import

    return compiled_modules([sys.modules[__name__]])


def fill(first: Ints, crossed: Ints, rate_bps: Floats, sending: Bools) -> Floats:
    """Max-min-fair rates by progressive filling: all grow alike, and those on a direction that is full stop.

    `crossed[first[f]:first[f + 1]]` are the directions of flow f; flows that are not `sending` have rate 0, those that
    cross nothing an infinite one. Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    count, left = np.zeros(len(rate_bps), np.int64), rate_bps.copy()
    rates, growing = np.zeros(len(sending)), 0
    for flow in range(len(sending)):
        if sending[flow]:
            rates[flow] = np.inf
            if first[flow] < first[flow + 1]:
                rates[flow] = -1.0
                growing += 1
                for place_ in range(first[flow], first[flow + 1]):
                    count[crossed[place_]] += 1
    used, grow = np.flatnonzero(count), np.flatnonzero(rates == -1.0)
    full = np.zeros(len(rate_bps), np.bool_)
    while growing > 0:
        level = np.inf
        for link in used:
            if count[link] > 0:
                level = min(level, left[link] / count[link])
        for link in used:
            full[link] = count[link] > 0 and left[link] <= level * count[link] * (1 + TOLERANCE)
        still = 0
        for flow in grow[:growing]:
            stops = False
            for place_ in range(first[flow], first[flow + 1]):
                stops = stops or full[crossed[place_]]
            if stops:
                rates[flow] = level
                for place_ in range(first[flow], first[flow + 1]):
                    count[crossed[place_]] -= 1
                    left[crossed[place_]] = max(0.0, left[crossed[place_]] - level)
            else:
                grow[still] = flow
                still += 1
        growing = still
    return rates


def place(order: Ints, pair: Ints, routes: Routes, weight: Floats, scale: Floats, job: Ints, load: Floats) -> Ints:
    """Per flow the number of the route that it takes, placed one by one in `order`.

    A flow takes the route whose most loaded direction is then loaded least: (load + its weight) x the direction's
    scale. Of equal ones it takes that with the least load by other jobs, and then the first; `load` has a row for each
    job that matters for that (one row: no such preference), and is filled. Complexity: flows x routes x their links.
    """
    choice = np.zeros(len(pair), np.int64)
    total = load.sum(axis=0)
    for flow in order:
        first = routes.first_route[pair[flow]]
        row = job[flow] % len(load)
        best, least, least_others = -1, np.inf, np.inf
        for route in range(first, routes.first_route[pair[flow] + 1]):
            worst, others = 0.0, 0.0
            for place_ in range(routes.first_link[route], routes.first_link[route + 1]):
                link = routes.links[place_]
                worst = max(worst, (total[link] + weight[flow]) * scale[link])
                others += total[link] - load[row, link]
            if worst < least or (worst == least and others < least_others):
                best, least, least_others = route, worst, others
        choice[flow] = best - first
        for place_ in range(routes.first_link[best], routes.first_link[best + 1]):
            link = routes.links[place_]
            load[row, link] += weight[flow]
            total[link] += weight[flow]
    return choice


def colour(source: Ints, target: Ints, places: int, degree: int) -> Ints:
    """A colour below `degree` for every edge, such that no two at a source, or at a target, are alike.

    `degree` is the largest number of edges there. König's theorem in its constructive form: where the colour that is
    free at the source is taken at the target, it is swapped along the path of two alternating colours that begins
    there; being bipartite, the path never comes back to the source. Complexity: edges x (degree + places).
    """
    colours = np.full(len(source), -1, np.int64)
    leaving, entering = np.full((places, degree), -1, np.int64), np.full((places, degree), -1, np.int64)
    path = np.empty(2 * places + 1, np.int64)
    for edge in range(len(source)):
        begin, end = source[edge], target[edge]
        first = 0
        while leaving[begin, first] >= 0:
            first += 1
        if entering[end, first] >= 0:
            other = 0
            while entering[end, other] >= 0:
                other += 1
            length, at = 0, entering[end, first]
            while at >= 0:
                path[length] = at
                length += 1
                at = leaving[source[at], other] if colours[at] == first else entering[target[at], first]
            for step in range(length):
                at = path[step]
                leaving[source[at], colours[at]] = entering[target[at], colours[at]] = -1
            for step in range(length):
                at = path[step]
                colours[at] = other if colours[at] == first else first
                leaving[source[at], colours[at]] = entering[target[at], colours[at]] = at
        colours[edge] = first
        leaving[begin, first] = entering[end, first] = edge
    return colours
