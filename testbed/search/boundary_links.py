"""The links that messages between neighbouring stages cross, as arrays for the loops of list schedulers."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from testbed.model.network import Ints
from testbed.pipeline.problem import Problem


class BoundaryLinks(NamedTuple):
    """(2, S, hops): from stage s to s + 1, and from s + 1 to s; in ticks."""

    links: Ints
    """By number; -1 behind the last, and between stages of one rank."""
    wire: Ints
    """How long a message occupies each of them, with those of all replicas that cross it ..."""
    delay: Ints
    """... and its one-way delay."""


def boundary_links(problem: Problem) -> BoundaryLinks:
    """Of a problem in ticks."""
    pairs = list(pairwise(problem.stage_to_rank))
    back = [(b, a) for a, b in pairs]
    both_directions = [[problem.route(a, b) if a != b else () for a, b in ends] for ends in (pairs, back)]
    hops = max([1, *(len(route) for routes in both_directions for route in routes)])
    links = np.full((2, problem.n_stages, hops), -1, np.int64)
    wire, delay = np.zeros(links.shape, np.int64), np.zeros(links.shape, np.int64)
    for upward, routes in enumerate(both_directions):
        for boundary, route in enumerate(routes):
            for hop, link in enumerate(route):
                cost, at = problem.links[link], (upward, boundary, hop)
                links[at], delay[at] = link, round(cost.delay_s)
                wire[at] = round(cost.seconds_per_byte * problem.planned_bytes[boundary])
    return BoundaryLinks(links, wire, delay)
