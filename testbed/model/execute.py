"""The event loop of the model: ranks run their rows in order, messages cross the network (network.py).

Plain functions on arrays: interpreted as they are for small plans, compiled (compile.py) for large ones and for
searches that judge thousands of schedules.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints, acknowledge, carry_acknowledgements, idle, occupy
from testbed.model.program import FREE, NONE, Program

COMPILED = ("execute", "last_end")
"""What compile.py compiles of this module."""

_REACH, _END, _LEAVE, _HOP, _ACK, _ARRIVE, _GATHER, _SUM = 0, 1, 2, 3, 4, 5, 6, 7
"""What happens at an event: a rank begins, an action ends, a message leaves, a piece of one is at a router, an
acknowledgement where a link begins, a message has come (where gloo's thread may be asleep), a tensor rank sends its
part of an input, or those of a group their summands."""

_EARLIER = 1 << 50
"""Taken off an acknowledgement's sequence: it comes before all else at that instant, as one out of a queue does."""

_LAST, _MORE, _AHEAD = 0, 1, 2
"""Pieces of a message: the last one, one that more follow, the packet that goes ahead."""

_WAKES, _ANSWERED = 0, 1
"""A message has come: gloo's thread is woken, or it answers since it is awake."""


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


def execute(program: Program, order: Ints) -> Times:
    """Run a program; an action that never comes to run has nan times.

    `order` holds the actions in the order in which each rank runs them, rank after rank: a permutation within each row.
    One long function on purpose: handing its state, many arrays, from one compiled function to another counts the
    references to each of them, which made it ten times slower.
    """
    wires = idle(
        program.delay_s, program.seconds_per_byte, program.queue_start, program.queue_link, program.acknowledgements
    )
    n_actions, n_messages = len(program.duration_s), len(program.release)
    reached, ready = np.full(n_actions, np.nan), np.full(n_actions, np.nan)
    start, end = np.full(n_actions, np.nan), np.full(n_actions, np.nan)
    posted, sent = np.full(n_messages, np.nan), np.full(n_messages, np.nan)
    arrived, awaited = np.full(n_messages, np.nan), np.zeros(n_messages)
    position, rank_free, sending_until = program.row_start[:-1].copy(), program.begin_s.copy(), program.begin_s.copy()
    release, may_leave, lag = program.release.copy(), np.zeros(n_messages), program.lag_s.copy()
    pieces_left, last_bit = np.maximum(program.pieces, 1), np.zeros(n_messages)
    shards_left, gathered = program.shards.copy(), np.zeros(len(program.shards))
    gradients_left, sums_left = program.gradients.copy(), program.sums.copy()
    gathering, gathered_until = np.zeros(len(program.group_start) - 1), np.zeros(len(program.group_start) - 1)
    awake, notices = np.full(len(rank_free), -1.0), program.answered.any()
    missing, begin_together = program.group_start[1:] - program.group_start[:-1], np.zeros(len(program.group_start) - 1)
    rank_waiting, stage_waiting = np.full(n_messages, NONE), np.full(len(program.shards), NONE)

    # a heap of (time, sequence, what, rank or message, hops made * 3 + which piece: _LAST, _MORE or _AHEAD; of an
    # acknowledgement, hops made)
    # sequence breaks ties: first scheduled, first served
    events = [(0.0, 0, 0, 0, 0)]
    events.clear()
    sequence = 0
    for message in program.first:
        sequence += 1
        heapq.heappush(events, (program.first_s[message], sequence, _LEAVE, message, 0))
    for rank in range(len(program.row_start) - 1):
        sequence += 1
        heapq.heappush(events, (rank_free[rank], sequence, _REACH, rank, 0))
    # ranks that may go on, and messages that have one thing less to wait for, at the time at hand
    reach = [0]
    reach.clear()
    freed = [0]
    freed.clear()
    index, scheduled, what = 0, 0, _REACH
    while True:
        # --- messages: one that waits for nothing more leaves, before a rank goes on that waited for the same
        for message in freed:
            release[message] -= 1
            if release[message] == 0:
                if np.isnan(sent[message]):
                    sent[message] = max(may_leave[message], program.first_s[message])
                sequence += 1
                heapq.heappush(events, (may_leave[message], sequence, _LEAVE, message, 0))
        freed.clear()
        # --- ranks: start the next action, or wait for its input
        while index < len(reach):
            rank = reach[index]
            index += 1
            if position[rank] == program.row_start[rank + 1]:
                continue
            action = order[position[rank]]
            message, stage = program.needs[action], program.unshards[action]
            if message != NONE and np.isnan(arrived[message]):
                rank_waiting[message] = rank
                notice = program.notice[message]
                if notice != NONE:
                    posted[message] = max(rank_free[rank], sending_until[rank])
                    subject = message if notice == FREE else notice
                    may_leave[subject] = max(may_leave[subject], posted[message])
                    if what == _END and notice != FREE:  # with what it has just sent, before other ranks' messages
                        release[subject] -= 1
                        sent[subject] = may_leave[subject]
                        heapq.heappush(events, (may_leave[subject], scheduled + 3, _LEAVE, subject, 0))
                    else:
                        freed.append(subject)
                continue
            if stage != NONE and shards_left[stage] > 0:
                stage_waiting[stage] = rank
                continue
            came = program.begin_s[rank]
            if message != NONE:
                came = max(came, arrived[message])
            if stage != NONE:
                came = max(came, gathered[stage])
            # tensor ranks begin an action together, when the last of them has its input
            group = program.group[rank]
            if program.card[rank] != NONE and program.gathered_bytes[action] > 0:
                sequence += 1
                heapq.heappush(events, (max(came, rank_free[rank]), sequence, _GATHER, rank, action))
            begin_together[group] = max(begin_together[group], came)
            missing[group] -= 1
            if missing[group] > 0:
                continue
            came, begin_together[group] = begin_together[group], 0.0
            for place in range(program.group_start[group], program.group_start[group + 1]):
                member = program.together[place]
                missing[group] += 1
                action = order[position[member]]
                reached[action], ready[action] = rank_free[member], came
                start[action] = came if came > rank_free[member] + program.unnoticed_wait_s else rank_free[member]
                end[action] = start[action] + program.duration_s[action]
                sequence += 4  # what the rank sends then comes behind it, before all else at that instant
                heapq.heappush(events, (end[action], sequence - 3, _END, member, 0))
            # in their turn among what the ranks pass on meanwhile
            if program.card[rank] != NONE and program.gathered_bytes[action] == 0 and sums_left[action] > 0:
                sequence += 1
                heapq.heappush(events, (max(start[action], came), sequence, _SUM, group, action))
        if len(freed) > 0:
            continue
        reach.clear()
        index = 0
        if len(events) == 0:
            break
        now, scheduled, what, subject, piece = heapq.heappop(events)
        message = NONE
        if what == _REACH:
            reach.append(subject)
            continue
        if what == _GATHER:
            card, group = program.card[subject], program.group[subject]
            carry_acknowledgements(wires, card, now)
            occupy(wires, card, program.gathered_bytes[piece], now, now)
            over = wires.free_s[card] + wires.delay_s[card] + program.exchange_handover_s
            gathered_until[group] = max(gathered_until[group], over)
            gathering[group] += 1
            if gathering[group] == program.group_start[group + 1] - program.group_start[group]:
                if sums_left[piece] > 0:
                    sequence += 1
                    heapq.heappush(events, (gathered_until[group], sequence, _SUM, group, piece))
                gathering[group], gathered_until[group] = 0, 0.0
            continue
        if what == _SUM:
            over = now
            for place in range(program.group_start[subject], program.group_start[subject + 1]):
                card = program.card[program.together[place]]
                carry_acknowledgements(wires, card, now)
                occupy(wires, card, program.summed_bytes[piece], now, now)
                over = max(over, wires.free_s[card] + wires.delay_s[card] + program.exchange_handover_s)
            sums_left[piece] -= 1
            if sums_left[piece] > 0:
                sequence += 1
                heapq.heappush(events, (over, sequence, _SUM, subject, piece))
            continue
        if what == _ACK:
            back = program.back[subject]
            hop = program.route_start[back] + piece
            link = program.route_links[hop]
            carry_acknowledgements(wires, link, now)
            occupy(wires, link, program.ack_bytes[subject], now, now)
            if hop + 1 < program.route_start[back + 1]:
                sequence += 1
                there = wires.free_s[link] + wires.delay_s[link]
                heapq.heappush(events, (there, sequence - _EARLIER, _ACK, subject, piece + 1))
            continue
        if what == _END:
            rank = subject
            action = order[position[rank]]
            position[rank] += 1
            rank_free[rank] = now
            made, stage = program.makes[action], program.completes[action]
            if made != NONE:
                sent[made] = now
                announced = program.announcement[made]
                if program.local[made]:
                    arrived[made] = now
                elif program.release[made] > 1:
                    if announced != NONE:
                        may_leave[announced] = now
                        heapq.heappush(events, (now, scheduled, _LEAVE, announced, 0))
                    may_leave[made] = max(may_leave[made], now)
                    release[made] -= 1
                    if release[made] == 0:  # its receive is posted already: this call sends it, not gloo's thread
                        sending_until[rank] = now + program.send_s[made]
                        heapq.heappush(events, (may_leave[made], scheduled + 1, _LEAVE, made, 0))
                else:  # at once, before whatever else happens at this instant
                    message, what = made, _LEAVE
            if stage != NONE:
                gradients_left[stage] -= 1
                if gradients_left[stage] == 0:
                    for place in range(program.reduce_start[stage], program.reduce_start[stage + 1]):
                        shard = program.reduces[place]
                        may_leave[shard] = max(may_leave[shard], now)
                        release[shard] -= 1
                        if release[shard] == 0:  # before what other ranks do at this instant
                            sent[shard] = may_leave[shard]
                            heapq.heappush(events, (may_leave[shard], scheduled + 2, _LEAVE, shard, 0))
            reach.append(rank)
            if message == NONE:
                continue
        else:
            message = subject
        # --- network: a piece's first bit is at the head of a link; all pieces are at the head of the first
        hops, count, which = piece // 3, 1, piece % 3
        came = now
        # what came before its rank began is passed on then, in the order in which it came
        if what == _LEAVE and (now < program.first_s[message] or lag[message] > 0):
            sequence += 1
            later = max(now, program.first_s[message]) + lag[message]
            heapq.heappush(events, (later, sequence, _LEAVE, message, 0))
            lag[message] = 0.0
            continue
        if what == _ARRIVE:
            count = 0
        if what == _LEAVE:
            last_bit[message] = now
            count = pieces_left[message]
            if np.isnan(sent[message]):
                sent[message] = now
        together = program.pieces[message] == 0
        route = program.route[message]
        hop, end_of_route = program.route_start[route] + hops, program.route_start[route + 1]
        for number in range(count):
            if what == _LEAVE:
                which = _MORE if number + 1 < count else _LAST
                if number == 0 and not together and program.apart_bytes[message] > 0:
                    which = _AHEAD
            size = program.wire_bytes[message]
            if which != _LAST:
                size = program.piece_bytes[message] if which == _MORE else program.apart_bytes[message]
            came = last_bit[message] if together else now
            if hop < end_of_route:
                link = program.route_links[hop]
                carry_acknowledgements(wires, link, now)
                begin = occupy(wires, link, size, now, came)
                came = wires.free_s[link] + wires.delay_s[link]
                if hop + 1 < end_of_route:
                    out = begin if together else wires.free_s[link]  # cut through, or stored and forwarded
                    last_bit[message] = came
                    sequence += 1
                    onward = (hops + 1) * 3 + which
                    heapq.heappush(events, (out + wires.delay_s[link], sequence, _HOP, message, onward))
                    continue
                if program.acks[message] > 0:
                    acks, first, step, queue = 1, came, 0.0, program.ack_queue[message]
                    if together:  # super-packets arrive one after the other, behind the packet that goes ahead
                        acks, apart = program.acks[message], program.apart_bytes[message]
                        step = program.piece_bytes[message] * wires.seconds_per_byte[link]
                        first = begin + wires.delay_s[link]
                        first += apart * wires.seconds_per_byte[link] if apart > 0 else step
                        first = min(first, came)
                    if queue != NONE:
                        acknowledge(wires, queue, program.ack_bytes[message], (first, step, came), acks)
                    elif program.route_start[program.back[message]] < program.route_start[program.back[message] + 1]:
                        for one in range(acks):
                            sequence += 1
                            there = min(first + one * step, came) if one + 1 < acks else came
                            heapq.heappush(events, (there, sequence - _EARLIER, _ACK, message, 0))
            pieces_left[message] -= 1
        if pieces_left[message] > 0:
            continue
        # --- arrival: hand over to the rank, to the messages that follow from it, to the stage that gathers
        when = came + program.handover_s[message]
        if notices:
            # who wakes gloo's thread, and whether it is awake, is known when everything until then has come
            if what != _ARRIVE:
                sequence += 1
                heapq.heappush(events, (came, sequence, _ARRIVE, message, _WAKES))
                continue
            if piece == _WAKES:
                receiver = program.target[message]
                asleep = now > awake[receiver]
                awake[receiver] = max(awake[receiver], now + program.wake_s)
                if program.answered[message] and asleep and program.wake_s > 0:
                    sequence += 1
                    heapq.heappush(events, (now + program.wake_s, sequence, _ARRIVE, message, _ANSWERED))
                    continue
        arrived[message] = when
        if rank_waiting[message] != NONE:
            awaited[message] = 1.0
            reach.insert(0, rank_waiting[message])
            rank_waiting[message] = NONE
        for place in range(program.then_start[message], program.then_start[message + 1]):
            following = program.then[place]
            may_leave[following] = max(may_leave[following], when)
            freed.append(following)
        stage = program.gathers[message]
        if stage != NONE:
            shards_left[stage] -= 1
            gathered[stage] = max(gathered[stage], when)
            if shards_left[stage] == 0 and stage_waiting[stage] != NONE:
                reach.insert(0, stage_waiting[stage])
    return Times(reached, ready, start, end, posted, sent, arrived, awaited, wires.free_s)


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
