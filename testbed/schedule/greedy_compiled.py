"""CrossUDSub compiled: the loop of greedy.py on arrays, for plans where plain Python would take too long.

greedy.py is the readable definition; tests hold the two equal.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from testbed.model.compile import compiled
from testbed.model.gather import gathered
from testbed.pipeline.ir import WHOLE, Action, Kind, Part, Row
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem

KINDS = (Kind.F, Kind.I, Kind.W)
_F, _I, _W = 0, 1, 2


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
    route_links = np.full((2, n_ranks, max(1, hops)), -1, dtype=np.int64)
    for way in (0, 1):
        for rank, route in enumerate(routes[way]):
            route_links[way, rank, : len(route)] = route
    gather = gathered(problem)
    sequence = _greedy(
        problem.n_microbatches,
        n_sub,
        length,
        delta,
        np.array(problem.memory_limit) + TOLERANCE,
        route_links,
        np.array([link.delay_s for link in problem.links]),
        np.array([link.seconds_per_byte for link in problem.links]),
        np.array([*problem.planned_bytes, 0.0]),
        np.array(gather.ready_s),
        np.array(gather.link_free_s),
    )
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


@compiled
def _priority(teardown, last_full, fits_f, fits_i, frees_w_faster, order):
    """The kinds in CrossPipe's order of preference; see greedy.py for the rules."""
    if teardown:
        order[0], order[1], order[2] = _I, _W, _F
    elif not fits_i:
        order[0], order[1], order[2] = _W, _F, _I
    elif last_full == _F:
        order[0], order[1], order[2] = _I, _F, _W
    elif not fits_f and frees_w_faster:
        order[0], order[1], order[2] = _W, _I, _F
    elif not fits_f:
        order[0], order[1], order[2] = _I, _W, _F
    else:
        order[0], order[1], order[2] = _F, _I, _W


@compiled
def _reserve(busy, count, link, ready, length):
    """Earliest free window of a link at or after `ready`; kept sorted; returns its end."""
    position = count[link]
    while position > 0 and busy[link, position - 1, 0] > ready:
        position -= 1
    begin = ready
    if position > 0 and busy[link, position - 1, 1] > begin:
        begin = busy[link, position - 1, 1]
    while position < count[link] and busy[link, position, 0] < begin + length:
        begin = max(begin, busy[link, position, 1])
        position += 1
    for index in range(count[link], position, -1):
        busy[link, index] = busy[link, index - 1]
    busy[link, position, 0] = begin
    busy[link, position, 1] = begin + length
    count[link] += 1
    return begin + length


@compiled
def _greedy(
    n_microbatches,
    n_sub,
    length,
    delta,
    limit,
    route_links,
    delay_s,
    seconds_per_byte,
    message_bytes,
    parameters_s,
    taken_s,
):
    """The sequence of every rank's sub-blocks: (ranks, places, (kind, microbatch, sub-block)).

    One long function on purpose, as execute.execute is.
    """
    n_ranks = len(limit)
    total = 3 * n_microbatches * n_sub
    sequence = np.zeros((n_ranks, total, 3), np.int64)
    filled = np.zeros(n_ranks, np.int64)
    available = np.zeros((n_ranks, 3, n_microbatches))
    arrived = np.zeros((n_ranks, 3), np.int64)
    head = np.zeros((n_ranks, 3), np.int64)
    progress = np.zeros((n_ranks, 3), np.int64)
    end, held = np.zeros(n_ranks), np.zeros(n_ranks)
    last_full = np.zeros(n_ranks, np.int64)
    boundary = np.zeros(n_ranks, np.int64)
    open_blocks = np.zeros(n_ranks, np.int64)
    input_done = np.zeros((n_ranks, n_microbatches), np.int64)
    busy = np.zeros((max(1, len(delay_s)), 2 * n_ranks * n_microbatches + 1, 2))
    count = np.zeros(max(1, len(delay_s)), np.int64)
    order = np.zeros(3, np.int64)
    for link in range(len(taken_s)):
        if taken_s[link] > 0:
            busy[link, 0, 1] = taken_s[link]
            count[link] = 1
    arrived[0, _F] = n_microbatches
    available[0, _F] = parameters_s[0]
    events = [(parameters_s[0], 0)]
    while len(events):
        when, rank = heapq.heappop(events)
        # the first sub-block that can start, by time and then by priority
        fits_f = delta[rank, _F] <= 0 or held[rank] + delta[rank, _F] <= limit[rank]
        fits_i = delta[rank, _I] <= 0 or held[rank] + delta[rank, _I] <= limit[rank]
        speed_i = (
            -delta[rank, _I] / length[rank, _I] if length[rank, _I] > 0 else (np.inf if delta[rank, _I] < 0 else 0.0)
        )
        speed_w = (
            -delta[rank, _W] / length[rank, _W] if length[rank, _W] > 0 else (np.inf if delta[rank, _W] < 0 else 0.0)
        )
        _priority(head[rank, _F] == n_microbatches, last_full[rank], fits_f, fits_i, speed_w > speed_i, order)
        best, kind = np.inf, -1
        for place in range(3):
            option = order[place]
            fits = fits_f if option == _F else (fits_i if option == _I else True)
            if fits and head[rank, option] < arrived[rank, option]:
                start = max(end[rank], available[rank, option, head[rank, option]])
                if start < best:
                    best, kind = start, option
        if kind < 0 or best != when:
            if kind >= 0 and best < when:
                heapq.heappush(events, (best, rank))
            continue
        microbatch = head[rank, kind]
        sub = progress[rank, kind]
        row = sequence[rank]
        # W goes back to where no F or I block is open (greedy.py, _pull_weights_earlier)
        place = filled[rank]
        if kind == _W and open_blocks[rank] > 0:
            place = max(boundary[rank], input_done[rank, microbatch])
            for index in range(filled[rank], place, -1):
                row[index] = row[index - 1]
            for other in range(microbatch, head[rank, _I]):
                if input_done[rank, other] > place:
                    input_done[rank, other] += 1
            input_done[rank, microbatch] = place + 1
            if place == boundary[rank]:
                boundary[rank] = place + 1
        row[place, 0], row[place, 1], row[place, 2] = kind, microbatch, sub
        filled[rank] += 1
        if kind != _W:
            if sub == 0:
                open_blocks[rank] += 1
            if sub == n_sub - 1:
                open_blocks[rank] -= 1
                if kind == _I:
                    input_done[rank, microbatch] = filled[rank]
        if open_blocks[rank] == 0:
            boundary[rank] = filled[rank]
        end[rank] = when + length[rank, kind]
        held[rank] += delta[rank, kind]
        progress[rank, kind] = (sub + 1) % n_sub
        if progress[rank, kind] == 0:
            head[rank, kind] += 1
            if kind != _W:
                last_full[rank] = kind
            target, target_kind, way = rank, -1, 0
            if kind == _F:
                target_kind = _F if rank < n_ranks - 1 else _I
                target = rank + 1 if rank < n_ranks - 1 else rank
            elif kind == _I:
                available[rank, _W, arrived[rank, _W]] = end[rank]
                arrived[rank, _W] += 1
                if rank > 0:
                    target, target_kind, way = rank - 1, _I, 1
            if target_kind >= 0:
                came = end[rank]
                if target != rank:
                    lower = min(rank, target)
                    for link in route_links[way, lower]:
                        if link >= 0:
                            size = message_bytes[lower]
                            came = _reserve(busy, count, link, came, seconds_per_byte[link] * size) + delay_s[link]
                if target_kind == _F:
                    came = max(came, parameters_s[target])
                available[target, target_kind, arrived[target, target_kind]] = came
                arrived[target, target_kind] += 1
                if target != rank:
                    # when it could go on there; the entry is checked again when it comes up
                    heapq.heappush(events, (max(end[target], came), target))
        # when this rank could go on: every kind's head may be next, whichever fits then
        for option in range(3):
            if head[rank, option] < arrived[rank, option]:
                heapq.heappush(events, (max(end[rank], available[rank, option, head[rank, option]]), rank))
    return sequence
