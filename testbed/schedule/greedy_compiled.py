"""CrossUDSub compiled: the loop of greedy.py on arrays, for plans where plain Python would take too long.

greedy.py is the readable definition; tests hold the two equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.model.compile import compiled_modules
from testbed.model.gather import gathered
from testbed.pipeline.ir import WHOLE, Action, Kind, Part, Row
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.schedule import greedy_loop
from testbed.schedule.greedy_loop import NO_LINK, Costs

KINDS = (Kind.F, Kind.I, Kind.W)
"""By the numbers of greedy_loop.py."""

_LOOP = compiled_modules([greedy_loop]).loop


def greedy_rows(problem: Problem, n_sub: int) -> tuple[Row, ...]:
    """The rows that greedy.crosspipe_greedy makes (one stage per rank)."""
    n_ranks = problem.n_ranks
    part = Part(0, 1, n_sub)
    length, delta = np.zeros((n_ranks, 3)), np.zeros((n_ranks, 3))
    for rank in range(n_ranks):
        for code, kind in enumerate(KINDS):
            action = Action(rank, kind, 0, part)
            length[rank, code] = problem.duration(action)
            delta[rank, code] = problem.memory_delta(action)
    routes = [
        [problem.route(r, r + 1) for r in range(n_ranks - 1)],
        [problem.route(r + 1, r) for r in range(n_ranks - 1)],
    ]
    hops = max([len(route) for way in routes for route in way], default=0)
    route_links = np.full((2, n_ranks, max(1, hops)), NO_LINK, dtype=np.int64)
    for way in (0, 1):
        for rank, route in enumerate(routes[way]):
            route_links[way, rank, : len(route)] = route
    gather = gathered(problem)
    costs = Costs(
        problem.n_microbatches,
        n_sub,
        length,
        delta,
        np.array(problem.memory_limit) + TOLERANCE,
        route_links,
        np.array([link.delay_s for link in problem.links], np.float64),
        np.array([link.seconds_per_byte for link in problem.links], np.float64),
        np.array([*problem.planned_bytes, 0.0]),
        np.array(gather.ready_s),
        np.array(gather.link_free_s, np.float64),
    )
    sequence = _LOOP(costs)
    return tuple(_row(rank, sequence[rank], n_sub) for rank in range(n_ranks))


def _row(rank: int, sequence: NDArray[np.int64], n_sub: int) -> Row:
    """Neighbouring sub-blocks of one block joined into actions."""
    blocks = sequence[:, 0] * (1 << 32) + sequence[:, 1]
    begins = np.flatnonzero(np.concatenate(([True], blocks[1:] != blocks[:-1])))
    ends = np.append(begins[1:], len(blocks))
    actions = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        kind, microbatch, first = sequence[begin].tolist()
        part = WHOLE if end - begin == n_sub else Part(first, first + end - begin, n_sub)
        actions.append(Action(rank, KINDS[kind], microbatch, part))
    return tuple(actions)
