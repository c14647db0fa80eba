"""The event model's tensor ranks: what they send each other over a network card, one exchange after the other."""

from __future__ import annotations

from testbed.model.network import LinkOccupancy, carry_acknowledgements, occupy
from testbed.model.program import NONE, Program
from testbed.model.state import (
    ANNOUNCED,
    GATHER,
    PART,
    READY,
    SUM,
    SUMMAND,
    Event,
    State,
    next_number,
    part_number,
    peer_number,
    push,
    which_action,
)

COMPILED: tuple[str, ...] = ()
INLINED = ("exchange", "send_each", "send_part", "tell_each", "end_exchange")
"""What becomes part of the functions that call it (compile.py)."""


def exchange(
    program: Program,
    state: State,
    wires: LinkOccupancy,
    events: list[Event],
    what: int,
    rank: int,
    detail: int,
    now: float,
) -> None:
    """What a tensor rank does for an exchange with the others of its group: it sends, or something comes to it."""
    carry_acknowledgements(wires, program.card[rank], now)
    if what in (READY, ANNOUNCED):
        occupy(wires, program.card[rank], program.exchange_notice_acks_bytes, now, now)
        if what == READY and detail != NONE:
            state.posted_ahead[detail] += 1
            if state.held_back[detail] == 1:
                state.held_back[detail] = 0
                degree = len(state.posted_ahead) // len(program.duration_s)
                other = program.together[program.group_start[program.group[rank]] + detail % degree]
                send_part(program, state, wires, events, rank, other, detail // degree, SUMMAND, now)
        return
    action = detail
    if what in (PART, SUMMAND):
        action = which_action(detail)
        acks = program.gathered_acks_bytes[action] if what == PART else program.summed_acks_bytes[action]
        occupy(wires, program.card[rank], max(0.0, acks - program.exchange_notice_acks_bytes), now, now)
        state.parts[detail] += 1
    else:
        if what == SUM:
            state.sums_left[action] -= 1
        state.exchanging[action] = 1
        send_each(program, state, wires, events, rank, action, PART if what == GATHER else SUMMAND, now)
    end_exchange(program, state, wires, events, rank, action, now)


def send_each(
    program: Program,
    state: State,
    wires: LinkOccupancy,
    events: list[Event],
    rank: int,
    action: int,
    comes: int,
    now: float,
) -> None:
    """A tensor rank sends each other one its part in an exchange: gloo announces it, and sends it when the other one
    has posted its receive, which for what follows a sum of the same action may not be known yet."""
    card, group = program.card[rank], program.group[rank]
    sums = state.exchanges[action] - (1 if program.gathered_bytes[action] > 0 else 0)
    for place in range(program.group_start[group], program.group_start[group + 1]):
        other = program.together[place]
        if other == rank:
            continue
        occupy(wires, card, program.exchange_notice_bytes, now, now)
        there = wires.free_s[card] + wires.delay_s[card]
        push(events, there, next_number(state), ANNOUNCED, other, 0)
        peer = peer_number(program, state, action, rank, other)
        if comes == SUMMAND and state.posted_ahead[peer] < sums:
            state.held_back[peer] = 1
        else:
            send_part(program, state, wires, events, rank, other, action, comes, now)


def send_part(
    program: Program,
    state: State,
    wires: LinkOccupancy,
    events: list[Event],
    rank: int,
    other: int,
    action: int,
    comes: int,
    now: float,
) -> None:
    """What was announced crosses the card of its rank: what comes to the other one is an event."""
    card = program.card[rank]
    size = program.gathered_bytes[action] if comes == PART else program.summed_bytes[action]
    occupy(wires, card, max(0.0, size - program.exchange_notice_bytes), now, now)
    there = wires.free_s[card] + wires.delay_s[card] + program.exchange_handover_s
    theirs = action - program.row_start[rank] + program.row_start[other]
    push(events, there, next_number(state), comes, other, part_number(theirs, state.exchanges[action]))


def tell_each(
    program: Program, state: State, wires: LinkOccupancy, events: list[Event], rank: int, action: int, now: float
) -> None:
    """A tensor rank tells each other one that its receive of the next exchange of the same size is posted."""
    card, group = program.card[rank], program.group[rank]
    gathered = program.gathered_bytes[action] > 0 and state.exchanges[action] == 1
    for place in range(program.group_start[group], program.group_start[group + 1]):
        other = program.together[place]
        if other != rank:
            occupy(wires, card, program.exchange_notice_bytes, now, now)
            there = wires.free_s[card] + wires.delay_s[card]
            theirs = action - program.row_start[rank] + program.row_start[other]
            peer = NONE if gathered else peer_number(program, state, theirs, other, rank)
            push(events, there, next_number(state), READY, other, peer)


def end_exchange(
    program: Program, state: State, wires: LinkOccupancy, events: list[Event], rank: int, action: int, now: float
) -> None:
    """A tensor rank that has what all others sent tells them that its next receives are posted, and goes on."""
    group, here = program.group[rank], part_number(action, state.exchanges[action])
    others = program.group_start[group + 1] - program.group_start[group] - 1
    if state.exchanging[action] == 0 or state.parts[here] < others:
        return
    state.parts[here], state.exchanging[action] = 0, 0
    state.exchanges[action] += 1
    tell_each(program, state, wires, events, rank, action, now)
    if state.sums_left[action] > 0:
        push(events, now, next_number(state), SUM, rank, action)
