"""The event model compiled: the same rules as simulate.py, on arrays, for large plans and for searching.

simulate.py is the readable definition; tests hold the two equal.
"""

from __future__ import annotations

import heapq

import numba
import numpy as np

from testbed.model.lower import NONE, Floats, Program, lower
from testbed.model.simulate import DeadlockError, Receives
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem

_END, _LEAVE, _HOP = 0, 1, 2
ARRIVED = 2
"""Row of the messages' times that tells when each arrived."""


class Times:
    """When everything happened: per action enter, ready, start and end; per message posted, sent, arrived, awaited."""

    def __init__(
        self, enter: Floats, ready: Floats, start: Floats, end: Floats, messages: Floats, edges_from: int
    ) -> None:
        self.enter, self.ready, self.start, self.end = enter, ready, start, end
        self.edges_from = edges_from
        self.posted, self.sent, self.arrived, self.awaited = messages

    @property
    def makespan_s(self) -> float:
        """Seconds to the end of the last action; nan when the schedule never finishes."""
        return float(last_end(self.end, self.arrived, self.edges_from))


def execute(program: Program, receives: Receives = "early") -> Times:
    """Run a program; an action that never comes to run has nan times."""
    if receives == "late-free-notice":
        program = program._replace(notice_s=np.zeros_like(program.notice_s))
    enter, ready, start, end, messages = _execute(*program, receives != "early")
    return Times(enter, ready, start, end, messages, int(program.edge_start[0]))


@numba.njit(cache=True)
def last_end(end, arrived, edges_from):
    """Seconds to the end of the last action and the last reduce-scatter; nan when one never comes."""
    last = 0.0
    for times in (end, arrived[edges_from:]):
        for when in times:
            if np.isnan(when):
                return np.nan
            last = max(last, when)
    return last


@numba.njit(cache=True)
def _execute(
    row_start,
    duration,
    needs,
    makes,
    not_before_s,
    completes,
    target_rank,
    wire_bytes,
    piece_bytes,
    pieces,
    acks,
    ack_start,
    ack_bytes,
    route_of,
    edge_start,
    route_start,
    route_links,
    extra_s,
    unnoticed_wait_s,
    taken_s,
    delay_s,
    seconds_per_byte,
    notice_s,
    late,
):
    n_ranks = len(row_start) - 1
    n = len(duration)
    n_messages = len(target_rank)
    n_stages = len(edge_start) - 1
    n_links = max(1, len(delay_s))
    enter, ready = np.full(n, np.nan), np.full(n, np.nan)
    start, end = np.full(n, np.nan), np.full(n, np.nan)
    messages = np.full((4, n_messages), np.nan)
    posted, sent, arrived, awaited = messages[0], messages[1], messages[2], messages[3]
    awaited[:] = 0.0
    link_free = taken_s.copy()
    # a stage's ring goes when the gradients of all its microbatches are there
    gradients_left = np.zeros(n_stages, np.int64)
    for stage in completes:
        if stage != NONE:
            gradients_left[stage] += 1
    position = row_start[:-1].copy()
    rank_free = np.zeros(n_ranks)
    waiting = np.full(n_messages, NONE)
    pieces_left = np.maximum(pieces, 1)
    last_bit = np.zeros(n_messages)
    # acknowledgements: from, until, seconds that they occupy their link; per link a queue in its part of the list
    queued = np.zeros((ack_start[-1], 3))
    ack_head, ack_tail = ack_start[:-1].copy(), ack_start[:-1].copy()

    # a heap of (time, sequence, what, rank or message); sequence breaks ties: first scheduled, first served.
    # what is on its way has n_messages added to its number for each hop, and for all of them if a piece is not the last
    events = [(0.0, 0, 0, 0)]
    events.clear()
    sequence = 0
    # ranks to move on, and messages to move along, at the time at hand
    reach = [0]
    reach.clear()
    for rank in range(n_ranks):
        reach.append(rank)
    now = 0.0
    index = 0
    while True:
        while index < len(reach):
            rank = reach[index]
            index += 1
            action = position[rank]
            if action == row_start[rank + 1]:
                continue
            message = needs[action]
            if message != NONE and np.isnan(arrived[message]):
                waiting[message] = rank
                if late:
                    posted[message] = rank_free[rank]
                    if not np.isnan(sent[message]):
                        sequence += 1
                        leave = rank_free[rank] + notice_s[route_of[message]]
                        heapq.heappush(events, (leave, sequence, _LEAVE, message))
                continue
            came = not_before_s[action] if message == NONE else max(arrived[message], not_before_s[action])
            enter[action], ready[action] = rank_free[rank], came
            start[action] = came if came > rank_free[rank] + unnoticed_wait_s else rank_free[rank]
            end[action] = start[action] + duration[action]
            sequence += 1
            heapq.heappush(events, (end[action], sequence, _END, rank))
        if len(events) == 0:
            break
        now, _, what, subject = heapq.heappop(events)
        reach.clear()
        index = 0
        message = NONE
        if what == _END:
            rank = subject
            action = position[rank]
            position[rank] += 1
            rank_free[rank] = now
            stage = completes[action]
            if stage != NONE:
                gradients_left[stage] -= 1
                if gradients_left[stage] == 0:
                    for edge in range(edge_start[stage], edge_start[stage + 1]):
                        sequence += 1
                        heapq.heappush(events, (now, sequence, _LEAVE, edge))
                        sent[edge] = now
            made = makes[action]
            if made != NONE:
                if target_rank[made] == rank:
                    sent[made] = now
                    arrived[made] = now
                else:
                    sent[made] = now
                    if not late:
                        message = made
                        last_bit[made] = now
                    elif not np.isnan(posted[made]):
                        sequence += 1
                        leave = max(now, posted[made] + notice_s[route_of[made]])
                        heapq.heappush(events, (leave, sequence, _LEAVE, made))
            reach.append(rank)
        else:
            message = subject % n_messages
            if what == _LEAVE:
                last_bit[message] = now
        if message == NONE:
            continue
        # a piece's first bit is at the head of the next link of the route; all pieces are at the head of the first
        route = route_of[message]
        hops, count, more = 0, pieces_left[message], 0
        if what == _HOP:
            hops, count = subject // n_messages % n_links, 1
            more = subject // n_messages // n_links
        together = pieces[message] == 0
        hop = route_start[route] + hops
        came = now
        for piece in range(count):
            if what != _HOP:
                more = int(piece + 1 < count)
            size = piece_bytes[message] if more else wire_bytes[message]
            came = last_bit[message] if together else now
            if hop < route_start[route + 1]:
                link = route_links[hop]
                if ack_head[link] < ack_tail[link]:
                    link_free[link], ack_head[link] = _carry_acks(
                        queued, ack_head[link], ack_tail[link], link_free[link], now
                    )
                begin = max(now, link_free[link])
                finish = max(begin + size * seconds_per_byte[link], came)
                link_free[link] = finish
                came = finish + delay_s[link]
                if hop + 1 < route_start[route + 1]:
                    last_bit[message] = came
                    out = begin if together else finish  # cut through, or stored and forwarded
                    sequence += 1
                    onward = message + (hops + 1 + more * n_links) * n_messages
                    heapq.heappush(events, (out + delay_s[link], sequence, _HOP, onward))
                    continue
                if acks[message]:
                    first, last = begin + delay_s[link], came
                    first += (last - first) / acks[message]
                    back = route % n_ranks * n_ranks + route // n_ranks
                    for other in route_links[route_start[back] : route_start[back + 1]]:
                        place = ack_tail[other]
                        ack_tail[other] += 1
                        queued[place, 0], queued[place, 1] = first, last
                        queued[place, 2] = acks[message] * ack_bytes[message] * seconds_per_byte[other]
                        first, last = first + delay_s[other], last + delay_s[other]
            pieces_left[message] -= 1
        if pieces_left[message] > 0:
            continue
        arrived[message] = came + extra_s[route]
        receiver = waiting[message]
        if receiver != NONE:
            awaited[message] = 1.0
            waiting[message] = NONE
            reach.insert(0, receiver)
    return enter, ready, start, end, messages


@numba.njit(cache=True)
def _carry_acks(queued, head, tail, free, now):
    """When a link is free that has carried what was `queued` behind its load until now, and the queue's new head."""
    while head < tail and queued[head, 0] <= now:
        begin, end, busy = queued[head]
        until = min(end, now)
        share = (until - begin) / (end - begin) if end > begin else 1.0
        if free > begin:
            free += busy * (share if free >= until else (free - begin) / (end - begin))
        if until < end:
            queued[head, 0], queued[head, 2] = until, busy * (1 - share)
            break
        head += 1
    return free, head


def makespan(problem: Problem, schedule: Schedule) -> float:
    """Seconds from the common start to the end of the last action. Raises DeadlockError when it never comes."""
    seconds = execute(lower(problem, schedule)).makespan_s
    if np.isnan(seconds):
        raise DeadlockError(f"schedule {schedule.name} waits for itself")
    return seconds
