"""The event loop of the model: ranks run their rows in order, messages cross the network (network.py).

Plain functions on arrays: interpreted as they are for small plans, compiled (compile.py) for large ones and for
searches that judge thousands of schedules.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints, Wires, acknowledge, carry_acknowledgements, idle, occupy
from testbed.model.program import FREE, NONE, Program

_STEPS = ("_begin", "_schedule", "_go_on", "_let_leave", "_end", "_carry", "_handed_over", "_arrive")
COMPILED = (*_STEPS, "execute", "last_end")
"""What compile.py compiles of this module."""

_REACH, _END, _LEAVE, _HOP = 0, 1, 2, 3
"""What happens at an event: a rank begins, an action ends, a message leaves, a piece of one is at a router."""

_ON_ITS_WAY = -1.0

Event = tuple[float, int, int, int, int]
"""Time; sequence, which breaks ties (first scheduled, first served); what; rank or message; for a piece of a message,
hops made * 2 + whether more pieces follow."""


class Times(NamedTuple):
    """When everything happened; nan for what never did. Per action, then per message."""

    reached_s: Floats
    ready_s: Floats
    start_s: Floats
    end_s: Floats
    posted_s: Floats
    """When a late receive was posted."""
    sent_s: Floats
    arrived_s: Floats
    awaited: Floats
    """1 where the receiving rank was waiting."""
    link_free_s: Floats
    """Per link, when it was free for good."""


class _State(NamedTuple):
    """Where everything is; all of it changes as time goes on."""

    times: Times
    wires: Wires
    sequence: Ints
    """One number: of events scheduled so far."""
    position: Ints
    """Per rank, its next place in the order."""
    rank_free_s: Floats
    release: Ints
    """Per message, how many things it still waits for."""
    may_leave_s: Floats
    """Per message, when the latest of them came."""
    pieces_left: Ints
    last_bit_s: Floats
    """Per message that keeps together, when its tail is at the head of the next link."""
    shards_left: Ints
    gathered_s: Floats
    gradients_left: Ints
    rank_waiting: Ints
    """Per message, the rank that waits for it, or NONE."""
    stage_waiting: Ints
    """Per stage, the rank that waits for its parameters, or NONE."""
    awake_s: Floats
    """Per rank, until when gloo's thread is awake."""


def _begin(program: Program) -> _State:
    """Before anything has happened."""
    n_actions, n_messages, n_stages = len(program.duration_s), len(program.release), len(program.shards)
    wires = idle(program.delay_s, program.seconds_per_byte, program.acknowledgements)
    times = Times(
        np.full(n_actions, np.nan),
        np.full(n_actions, np.nan),
        np.full(n_actions, np.nan),
        np.full(n_actions, np.nan),
        np.full(n_messages, np.nan),
        np.full(n_messages, np.nan),
        np.full(n_messages, np.nan),
        np.zeros(n_messages),
        wires.free_s,
    )
    return _State(
        times,
        wires,
        np.zeros(1, np.int64),
        program.row_start[:-1].copy(),
        program.begin_s.copy(),
        program.release.copy(),
        program.first_s.copy(),
        np.maximum(program.pieces, 1),
        np.zeros(n_messages),
        program.shards.copy(),
        np.zeros(n_stages),
        program.gradients.copy(),
        np.full(n_messages, NONE),
        np.full(n_stages, NONE),
        np.full(len(program.row_start) - 1, -1.0),
    )


def _schedule(state: _State, events: list[Event], when: float, what: int, subject: int, piece: int) -> None:
    """Have something happen later."""
    state.sequence[0] += 1
    heapq.heappush(events, (when, state.sequence[0], what, subject, piece))


def execute(program: Program, order: Ints) -> Times:
    """Run a program; an action that never comes to run has nan times.

    `order` holds the actions in the order in which each rank runs them, rank after rank: a permutation within each row.
    """
    state = _begin(program)
    events = [(0.0, 0, 0, 0, 0)]
    events.clear()
    for message in program.first:
        _schedule(state, events, program.first_s[message], _LEAVE, message, 0)
    for rank in range(len(program.row_start) - 1):
        _schedule(state, events, state.rank_free_s[rank], _REACH, rank, 0)
    # ranks that may go on, and messages that have one thing less to wait for, at the time at hand
    reach, freed = [0], [0]
    reach.clear()
    freed.clear()
    while len(events) > 0:
        now, _, what, subject, piece = heapq.heappop(events)
        if what == _REACH:
            reach.append(subject)
        elif what == _END:
            message = _end(program, order, state, subject, now, freed)
            reach.append(subject)
            if message != NONE:  # it leaves at once, before whatever else happens at this instant
                when = _carry(program, state, events, message, 0, now, True)
                if when != _ON_ITS_WAY:
                    _arrive(program, state, message, when, reach, freed)
        else:
            when = _carry(program, state, events, subject, piece, now, what == _LEAVE)
            if when != _ON_ITS_WAY:
                _arrive(program, state, subject, when, reach, freed)
        for rank in reach:
            _go_on(program, order, state, events, rank, freed)
        reach.clear()
        for message in freed:
            _let_leave(state, events, message)
        freed.clear()
    return state.times


def _go_on(program: Program, order: Ints, state: _State, events: list[Event], rank: int, freed: list[int]) -> None:
    """A rank starts its next action, or waits for its input."""
    if state.position[rank] == program.row_start[rank + 1]:
        return
    times, action, free_s = state.times, order[state.position[rank]], state.rank_free_s[rank]
    message, stage, came = program.needs[action], program.unshards[action], program.begin_s[rank]
    if message != NONE:
        if np.isnan(times.arrived_s[message]):
            state.rank_waiting[message] = rank
            notice = program.notice[message]
            if notice != NONE:
                times.posted_s[message] = free_s
                subject = message if notice == FREE else notice
                state.may_leave_s[subject] = max(state.may_leave_s[subject], free_s)
                freed.append(subject)
            return
        came = max(came, times.arrived_s[message])
    if stage != NONE:
        if state.shards_left[stage] > 0:
            state.stage_waiting[stage] = rank
            return
        came = max(came, state.gathered_s[stage])
    times.reached_s[action], times.ready_s[action] = free_s, came
    times.start_s[action] = came if came > free_s + program.unnoticed_wait_s else free_s
    times.end_s[action] = times.start_s[action] + program.duration_s[action]
    _schedule(state, events, times.end_s[action], _END, rank, 0)


def _let_leave(state: _State, events: list[Event], message: int) -> None:
    """A message has one thing less to wait for."""
    state.release[message] -= 1
    if state.release[message] == 0:
        if np.isnan(state.times.sent_s[message]):
            state.times.sent_s[message] = state.may_leave_s[message]
        _schedule(state, events, state.may_leave_s[message], _LEAVE, message, 0)


def _end(program: Program, order: Ints, state: _State, rank: int, now: float, freed: list[int]) -> int:
    """An action ends; returns the message that leaves at once, or NONE."""
    action = order[state.position[rank]]
    state.position[rank] += 1
    state.rank_free_s[rank] = now
    made, stage, leaves = program.makes[action], program.completes[action], NONE
    if made != NONE:
        state.times.sent_s[made] = now
        if program.local[made]:
            state.times.arrived_s[made] = now
        elif program.release[made] == 1:
            leaves = made
        else:
            announced = program.announcement[made]
            if announced != NONE:
                state.may_leave_s[announced] = now
                freed.append(announced)
            state.may_leave_s[made] = max(state.may_leave_s[made], now)
            freed.append(made)
    if stage != NONE:
        state.gradients_left[stage] -= 1
        if state.gradients_left[stage] == 0:
            for place in range(program.reduce_start[stage], program.reduce_start[stage + 1]):
                shard = program.reduces[place]
                state.may_leave_s[shard] = max(state.may_leave_s[shard], now)
                freed.append(shard)
    return leaves


def _carry(
    program: Program, state: _State, events: list[Event], message: int, piece: int, now: float, leaving: bool
) -> float:
    """A piece's first bit is at the head of a link; of a message that is leaving, all pieces are at the first link's.

    Returns when the whole message is there for its rank, or _ON_ITS_WAY.
    """
    wires, hops, more, count = state.wires, piece // 2, piece % 2, 1
    if leaving:
        state.last_bit_s[message] = now
        count = state.pieces_left[message]
        if np.isnan(state.times.sent_s[message]):
            state.times.sent_s[message] = now
    together = program.pieces[message] == 0
    route = program.route[message]
    hop, end_of_route = program.route_start[route] + hops, program.route_start[route + 1]
    came = now
    for number in range(count):
        if leaving:
            more = 1 if number + 1 < count else 0
        size = program.piece_bytes[message] if more else program.wire_bytes[message]
        came = state.last_bit_s[message] if together else now
        if hop < end_of_route:
            link = program.route_links[hop]
            carry_acknowledgements(wires, link, now)
            begin = occupy(wires, link, size, now, came)
            came = wires.free_s[link] + wires.delay_s[link]
            if hop + 1 < end_of_route:
                out = begin if together else wires.free_s[link]  # cut through, or stored and forwarded
                state.last_bit_s[message] = came
                _schedule(state, events, out + wires.delay_s[link], _HOP, message, (hops + 1) * 2 + more)
                continue
            if program.acks[message] > 0:
                first = begin + wires.delay_s[link]
                first += (came - first) / program.acks[message]
                back = program.way_back[message]
                links = program.route_links[program.route_start[back] : program.route_start[back + 1]]
                acknowledge(wires, links, program.acks[message] * program.ack_bytes[message], first, came)
        state.pieces_left[message] -= 1
    return _handed_over(program, state, message, came) if state.pieces_left[message] == 0 else _ON_ITS_WAY


def _handed_over(program: Program, state: _State, message: int, came: float) -> float:
    """When a message whose last bit has come is there for its rank, or when a notice is answered."""
    rank = program.target[message]
    asleep = came > state.awake_s[rank]
    state.awake_s[rank] = max(state.awake_s[rank], came + program.wake_s)
    if program.answered[message]:
        return came + program.wake_s if asleep else came
    handed_over: float = came + program.handover_s[message]
    return handed_over


def _arrive(program: Program, state: _State, message: int, when: float, reach: list[int], freed: list[int]) -> None:
    """Hand a message over: to the rank that waits, to the messages that follow from it, to the stage that gathers."""
    state.times.arrived_s[message] = when
    if state.rank_waiting[message] != NONE:
        state.times.awaited[message] = 1.0
        reach.insert(0, state.rank_waiting[message])
        state.rank_waiting[message] = NONE
    for place in range(program.then_start[message], program.then_start[message + 1]):
        following = program.then[place]
        state.may_leave_s[following] = max(state.may_leave_s[following], when)
        freed.append(following)
    stage = program.gathers[message]
    if stage != NONE:
        state.shards_left[stage] -= 1
        state.gathered_s[stage] = max(state.gathered_s[stage], when)
        if state.shards_left[stage] == 0 and state.stage_waiting[stage] != NONE:
            reach.insert(0, state.stage_waiting[stage])


def last_end(program: Program, times: Times) -> float:
    """Seconds to the end of the last action and the last reduction; nan when one never comes."""
    last = 0.0
    for when in times.end_s:
        if np.isnan(when):
            return np.nan
        last = max(last, when)
    for message in program.last:
        if np.isnan(times.arrived_s[message]):
            return np.nan
        last = max(last, times.arrived_s[message])
    return last
