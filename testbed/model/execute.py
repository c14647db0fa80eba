"""The event loop of the model: ranks run their rows in order, messages cross the network (network.py).

Plain functions on arrays: interpreted as they are for small plans, compiled (compile.py) for large ones and for
searches that judge thousands of schedules. Its state is state.py's, messages on their way are crossing.py's and
pieces_in_rows.py's.
"""

from __future__ import annotations

import heapq

import numpy as np

from testbed.model.crossing import NOT_YET, acknowledged, advance, arrive, datagram, next_datagram
from testbed.model.network import Ints, carry_what_is_left
from testbed.model.pieces_in_rows import next_in_row, row_is_later
from testbed.model.program import FREE, NONE, Program
from testbed.model.state import (
    ACK,
    ANNOUNCED,
    ANNOUNCES,
    DATAGRAM,
    END,
    GATHER,
    HOP,
    LEAVE,
    PASSED_ON,
    POSTS,
    REACH,
    REDUCES,
    SENDS,
    SUM,
    Event,
    State,
    Times,
    append,
    beginning_number,
    idle_wires,
    next_number,
    piece_number,
    push,
    started,
)
from testbed.model.tensor_exchange import exchange

COMPILED = ("execute", "last_end")
INLINED = (
    "begin",
    "release_message",
    "go_on",
    "post_receive",
    "start_together",
    "end_action",
    "send_with_receive",
    "reduce_gradients",
)
"""What compile.py compiles of this module, and what becomes part of that."""


def execute(program: Program, order: Ints) -> Times:
    """Run a program; an action that never comes to run has nan times.

    `order` holds the actions in the order in which each rank runs them, rank after rank: a permutation within each row.
    """
    wires = idle_wires(program)
    state, late_receives = started(program), bool(program.answered.any())
    events, reach, freed = [(0.0, 0, 0, 0, 0)], [0], [0]  # lists need an item for their type to be known
    events.clear()
    reach.clear()  # ranks that may go on at the time at hand
    freed.clear()  # messages that have one thing less to wait for
    begin(program, state, events)
    index, scheduled, what = 0, 0, REACH
    while True:
        # a message that waits for nothing more leaves before a rank goes on that waited for the same
        for message in freed:
            release_message(program, state, events, message)
        freed.clear()
        while index < len(reach):
            go_on(program, state, order, events, freed, reach[index], what, scheduled)
            index += 1
        if len(freed) > 0:
            continue
        reach.clear()
        index = 0
        if state.rows[0] > 0 and (len(events) == 0 or not row_is_later(state, 0, events[0][0], events[0][1])):
            now, scheduled, subject = state.row_s[0], state.row_number[0], state.row_message[0]
            what, detail = HOP, piece_number(1, next_in_row(program, state, wires))
        elif state.rows[0] == 0 and len(events) == state.datagrams[0]:  # what else there may be goes on for ever
            break
        else:
            now, scheduled, what, subject, detail = heapq.heappop(events)
        if what == REACH:
            reach.append(subject)
            continue
        if GATHER <= what <= ANNOUNCED:
            exchange(program, state, wires, events, what, subject, detail, now)
            continue
        if what == ACK:
            acknowledged(program, state, wires, events, subject, detail, now)
            continue
        if what == DATAGRAM:
            datagram(program, state, wires, events, subject, detail, now)
            continue
        message = subject
        if what == END:
            reach.append(subject)
            message = end_action(program, state, order, events, subject, now, scheduled)
            if message == NONE:
                continue
            what = LEAVE
        came = advance(program, state, wires, events, message, what, detail, now, late_receives)
        if came != NOT_YET:
            arrive(program, state, message, came + program.handover_s[message], reach, freed)
    carry_what_is_left(wires)
    reached, ready, start, end = state.reached, state.ready, state.start, state.end
    return Times(reached, ready, start, end, state.posted, state.sent, state.arrived, state.awaited, wires.free_s)


def begin(program: Program, state: State, events: list[Event]) -> None:
    """Schedule what waits for nothing: messages, every rank's first action, and the first datagram of every stream
    that goes by itself."""
    for stream in range(len(program.stream_queue)):
        if program.stream_queue[stream] == NONE:
            next_datagram(program, state, events, stream)
    for message in program.first:
        number = beginning_number(state, program.source[message])
        push(events, program.first_s[message], number, LEAVE, message, 0)
    for rank in range(len(program.row_start) - 1):
        if program.waits[rank]:
            continue
        push(events, state.rank_free[rank], beginning_number(state, rank), REACH, rank, 0)


def release_message(program: Program, state: State, events: list[Event], message: int) -> None:
    """A message has one thing less to wait for: if that was the last one, it leaves."""
    state.release[message] -= 1
    if state.release[message] == 0:
        if np.isnan(state.sent[message]):
            state.sent[message] = max(state.may_leave[message], program.first_s[message])
        push(events, state.may_leave[message], next_number(state), LEAVE, message, 0)


def go_on(
    program: Program,
    state: State,
    order: Ints,
    events: list[Event],
    freed: list[int],
    rank: int,
    what: int,
    scheduled: int,
) -> None:
    """Have a rank start its next action, or wait for the input of that; `what` event, `scheduled` when, set it off."""
    if state.position[rank] == program.row_start[rank + 1]:
        return
    action = order[state.position[rank]]
    message, stage = program.needs[action], program.unshards[action]
    if message != NONE and np.isnan(state.arrived[message]):
        state.rank_waiting[message] = rank
        if program.notice[program.parts[program.part_start[message]]] != NONE:
            post_receive(program, state, events, freed, rank, message, what, scheduled)
        return
    if stage != NONE and state.shards_left[stage] > 0:
        state.stage_waiting[stage] = rank
        return
    came = program.begin_s[rank]
    if message != NONE:
        came = max(came, state.arrived[message])
    if stage != NONE:
        came = max(came, state.gathered[stage])
    group = program.group[rank]
    if program.card[rank] != NONE and program.gathered_bytes[action] > 0:
        push(events, max(came, state.rank_free[rank]), next_number(state), GATHER, rank, action)
    state.begin_together[group] = max(state.begin_together[group], came)
    state.missing[group] -= 1
    if state.missing[group] == 0:
        start_together(program, state, order, events, rank)


def post_receive(
    program: Program,
    state: State,
    events: list[Event],
    freed: list[int],
    rank: int,
    message: int,
    what: int,
    scheduled: int,
) -> None:
    """Post a late receive: its notice leaves, one for each part; one that takes no time lets the part itself go."""
    posted = max(state.rank_free[rank], state.sending_until[rank])
    state.posted[message] = posted
    for place in range(program.part_start[message], program.part_start[message + 1]):
        part = program.parts[place]
        notice = program.notice[part]
        subject = part if notice == FREE else notice
        state.may_leave[subject] = max(state.may_leave[subject], posted)
        if what == END and notice != FREE:  # with what the rank has just sent, before other ranks' messages
            state.release[subject] -= 1
            state.sent[subject] = state.may_leave[subject]
            push(events, state.may_leave[subject], scheduled + POSTS, LEAVE, subject, 0)
        else:
            append(freed, subject)


def start_together(program: Program, state: State, order: Ints, events: list[Event], last: int) -> None:
    """Start the next action of all tensor ranks of a group, of which the `last` one has its input now."""
    group, action = program.group[last], 0
    came, state.begin_together[group] = state.begin_together[group], 0.0
    for place in range(program.group_start[group], program.group_start[group + 1]):
        rank = program.together[place]
        state.missing[group] += 1
        action = order[state.position[rank]]
        free = state.rank_free[rank]
        state.reached[action], state.ready[action] = free, came
        state.start[action] = came if came > free + program.unnoticed_wait_s else free
        state.end[action] = state.start[action] + program.duration_s[action]
        state.numbered[0] += PASSED_ON
        push(events, state.end[action], state.numbered[0] - PASSED_ON + 1, END, rank, 0)
    # in their turn among what the ranks pass on meanwhile
    if program.card[last] != NONE and program.gathered_bytes[action] == 0 and state.sums_left[action] > 0:
        for place in range(program.group_start[group], program.group_start[group + 1]):
            rank = program.together[place]
            at = max(state.start[action], came)
            push(events, at, next_number(state), SUM, rank, order[state.position[rank]])


def end_action(
    program: Program, state: State, order: Ints, events: list[Event], rank: int, now: float, scheduled: int
) -> int:
    """End a rank's action; returns the message that it sends at once, before all else at this instant, or NONE."""
    action = order[state.position[rank]]
    state.position[rank] += 1
    state.rank_free[rank] = now
    made, stage, message = program.makes[action], program.completes[action], NONE
    if made != NONE:
        state.sent[made] = now
        if program.local[made]:
            state.arrived[made] = now
        elif program.release[made] > 1:
            send_with_receive(program, state, events, rank, made, now, scheduled)
        else:
            message = made
    if stage != NONE:
        state.gradients_left[stage] -= 1
        if state.gradients_left[stage] == 0:
            reduce_gradients(program, state, events, stage, now, scheduled)
    return message


def send_with_receive(
    program: Program, state: State, events: list[Event], rank: int, message: int, now: float, scheduled: int
) -> None:
    """Send a message, or its parts, each of which leaves only when its receive is posted, and what announces it."""
    until, turn = now, scheduled
    for place in range(program.part_start[message], program.part_start[message + 1]):
        part = program.parts[place]
        announced = program.announcement[part]
        if announced != NONE:
            state.may_leave[announced] = now
            push(events, now, turn + ANNOUNCES, LEAVE, announced, 0)
        state.sent[part] = now
        state.may_leave[part] = max(state.may_leave[part], now)
        state.release[part] -= 1
        if state.release[part] == 0:  # its receive is posted already: this call sends it, not gloo's thread
            until += program.send_s[part]
            state.sending_until[rank] = until
            push(events, state.may_leave[part], turn + SENDS, LEAVE, part, 0)
        turn = min(turn + SENDS + 1, scheduled + REDUCES - SENDS - 1)


def reduce_gradients(
    program: Program, state: State, events: list[Event], stage: int, now: float, scheduled: int
) -> None:
    """A stage has all of its gradients: their reduction begins, before what other ranks do at this instant.

    A member sends what waits for its own gradients alone, then what follows from messages that came before, in the
    order in which they came (train/collective_runner.py).
    """
    first, end = program.reduce_start[stage], program.reduce_start[stage + 1]
    for place in range(first, end):
        shard, turn = program.reduces[place], 0
        state.release[shard] -= 1
        if state.release[shard] > 0:
            continue
        for other in range(first, end):  # arrays cannot be made in compiled code
            came_s = state.may_leave[program.reduces[other]]
            turn += came_s < state.may_leave[shard] or (came_s == state.may_leave[shard] and other < place)
        state.sent[shard] = max(state.may_leave[shard], now)
        push(events, state.sent[shard], scheduled + min(REDUCES + turn, POSTS - 1), LEAVE, shard, 0)
    for place in range(first, end):
        state.may_leave[program.reduces[place]] = max(state.may_leave[program.reduces[place]], now)


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
