"""How far a program has come while the event loop runs it (execute.py): arrays that change, and the heap of events."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from testbed.model.network import AckQueues, Floats, Ints, LinkChanges, LinkOccupancy, acknowledge, idle
from testbed.model.program import NONE, Program

COMPILED = ("started", "idle_wires", "push", "append", "put_first")
INLINED = (
    "next_number",
    "beginning_number",
    "piece_number",
    "hops_made",
    "which_piece",
    "part_number",
    "which_action",
    "peer_number",
    "datagrams_in",
)
"""What compile.py compiles of this module, and what becomes part of the functions that call it."""

REACH, END, LEAVE, HOP, ACK, ARRIVE, GATHER, SUM, PART, SUMMAND, READY, ANNOUNCED, DATAGRAM = range(13)
"""What happens at an event: a rank begins, an action ends, a message leaves, a piece of one is at a router, an
acknowledgement where a link begins, a message has come (where gloo's thread may be asleep), a tensor rank sends its
part of an input, or a summand; one of these comes to another, or the word that the next receive is posted, or that
one of these is about to come; a datagram of a stream is where a link begins."""

ENDLESS = 1 << 40
"""Datagrams of a span without end: more than any iteration meets."""

EARLIER = 1 << 50
"""Taken off the number of an acknowledgement or a datagram: it comes before all else at that instant, as one out of a
queue does."""

ANNOUNCES, SENDS, REDUCES, POSTS, PASSED_ON = 0, 1, 1 << 8, (1 << 12) - 1, 1 << 12
"""What a rank passes on when an action ends: what announces a message, the message (of its parts both, one part after
the other), its reductions one by one, the notice of its next receive. So many numbers, from the end's own on, are kept
for that when the action starts: it comes in this order, before all else at that instant."""

BEGINS = 1 << 36
"""So many numbers for each rank, added to those of what it begins with: all of that comes after whatever else there is
at that instant, and rank by rank."""

AT_ONCE = 1 << 51
"""Taken off the number of a part, sent in the same call as the message it is of: it comes before even those."""

LAST, MORE, AHEAD, PIECES = 0, 1, 2, 3
"""Pieces of a message: the last one, one that more follow, the packet that goes ahead; and how many such there are."""

Event = tuple[float, int, int, int, int]
"""(time, number, what, rank or message or group or stream, detail). Numbers break ties: first scheduled, first served.

The detail: of a HOP `piece_number`, of an ACK or a DATAGRAM the hops it has made, of an ARRIVE whether it wakes gloo's
thread or is its answer, of a GATHER or SUM the action, of a PART or SUMMAND `part_number`, of a READY `peer_number`,
NONE where no further sum waits for it."""


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


class State(NamedTuple):
    """Times as in `Times`, and what is left to happen."""

    reached: Floats
    """Per action, as the next three."""
    ready: Floats
    start: Floats
    end: Floats
    posted: Floats
    """Per message, as the next ten."""
    sent: Floats
    arrived: Floats
    awaited: Floats
    release: Ints
    """How many things it still waits for."""
    may_leave: Floats
    """Not before this."""
    lag: Floats
    """How much later than it might it leaves; 0 when that is over."""
    pieces_left: Ints
    """Pieces that are not at the end of the route; of a message in parts, parts that have not come."""
    last_bit: Floats
    """When it is where its first bit is; of a message in parts, when the last one until now came."""
    in_row: Ints
    """Pieces of it that leave in a row and are still to come to the first router ..."""
    left_s: Floats
    """... and when the next one of these has left its first link."""
    row_s: Floats
    """Per row of pieces that a message sends, as the next two, a heap: when the next one is at its first router, ..."""
    row_number: Ints
    """... the number of that event ..."""
    row_message: Ints
    """... and the message."""
    rows: Ints
    """(1,): how many rows there are."""
    rank_waiting: Ints
    """Per message, the rank that waits for it, or NONE."""
    position: Ints
    """Per rank, its next place in the order, as the next three."""
    rank_free: Floats
    sending_until: Floats
    """Until when the call takes that sent its last message."""
    awake: Floats
    """Until when each of gloo's threads is awake."""
    shards_left: Ints
    """Per stage, as the next four: messages that are to bring its parameters ..."""
    gathered: Floats
    """... when the last one until now came ..."""
    stage_waiting: Ints
    """... and the rank that waits for them, or NONE."""
    gradients_left: Ints
    """Microbatches whose gradients are to be completed."""
    missing: Ints
    """Per group, as the next one: tensor ranks that have not come to the action ..."""
    begin_together: Floats
    """... and when the last one until now had its input."""
    sums_left: Ints
    """Per action, as the next three: sums that are to be taken ..."""
    exchanges: Ints
    """... exchanges with the other tensor ranks that are over, ..."""
    exchanging: Ints
    """... and whether its rank has sent its part in the next one."""
    parts: Ints
    """Per action, how many parts of others have come for its exchanges of even numbers, and of odd ones: nobody is more
    than one ahead. (2 * actions,)"""
    posted_ahead: Ints
    """Per `peer_number`, how many receives a peer has posted for further sums of an action, ..."""
    held_back: Ints
    """... and whether a summand waits for that."""
    span: Ints
    """Per stream, as the next one: where it is in its spans, by number ..."""
    sent_in_span: Ints
    """... and how many datagrams of that one are sent, or about to be."""
    datagrams: Ints
    """(1,): datagrams that are events to come."""
    numbered: Ints
    """(1,): events that have a number."""


def started(program: Program) -> State:
    """Before anything has happened."""
    n_actions, n_messages = len(program.duration_s), len(program.release)
    n_stages, n_groups = len(program.shards), len(program.group_start) - 1
    n_peers = n_actions * (program.group_start[1:] - program.group_start[:-1]).max()
    return State(
        np.full(n_actions, np.nan),
        np.full(n_actions, np.nan),
        np.full(n_actions, np.nan),
        np.full(n_actions, np.nan),
        np.full(n_messages, np.nan),
        np.full(n_messages, np.nan),
        np.full(n_messages, np.nan),
        np.zeros(n_messages),
        program.release.copy(),
        np.zeros(n_messages),
        program.lag_s.copy(),
        np.maximum(program.pieces, 1),
        np.zeros(n_messages),
        np.zeros(n_messages, np.int64),
        np.zeros(n_messages),
        np.zeros(n_messages),
        np.zeros(n_messages, np.int64),
        np.zeros(n_messages, np.int64),
        np.zeros(1, np.int64),
        np.full(n_messages, NONE),
        program.row_start[:-1].copy(),
        program.begin_s.copy(),
        program.begin_s.copy(),
        np.full(program.thread.max() + 1, -1.0),
        program.shards.copy(),
        np.zeros(n_stages),
        np.full(n_stages, NONE),
        program.gradients.copy(),
        program.group_start[1:] - program.group_start[:-1],
        np.zeros(n_groups),
        program.sums.copy(),
        np.zeros(n_actions, np.int64),
        np.zeros(n_actions, np.int64),
        np.zeros(2 * n_actions, np.int64),
        np.zeros(n_peers, np.int64),
        np.zeros(n_peers, np.int64),
        program.span_start[:-1].copy(),
        np.zeros(len(program.stream_queue), np.int64),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
    )


def idle_wires(program: Program) -> LinkOccupancy:
    """Its links before anything has happened."""
    changes = LinkChanges(
        program.change_start, program.changed_at_s, program.changed_delay_s, program.changed_seconds_per_byte
    )
    queues = AckQueues(
        program.queue_start,
        program.queue_link,
        program.queue_onward,
        program.look_start,
        program.looks,
        program.acknowledgements,
    )
    wires = idle(program.delay_s, program.seconds_per_byte, changes, program.stamped, queues)
    for stream in range(len(program.stream_queue)):
        queue = program.stream_queue[stream]
        if queue == NONE:
            continue
        for span in range(program.span_start[stream], program.span_start[stream + 1]):
            count = datagrams_in(program, span)
            first, every = program.span_first_s[span], program.span_every_s[span]
            if count > 0:
                times = first, every, first + (count - 1) * every
                acknowledge(wires, queue, program.stream_bytes[stream], times, count)
    return wires


def datagrams_in(program: Program, span: int) -> int:
    """How many there are in a span."""
    length = program.span_before_s[span] - program.span_first_s[span]
    if length == np.inf:
        return ENDLESS
    return int(max(0.0, np.ceil(length / program.span_every_s[span])))


def next_number(state: State) -> int:
    """The number of an event that is scheduled now."""
    state.numbered[0] += 1
    return int(state.numbered[0])


def beginning_number(state: State, rank: int) -> int:
    """The number of what a rank does as it begins: a process that runs does all of it, before another one begins."""
    return next_number(state) + (rank + 1) * BEGINS


def part_number(action: int, exchanges: int) -> int:
    """Of what comes to a tensor rank for one of its actions from one that has made so many exchanges for it."""
    return 2 * action + exchanges % 2


def which_action(part: int) -> int:
    """Of whose `part_number` this is."""
    return part // 2


def peer_number(program: Program, state: State, action: int, rank: int, peer: int) -> int:
    """One of the other tensor ranks of a rank, for an action of that rank."""
    place = program.group_start[program.group[rank]]
    number = action * (len(state.posted_ahead) // len(program.duration_s))
    while program.together[place] != peer:
        place += 1
        number += 1
    return int(number)


def push(events: list[Event], when: float, number: int, what: int, subject: int, detail: int) -> None:
    """Schedule an event."""
    heapq.heappush(events, (when, number, what, subject, detail))


def append(numbers: list[int], number: int) -> None:
    """One more."""
    numbers.append(number)


def put_first(numbers: list[int], number: int) -> None:
    """One more, before all others."""
    numbers.insert(0, number)


def piece_number(hops: int, which: int) -> int:
    """A piece of a message at a router: the hops it has made, and which piece it is (LAST, MORE or AHEAD)."""
    return hops * PIECES + which


def hops_made(piece: int) -> int:
    """The hops of a piece's number."""
    return piece // PIECES


def which_piece(piece: int) -> int:
    """Which piece a number means."""
    return piece % PIECES
