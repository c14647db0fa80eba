"""Messages on their way in the event loop (execute.py): pieces on links, acknowledgements, what an arrival sets off."""

from __future__ import annotations

import numpy as np

from testbed.model.network import (
    NO_QUEUE,
    LinkOccupancy,
    acknowledge,
    acknowledge_onward,
    carry_acknowledgements,
    changes_of,
    delay_after,
    occupy,
    sent_by,
)
from testbed.model.pieces_in_rows import first_link, leave_in_a_row, piece_at, piece_bytes
from testbed.model.program import NONE, Program
from testbed.model.state import (
    ACK,
    ARRIVE,
    AT_ONCE,
    DATAGRAM,
    EARLIER,
    HOP,
    LEAVE,
    Event,
    State,
    append,
    beginning_number,
    datagrams_in,
    hops_made,
    next_number,
    piece_number,
    push,
    put_first,
    which_piece,
)

COMPILED: tuple[str, ...] = ()
INLINED = (
    "advance",
    "leaves_later",
    "leave_in_parts",
    "leave",
    "cross",
    "pieces_out",
    "acknowledge_all",
    "acknowledge_each",
    "acknowledged",
    "next_datagram",
    "datagram",
    "woken",
    "arrive",
)
"""What becomes part of the functions that call it (compile.py)."""

WAKES, ANSWERED = 0, 1
"""A message has come: gloo's thread is woken, or it answers since it is awake."""

NOT_YET = -1.0
"""In the place of a time: not all of a message is there."""


def advance(
    program: Program,
    state: State,
    wires: LinkOccupancy,
    events: list[Event],
    message: int,
    what: int,
    detail: int,
    now: float,
    late_receives: bool,
) -> float:
    """A message leaves, a piece of it crosses its next link, or all of it has come: an event's `what` and `detail`.

    Returns when all of it came, as soon as it may be taken in, else NOT_YET.
    """
    came = now
    if what == LEAVE:
        if leaves_later(program, state, events, message, now):
            return NOT_YET
        if program.part_start[message + 1] - program.part_start[message] > 1:
            leave_in_parts(program, state, events, message, now)
            return NOT_YET
        came = leave(program, state, wires, events, message, now)
    elif what != ARRIVE:
        came = cross(program, state, wires, events, message, detail, now)
    if state.pieces_left[message] > 0:
        return NOT_YET
    if late_receives and what != ARRIVE:
        push(events, came, next_number(state), ARRIVE, message, WAKES)
        return NOT_YET
    if late_receives and detail == WAKES and woken(program, state, events, message, now):
        return NOT_YET
    return came


def leaves_later(program: Program, state: State, events: list[Event], message: int, now: float) -> bool:
    """Whether a message that might leave does so later; then that is scheduled.

    What came before its rank began is passed on then, in the order in which it came, after what that rank begins with
    and before what another one does; what leaves later by equally much keeps its order.
    """
    if now < program.first_s[message]:
        number = beginning_number(state, program.source[message])
        push(events, program.first_s[message], number, LEAVE, message, 0)
        return True
    if not state.lag[message] > 0:
        return False
    push(events, now + state.lag[message], next_number(state), LEAVE, message, 0)
    state.lag[message] = 0.0
    return True


def leave_in_parts(program: Program, state: State, events: list[Event], message: int, now: float) -> None:
    """Send the parts of a message, one after the other before all else at this instant."""
    if np.isnan(state.sent[message]):
        state.sent[message] = now
    for place in range(program.part_start[message], program.part_start[message + 1]):
        part = program.parts[place]
        state.sent[part] = now
        push(events, now, next_number(state) - AT_ONCE, LEAVE, part, 0)


def leave(program: Program, state: State, wires: LinkOccupancy, events: list[Event], message: int, now: float) -> float:
    """Put all pieces of a message on its first link; returns when the last one is at the end of that."""
    state.last_bit[message] = now
    if np.isnan(state.sent[message]):
        state.sent[message] = now
    came, count = now, state.pieces_left[message]
    if count > 1 and changes_of(wires, first_link(program, message)) == 0:
        leave_in_a_row(program, state, wires, message, now)
        return came
    for number in range(count):
        came = cross(program, state, wires, events, message, piece_number(0, piece_at(program, message, number)), now)
    return came


def cross(
    program: Program, state: State, wires: LinkOccupancy, events: list[Event], message: int, piece: int, now: float
) -> float:
    """Put a piece, whose first bit is there now, on the next link of its route; returns when it is at its end.

    At a router it goes on from there; at the end of the route there is one piece less to come. Pieces are stored and
    forwarded; a message that keeps together is cut through.
    """
    which, route = which_piece(piece), program.route[message]
    together = program.pieces[message] == 0
    size = piece_bytes(program, message, which)
    came = state.last_bit[message] if together else now
    hop, end = program.route_start[route] + hops_made(piece), program.route_start[route + 1]
    if hop < end:
        link = program.route_links[hop]
        carry_acknowledgements(wires, link, now)
        before = wires.out_s[link]
        begin = occupy(wires, link, size, now, came)
        if together and not wires.stamped and changes_of(wires, link) > 0:
            wires.out_s[link] = max(wires.out_s[link], pieces_out(program, wires, message, link, now, came, begin))
        came = wires.out_s[link]
        if hop + 1 < end:
            out = max(before, begin + delay_after(wires, link, begin, now)) if together else came
            if hops_made(piece) == 0:
                out += program.card_lag_s[message]
                came += program.card_lag_s[message]
            state.last_bit[message] = came
            onward = piece_number(hops_made(piece) + 1, which)
            push(events, out, next_number(state), HOP, message, onward)
            return float(came)
        if program.acks[message] > 0 and program.pieces[message] == 0 and changes_of(wires, link) > 0:
            acknowledge_each(program, state, wires, events, message, link, now, begin, before)
        elif program.acks[message] > 0:
            acknowledge_all(program, state, wires, events, message, link, begin, came)
    state.pieces_left[message] -= 1
    return float(came)


def pieces_out(
    program: Program, wires: LinkOccupancy, message: int, link: int, now: float, last_bit: float, begin: float
) -> float:
    """When those pieces of a message that keeps together are at the end of a link which leave it before the last one:
    that does not overtake them, though the delay may have become shorter meanwhile. Its first bit is there `now`, its
    last one at `last_bit`; where that never comes, nothing of it does (and Python would warn of inf - inf)."""
    if last_bit == np.inf:
        return float(last_bit)
    sent, out = 0.0, 0.0
    for number in range(program.acks[message] - 1):
        ahead = number == 0 and program.notice_ahead_bytes[message] > 0
        sent += program.notice_ahead_bytes[message] if ahead else program.piece_bytes[message]
        comes = now + (last_bit - now) * sent / program.wire_bytes[message]
        left = max(sent_by(wires, link, begin, sent, now), comes)
        out = max(out, left + delay_after(wires, link, left, now))
    return float(out)


def acknowledge_all(
    program: Program,
    state: State,
    wires: LinkOccupancy,
    events: list[Event],
    message: int,
    link: int,
    begin: float,
    came: float,
) -> None:
    """Acknowledge what came over the last link, which it began at `begin` and was at the end of when it `came`.

    A piece is one acknowledgement; of a message that keeps together its super-packets arrive one after the other,
    behind the packet that goes ahead.
    """
    count, first, step = 1, came, 0.0
    if program.pieces[message] == 0:
        count, ahead_bytes = program.acks[message], program.notice_ahead_bytes[message]
        step = program.piece_bytes[message] * wires.seconds_per_byte[link]
        first = begin + wires.delay_s[link]
        first += ahead_bytes * wires.seconds_per_byte[link] if ahead_bytes > 0 else step
        first = min(first, came)
    queue, back = program.ack_queue[message], program.back[message]
    if queue != NONE and wires.onward[queue] == NO_QUEUE:
        acknowledge(wires, queue, program.ack_bytes[message], (first, step, came), count)
    elif queue != NONE:
        for number in range(count):
            there = min(first + number * step, came) if number + 1 < count else came
            acknowledge_onward(wires, queue, program.ack_bytes[message], there, next_number(state))
    elif program.route_start[back] < program.route_start[back + 1]:
        for number in range(count):
            there = min(first + number * step, came) if number + 1 < count else came
            push(events, there, next_number(state) - EARLIER, ACK, message, 0)


def acknowledge_each(
    program: Program,
    state: State,
    wires: LinkOccupancy,
    events: list[Event],
    message: int,
    link: int,
    now: float,
    begin: float,
    before: float,
) -> None:
    """The same of a message that keeps together on a link that changes, where it is `now`, packet by packet; what the
    link carried last was at its end `before`."""
    back, sent, out = program.back[message], 0.0, before
    if program.route_start[back] == program.route_start[back + 1]:
        return
    for number in range(program.acks[message]):
        ahead = number == 0 and program.notice_ahead_bytes[message] > 0
        sent += program.notice_ahead_bytes[message] if ahead else program.piece_bytes[message]
        left = sent_by(wires, link, begin, sent, now)
        out = max(out, left + delay_after(wires, link, left, now))
        last = number + 1 == program.acks[message]
        there = wires.out_s[link] if last else min(out, wires.out_s[link])
        push(events, there, next_number(state) - EARLIER, ACK, message, 0)


def acknowledged(
    program: Program, state: State, wires: LinkOccupancy, events: list[Event], message: int, hops: int, now: float
) -> None:
    """Put an acknowledgement of a message on the next link of its route back."""
    back = program.back[message]
    hop = program.route_start[back] + hops
    link = program.route_links[hop]
    carry_acknowledgements(wires, link, now)
    occupy(wires, link, program.ack_bytes[message], now, now)
    if hop + 1 < program.route_start[back + 1]:
        push(events, wires.out_s[link], next_number(state) - EARLIER, ACK, message, hops + 1)


def next_datagram(program: Program, state: State, events: list[Event], stream: int) -> None:
    """Have the next datagram of a stream sent when it is due, if there is one."""
    while state.span[stream] < program.span_start[stream + 1]:
        span, number = state.span[stream], state.sent_in_span[stream]
        if number < datagrams_in(program, span):
            state.sent_in_span[stream] += 1
            state.datagrams[0] += 1
            when = program.span_first_s[span] + number * program.span_every_s[span]
            push(events, when, next_number(state) - EARLIER, DATAGRAM, stream, 0)
            return
        state.span[stream] += 1
        state.sent_in_span[stream] = 0


def datagram(
    program: Program, state: State, wires: LinkOccupancy, events: list[Event], stream: int, hops: int, now: float
) -> None:
    """Put a datagram of a stream on the next link of its route; behind one that is sent the next one is due."""
    state.datagrams[0] -= 1
    if hops == 0:
        next_datagram(program, state, events, stream)
    route = program.stream_route[stream]
    hop = program.route_start[route] + hops
    link = program.route_links[hop]
    carry_acknowledgements(wires, link, now)
    occupy(wires, link, program.stream_bytes[stream], now, now)
    if hop + 1 < program.route_start[route + 1]:
        state.datagrams[0] += 1
        push(events, wires.out_s[link], next_number(state) - EARLIER, DATAGRAM, stream, hops + 1)


def woken(program: Program, state: State, events: list[Event], message: int, now: float) -> bool:
    """Whether a message that has come waits until gloo's thread is awake; then its answer is scheduled.

    Who wakes the thread, and whether it is awake, is known when everything until then has come.
    """
    thread = program.thread[message]
    asleep = now > state.awake[thread]
    state.awake[thread] = max(state.awake[thread], now + program.wake_s)
    if not (program.answered[message] and asleep and program.wake_s > 0):
        return False
    push(events, now + program.wake_s, next_number(state), ARRIVE, message, ANSWERED)
    return True


def arrive(program: Program, state: State, message: int, when: float, reach: list[int], freed: list[int]) -> None:
    """Hand a message over to the rank, to the messages that follow from it, to the stage that gathers.

    A part only counts until all parts of its message have come.
    """
    state.arrived[message] = when
    whole = program.part_of[message]
    if whole != NONE:
        state.pieces_left[whole] -= 1
        state.last_bit[whole] = max(state.last_bit[whole], when)
        if state.pieces_left[whole] > 0:
            return
        message, when = whole, state.last_bit[whole] + program.handover_s[whole]
        state.arrived[message] = when
    if state.rank_waiting[message] != NONE:
        state.awaited[message] = 1.0
        put_first(reach, state.rank_waiting[message])
        state.rank_waiting[message] = NONE
    rank = program.begins[message]
    if rank != NONE:
        state.rank_free[rank] = state.sending_until[rank] = when
        append(reach, rank)
    for place in range(program.then_start[message], program.then_start[message + 1]):
        following = program.then[place]
        state.may_leave[following] = max(state.may_leave[following], when)
        append(freed, following)
    stage = program.gathers[message]
    if stage != NONE:
        state.shards_left[stage] -= 1
        state.gathered[stage] = max(state.gathered[stage], when)
        if state.shards_left[stage] == 0 and state.stage_waiting[stage] != NONE:
            put_first(reach, state.stage_waiting[stage])
