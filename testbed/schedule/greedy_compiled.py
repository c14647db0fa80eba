"""CrossUDSub compiled: the loop of greedy.py on arrays, for plans where plain Python would take too long.

greedy.py is the readable definition; tests hold the two equal.
"""

from __future__ import annotations

import heapq
from functools import lru_cache
from itertools import repeat

import numpy as np

from testbed.model.compile import compiled
from testbed.model.network import Ints
from testbed.pipeline.ir import WHOLE, Action, Part, Row
from testbed.pipeline.problem import Problem
from testbed.schedule.sub_blocks import KINDS, costs

_F, _I, _W = 0, 1, 2


def greedy_rows(problem: Problem, n_sub: int) -> tuple[Row, ...]:
    """The rows that greedy.plain_rows makes of a problem in ticks (one stage per rank); what is not whole is rounded.

    Raises DoesNotFit when a rank cannot hold a single microbatch.
    """
    sequence = _greedy(problem.n_microbatches, n_sub, *costs(problem, n_sub))
    assert (sequence[:, :, 2] >= 0).all(), "a rank never got to an end"
    return tuple(_row(rank, sequence[rank], n_sub) for rank in range(problem.n_ranks))


def _row(rank: int, sequence: Ints, n_sub: int) -> Row:
    """Neighbouring sub-blocks of one block joined into actions."""
    blocks = sequence[:, 0] * (1 << 32) + sequence[:, 1]
    begins = np.flatnonzero(np.concatenate(([True], blocks[1:] != blocks[:-1])))
    sizes = np.diff(np.append(begins, len(blocks))).tolist()
    kinds, microbatches, firsts = (column.tolist() for column in sequence[begins].T)
    return tuple(map(_action, repeat(rank), kinds, microbatches, firsts, sizes, repeat(n_sub)))


@lru_cache(maxsize=1 << 18)
def _action(rank: int, kind: int, microbatch: int, first: int, size: int, n_sub: int) -> Action:
    """So many sub-blocks of one block; kept, as a search makes the same ones of every order that it tries."""
    return Action(rank, KINDS[kind], microbatch, WHOLE if size == n_sub else Part(first, first + size, n_sub))


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
    most_unfinished,
    route_links,
    wire,
    delay,
    ready,
    link_free,
):
    """The sequence of every rank's sub-blocks: (ranks, places, (kind, microbatch, sub-block)), -1 where none is.

    The arguments are `Costs`. One long function on purpose, as execute.execute is: in five it was three times slower.
    """
    n_ranks = len(limit)
    total = 3 * n_microbatches * n_sub
    sequence = np.full((n_ranks, total, 3), -1)
    filled = np.zeros(n_ranks, np.int64)
    available = np.zeros((n_ranks, 3, n_microbatches), np.int64)
    arrived = np.zeros((n_ranks, 3), np.int64)
    head = np.zeros((n_ranks, 3), np.int64)
    progress = np.zeros((n_ranks, 3), np.int64)
    end, held = np.zeros(n_ranks, np.int64), np.zeros(n_ranks)
    unfinished = np.zeros(n_ranks, np.int64)
    last_full = np.zeros(n_ranks, np.int64)
    boundary = np.zeros(n_ranks, np.int64)
    open_blocks = np.zeros(n_ranks, np.int64)
    input_done = np.zeros((n_ranks, n_microbatches), np.int64)
    busy = np.zeros((max(1, len(link_free)), 2 * n_ranks * n_microbatches + 1, 2), np.int64)
    count = np.zeros(max(1, len(link_free)), np.int64)
    order = np.zeros(3, np.int64)
    for link in range(len(link_free)):
        if link_free[link] > 0:
            busy[link, 0, 1] = link_free[link]
            count[link] = 1
    arrived[0, _F] = n_microbatches
    available[0, _F] = ready[0]
    events = [(ready[0], 0)]
    while len(events):
        when, rank = heapq.heappop(events)
        # the first sub-block that can start, by time and then by priority
        fits_f = delta[rank, _F] <= 0 or held[rank] + delta[rank, _F] <= limit[rank]
        fits_f = fits_f and unfinished[rank] < most_unfinished[rank]
        fits_i = delta[rank, _I] <= 0 or held[rank] + delta[rank, _I] <= limit[rank]
        speed_i = (
            -delta[rank, _I] / length[rank, _I] if length[rank, _I] > 0 else (np.inf if delta[rank, _I] < 0 else 0.0)
        )
        speed_w = (
            -delta[rank, _W] / length[rank, _W] if length[rank, _W] > 0 else (np.inf if delta[rank, _W] < 0 else 0.0)
        )
        _priority(head[rank, _F] == n_microbatches, last_full[rank], fits_f, fits_i, speed_w > speed_i, order)
        best, kind = 0, -1
        for place in range(3):
            option = order[place]
            fits = fits_f if option == _F else (fits_i if option == _I else True)
            if fits and head[rank, option] < arrived[rank, option]:
                start = max(end[rank], available[rank, option, head[rank, option]])
                if kind < 0 or start < best:
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
        unfinished[rank] += kind == _F
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
                unfinished[rank] -= n_sub
                available[rank, _W, arrived[rank, _W]] = end[rank]
                arrived[rank, _W] += 1
                if rank > 0:
                    target, target_kind, way = rank - 1, _I, 1
            if target_kind >= 0:
                came = end[rank]
                if target != rank:
                    lower = min(rank, target)
                    for hop in range(route_links.shape[2]):
                        link = route_links[way, lower, hop]
                        if link >= 0:
                            came = _reserve(busy, count, link, came, wire[way, lower, hop]) + delay[way, lower, hop]
                if target_kind == _F:
                    came = max(came, ready[target])
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
