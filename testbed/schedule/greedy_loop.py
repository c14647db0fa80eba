"""CrossUDSub's loop as plain functions on arrays, which compile.py compiles (greedy_compiled.py).

greedy.py is the readable definition; tests hold the two equal.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints

COMPILED = ("begin", "choose", "_prefer", "_frees", "_write", "_reserve", "_pass_on", "_next", "loop")
"""What compile.py compiles of this module."""

F, I, W = 0, 1, 2  # noqa: E741 - the kinds, by the field's letters

NO_LINK = -1


class Costs(NamedTuple):
    """What the greedy plans with: one stage per rank, every block in `n_sub` sub-blocks."""

    n_microbatches: int
    n_sub: int
    length_s: Floats
    """(ranks, kinds), of a sub-block."""
    delta: Floats
    """(ranks, kinds), what a sub-block adds to its rank's memory."""
    limit: Floats
    """Per rank, the most memory."""
    route_links: Ints
    """(down or up, lower rank, hops), links of the messages between a rank and the next; filled up with NO_LINK."""
    delay_s: Floats
    """Per link."""
    seconds_per_byte: Floats
    """Per link."""
    message_bytes: Floats
    """Per lower rank."""
    parameters_s: Floats
    """Per rank, when its parameters are there."""
    taken_s: Floats
    """Per link, until when all-gathers occupy it."""


class State(NamedTuple):
    """Where everything is; all of it changes as time goes on."""

    sequence: Ints
    """(ranks, places, (kind, microbatch, sub-block))"""
    filled: Ints
    """Per rank, how many places are."""
    available_s: Floats
    """(ranks, kinds, arrivals), in the order of microbatches."""
    arrived: Ints
    """(ranks, kinds), how many have come."""
    head: Ints
    """(ranks, kinds), the microbatch in progress."""
    progress: Ints
    """(ranks, kinds), its sub-blocks done."""
    end_s: Floats
    """Per rank, when it is free."""
    held: Floats
    """Per rank, memory."""
    last_full: Ints
    """Per rank, the kind of its last whole F or I."""
    boundary: Ints
    """Per rank, the place behind which no F or I block is open."""
    open_blocks: Ints
    """Per rank, how many are."""
    input_done: Ints
    """(ranks, microbatches), the place behind its I."""
    busy_s: Floats
    """(links, reservations, (from, until)), in order of time."""
    reservations: Ints
    """Per link, how many it has."""
    preference: Ints
    """The kinds, as a rank prefers them now."""


def begin(costs: Costs) -> State:
    """Before anything is scheduled: the first rank's forwards wait for its parameters."""
    n_ranks, n_links, m = len(costs.limit), max(1, len(costs.delay_s)), costs.n_microbatches
    state = State(
        np.zeros((n_ranks, 3 * m * costs.n_sub, 3), np.int64),
        np.zeros(n_ranks, np.int64),
        np.zeros((n_ranks, 3, m)),
        np.zeros((n_ranks, 3), np.int64),
        np.zeros((n_ranks, 3), np.int64),
        np.zeros((n_ranks, 3), np.int64),
        np.zeros(n_ranks),
        np.zeros(n_ranks),
        np.zeros(n_ranks, np.int64),
        np.zeros(n_ranks, np.int64),
        np.zeros(n_ranks, np.int64),
        np.zeros((n_ranks, m), np.int64),
        np.zeros((n_links, 2 * n_ranks * m + 1, 2)),
        np.zeros(n_links, np.int64),
        np.zeros(3, np.int64),
    )
    for link in range(len(costs.taken_s)):
        if costs.taken_s[link] > 0:
            state.busy_s[link, 0, 1] = costs.taken_s[link]
            state.reservations[link] = 1
    state.arrived[0, F] = m
    state.available_s[0, F] = costs.parameters_s[0]
    return state


def loop(costs: Costs) -> Ints:
    """The sequence of every rank's sub-blocks: (ranks, places, (kind, microbatch, sub-block))."""
    state = begin(costs)
    events = [(costs.parameters_s[0], 0)]
    while len(events) > 0:
        when, rank = heapq.heappop(events)
        start, kind = choose(costs, state, rank)
        if kind < 0 or start != when:
            if kind >= 0 and start < when:
                heapq.heappush(events, (start, rank))
            continue
        _write(costs, state, rank, kind)
        state.end_s[rank] = when + costs.length_s[rank, kind]
        state.held[rank] += costs.delta[rank, kind]
        state.progress[rank, kind] = (state.progress[rank, kind] + 1) % costs.n_sub
        if state.progress[rank, kind] == 0:
            state.head[rank, kind] += 1
            if kind != W:
                state.last_full[rank] = kind
            _pass_on(costs, state, events, rank, kind)
        _next(state, events, rank)
    return state.sequence


def choose(costs: Costs, state: State, rank: int) -> tuple[float, int]:
    """The first sub-block that a rank can start, by time and then by preference: (start, kind), kind -1 for none."""
    fits_f = costs.delta[rank, F] <= 0 or state.held[rank] + costs.delta[rank, F] <= costs.limit[rank]
    fits_i = costs.delta[rank, I] <= 0 or state.held[rank] + costs.delta[rank, I] <= costs.limit[rank]
    _prefer(costs, state, rank, fits_f, fits_i)
    best, kind = np.inf, -1
    for option in state.preference:
        fits = fits_f if option == F else (fits_i if option == I else True)
        if fits and state.head[rank, option] < state.arrived[rank, option]:
            start = max(state.end_s[rank], state.available_s[rank, option, state.head[rank, option]])
            if start < best:
                best, kind = start, option
    return best, kind


def _prefer(costs: Costs, state: State, rank: int, fits_f: bool, fits_i: bool) -> None:
    """Set the kinds in CrossPipe's order of preference; see greedy.py for the rules."""
    order = state.preference
    if state.head[rank, F] == costs.n_microbatches:
        order[0], order[1], order[2] = I, W, F
    elif not fits_i:
        order[0], order[1], order[2] = W, F, I
    elif state.last_full[rank] == F:
        order[0], order[1], order[2] = I, F, W
    elif not fits_f and _frees(costs, rank, W) > _frees(costs, rank, I):
        order[0], order[1], order[2] = W, I, F
    elif not fits_f:
        order[0], order[1], order[2] = I, W, F
    else:
        order[0], order[1], order[2] = F, I, W


def _frees(costs: Costs, rank: int, kind: int) -> float:
    """Memory that a kind frees per second."""
    length_s, delta = float(costs.length_s[rank, kind]), float(costs.delta[rank, kind])
    if length_s > 0:
        return -delta / length_s
    return np.inf if delta < 0 else 0.0


def _write(costs: Costs, state: State, rank: int, kind: int) -> None:
    """Put the next sub-block of a kind into its rank's sequence.

    W goes back to where no F or I block is open (greedy.py, _pull_weights_earlier).
    """
    microbatch, sub, row = state.head[rank, kind], state.progress[rank, kind], state.sequence[rank]
    place = state.filled[rank]
    if kind == W and state.open_blocks[rank] > 0:
        place = max(state.boundary[rank], state.input_done[rank, microbatch])
        for index in range(state.filled[rank], place, -1):
            row[index] = row[index - 1]
        for other in range(microbatch, state.head[rank, I]):
            if state.input_done[rank, other] > place:
                state.input_done[rank, other] += 1
        state.input_done[rank, microbatch] = place + 1
        if place == state.boundary[rank]:
            state.boundary[rank] = place + 1
    row[place, 0], row[place, 1], row[place, 2] = kind, microbatch, sub
    state.filled[rank] += 1
    if kind != W:
        if sub == 0:
            state.open_blocks[rank] += 1
        if sub == costs.n_sub - 1:
            state.open_blocks[rank] -= 1
            if kind == I:
                state.input_done[rank, microbatch] = state.filled[rank]
    if state.open_blocks[rank] == 0:
        state.boundary[rank] = state.filled[rank]


def _reserve(state: State, link: int, ready: float, length: float) -> float:
    """Take the earliest free window of a link at or after `ready`; returns its end."""
    busy, position = state.busy_s[link], state.reservations[link]
    while position > 0 and busy[position - 1, 0] > ready:
        position -= 1
    start = ready
    if position > 0 and busy[position - 1, 1] > start:
        start = busy[position - 1, 1]
    while position < state.reservations[link] and busy[position, 0] < start + length:
        start = max(start, busy[position, 1])
        position += 1
    for index in range(state.reservations[link], position, -1):
        busy[index] = busy[index - 1]
    busy[position, 0], busy[position, 1] = start, start + length
    state.reservations[link] += 1
    return start + length


def _pass_on(costs: Costs, state: State, events: list[tuple[float, int]], rank: int, kind: int) -> None:
    """Make what depends on a finished block available, after the time its message spends on the links."""
    last = len(costs.limit) - 1
    target, wanted, way = rank, -1, 0
    if kind == F:
        wanted = F if rank < last else I
        target = rank + 1 if rank < last else rank
    elif kind == I:
        state.available_s[rank, W, state.arrived[rank, W]] = state.end_s[rank]
        state.arrived[rank, W] += 1
        if rank > 0:
            target, wanted, way = rank - 1, I, 1
    if wanted < 0:
        return
    came = state.end_s[rank]
    if target != rank:
        lower = min(rank, target)
        for link in costs.route_links[way, lower]:
            if link != NO_LINK:
                wire_s = costs.seconds_per_byte[link] * costs.message_bytes[lower]
                came = _reserve(state, link, came, wire_s) + costs.delay_s[link]
    if wanted == F:
        came = max(came, costs.parameters_s[target])
    state.available_s[target, wanted, state.arrived[target, wanted]] = came
    state.arrived[target, wanted] += 1
    if target != rank:  # when it could go on there; the entry is checked again when it comes up
        heapq.heappush(events, (max(state.end_s[target], came), target))


def _next(state: State, events: list[tuple[float, int]], rank: int) -> None:
    """When a rank could go on: every kind's head may be next, whichever fits then."""
    for option in range(3):
        if state.head[rank, option] < state.arrived[rank, option]:
            ready = state.available_s[rank, option, state.head[rank, option]]
            heapq.heappush(events, (max(state.end_s[rank], ready), rank))
