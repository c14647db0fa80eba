"""The event model: executes a schedule on the costs of a problem and returns the trace it predicts.

Ranks run their rows in order. A message leaves when its producer ends, waits its turn on every directed link of its
route (first come, first served), occupies the link for its time on the wire, and arrives one delay later
(CrossPipe, section 3.5). Several hops are cut through: a message may leave a router while its tail still comes in.
Where the problem says in which pieces (super-packets) messages travel, each piece is stored, queued and forwarded by
itself, so what a router's own site sends meanwhile comes between them; and each is acknowledged over the route back.
Data-parallel collectives take the same links (pipeline/collective.py): an F waits for its stage's parameters too, and
the iteration ends when the last gradients are reduced.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Literal, NamedTuple

import numpy as np

from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.problem import Problem
from testbed.trace.tables import (
    ACTION,
    ALL_GATHER,
    KINDS,
    MESSAGE,
    MESSAGE_CODES,
    NO_MICROBATCH,
    REDUCE_SCATTER,
    Table,
    Trace,
)

Receives = Literal["early", "late", "late-free-notice"]
"""When a receive is posted: a step ahead, or when its rank reaches the action. Gloo's notice of that crosses the link;
a free notice takes no time, as where delay is injected into the data alone (CrossPipe, appendix F.1)."""


class DeadlockError(RuntimeError):
    """The schedule waits for itself; `validate` says where."""


def simulate(problem: Problem, schedule: Schedule, *, receives: Receives = "early") -> Trace:
    """The predicted trace of one iteration.

    `receives="late"` adds gloo's rendezvous (reading/pipelining.md, section 2): a receive is posted when its rank
    reaches the action, and the message does not leave before the notice of that has crossed the link;
    `late-free-notice` is the same with a notice that takes no time.
    Raises DeadlockError when the schedule cannot finish.
    """
    return _Simulation(problem, schedule, receives).run()


_UNKNOWN = float("nan")


class _Edge(NamedTuple):
    """One edge of the ring that reduces a stage's gradients."""

    stage: int
    leg: int


class _Simulation:
    def __init__(self, problem: Problem, schedule: Schedule, receives: Receives) -> None:
        self.problem, self.schedule = problem, schedule
        self.late, self.free_notice = receives != "early", receives == "late-free-notice"
        self.events: list[tuple[float, int, int, object]] = []
        self.sequence = 0  # equal times: first scheduled, first served
        self.position = [0] * schedule.n_ranks
        self.rank_free = [0.0] * schedule.n_ranks
        self.link_free = list(problem.gathered.link_free_s)
        self.pieces_left: dict[Message, int] = {}
        self.acks: list[deque[tuple[float, float, float]]] = [deque() for _ in problem.links]
        """Per link, acknowledgements on their way: from, until, seconds that they occupy it."""
        self.gradients_left = [schedule.n_microbatches] * schedule.n_stages
        self.arrived: dict[Message, float] = {}
        self.sent: dict[Message | _Edge, float] = {}
        self.posted: dict[Message, float] = {}
        self.waiting: dict[Message, int] = {}  # message -> rank that has reached its consumer
        self.actions: list[tuple[object, ...]] = []
        self.messages: list[tuple[object, ...]] = []
        self.taken: dict[int, float] = {}  # row in `messages` -> when its receiver had it in hand
        self.row_of: dict[Message, int] = {}

    _END, _LEAVE, _HOP = range(3)

    def run(self) -> Trace:
        self._all_gather()
        for rank in range(self.schedule.n_ranks):
            self._reach(rank)
        while self.events:
            now, _, what, data = heapq.heappop(self.events)
            if what == self._END:
                self._end(now, data)  # type: ignore[arg-type]
            elif what == self._LEAVE:
                self._leave(now, data)  # type: ignore[arg-type]
            else:
                self._hop(now, *data)  # type: ignore[misc]
        for rank, row in enumerate(self.schedule.rows):
            if self.position[rank] < len(row):
                raise DeadlockError(
                    f"schedule {self.schedule.name}: rank {rank} never gets past {row[self.position[rank]]}"
                )
        actions = np.array(self.actions, dtype=ACTION)
        order = np.lexsort((actions["start_s"], actions["rank"]))
        return Trace(actions[order], self._message_table(), self.schedule.n_ranks)

    def _at(self, when: float, what: int, data: object) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, what, data))

    def _reach(self, rank: int) -> None:
        """The rank has come to its next action: start it, or wait for its input."""
        row = self.schedule.rows[rank]
        if self.position[rank] == len(row):
            return
        action = row[self.position[rank]]
        message = consumed(action, self.schedule.n_stages)
        if message is None or message in self.arrived:
            self._start(rank, action, 0.0 if message is None else self.arrived[message])
            return
        self.waiting[message] = rank
        if self.late:
            self.posted[message] = self.rank_free[rank]
            if message in self.sent:
                self._at(self.rank_free[rank] + self._notice_delay(message), self._LEAVE, message)

    def _start(self, rank: int, action: Action, ready: float) -> None:
        enter = self.rank_free[rank]
        message = consumed(action, self.schedule.n_stages)
        if message in self.row_of:
            self.taken[self.row_of[message]] = max(enter, ready)
        if action.kind is Kind.F:
            ready = max(ready, self.problem.gathered.ready_s[action.stage])
        start = ready if ready > enter + self.problem.unnoticed_wait_s else enter
        end = start + self.problem.duration(action)
        self.position[rank] += 1
        kind = KINDS.index(action.kind)
        self.actions.append(
            (0, 0, 0, rank, action.stage, kind, action.microbatch, *action.part, enter, ready, start, end, end)
        )
        self._at(end, self._END, (rank, action))

    def _end(self, now: float, data: tuple[int, Action]) -> None:
        rank, action = data
        self.rank_free[rank] = now
        if action.kind in (Kind.B, Kind.W) and action.part.is_last:
            self.gradients_left[action.stage] -= 1
            if self.gradients_left[action.stage] == 0:
                for leg in range(len(self.problem.reduction(action.stage).legs)):
                    self._at(now, self._LEAVE, _Edge(action.stage, leg))
        message = produced(action, self.schedule.n_stages)
        if message is not None:
            target = self.schedule.stage_to_rank[message.consumer]
            if target == rank:
                self.arrived[message] = now
            else:
                self.sent[message] = now
                if not self.late:
                    self._leave(now, message)
                elif message in self.posted:
                    leave = max(now, self.posted[message] + self._notice_delay(message))
                    self._at(leave, self._LEAVE, message)
        self._reach(rank)

    def _ends(self, message: Message) -> tuple[int, int]:
        ranks = self.schedule.stage_to_rank
        return ranks[message.stage], ranks[message.consumer]

    def _notice_delay(self, message: Message) -> float:
        source, target = self._ends(message)
        return 0.0 if self.free_notice else self.problem.route_delay(target, source)

    def _leave(self, now: float, what: Message | _Edge) -> None:
        """A message, or what an edge of a ring carries, is handed to the first link of its route."""
        if isinstance(what, _Edge):
            collective = self.problem.reduction(what.stage)
            self.sent[what] = now
            self._hop(now, what, collective.legs[what.leg], collective.wire_bytes, now)
            return
        ends, size = self._ends(what), self._bytes(what)
        route = self.problem.route(*ends)
        # on a single link the pieces follow each other: they may as well keep together
        count = max(1, self.problem.pieces(*ends, size)) if len(route) > 1 else 1
        self.pieces_left[what] = count
        for _ in range(count - 1):
            self._hop(now, what, route, self.problem.piece_bytes[ends[0]], now)
            size -= self.problem.piece_bytes[ends[0]]
        self._hop(now, what, route, size, now)

    def _hop(self, now: float, what: Message | _Edge, route: tuple[int, ...], size: float, last_bit: float) -> None:
        """A piece's first bit is at the head of the first link of `route`; its last bit comes there at `last_bit`."""
        if not route:
            self._arrive(what, last_bit)
            return
        link = self.problem.links[route[0]]
        start = max(now, self._free(route[0], now))
        end = max(start + size * link.seconds_per_byte, last_bit)
        self.link_free[route[0]] = end
        if len(route) == 1:
            self._acknowledge(what, size, start + link.delay_s, end + link.delay_s)
            self._arrive(what, end + link.delay_s)
        else:
            together = isinstance(what, _Edge) or not self.problem.piece_bytes
            out = start if together else end  # cut through, or stored and forwarded
            self._at(out + link.delay_s, self._HOP, (what, route[1:], size, end + link.delay_s))

    def _acknowledge(self, what: Message | _Edge, size: float, begin: float, end: float) -> None:
        """What comes in from `begin` to `end` is acknowledged piece by piece, over the route back."""
        if isinstance(what, _Edge) or not self.problem.ack_bytes:
            return
        source, target = self._ends(what)
        ack_bytes = self.problem.ack_bytes[source]
        count = 1 if len(self.problem.route(source, target)) > 1 else self.problem.pieces(source, target, size)
        begin += (end - begin) / count
        for index in self.problem.route(target, source):
            link = self.problem.links[index]
            self.acks[index].append((begin, end, count * ack_bytes * link.seconds_per_byte))
            begin, end = begin + link.delay_s, end + link.delay_s

    def _free(self, index: int, now: float) -> float:
        """When a link is free, once it has carried the acknowledgements that have queued behind what occupies it."""
        free, acks = self.link_free[index], self.acks[index]
        while acks and acks[0][0] <= now:
            begin, end, busy = acks[0]
            until = min(end, now)
            share = (until - begin) / (end - begin) if end > begin else 1.0
            if free > begin:  # those that find the link idle are in nobody's way
                free += busy * (share if free >= until else (free - begin) / (end - begin))
            if until < end:
                acks[0] = (until, end, busy * (1 - share))
                break
            acks.popleft()
        return free

    def _arrive(self, what: Message | _Edge, when: float) -> None:
        if isinstance(what, _Edge):
            collective = self.problem.reduction(what.stage)
            when += collective.extra_delay_s(what.leg, self.problem.links)
            self._record(REDUCE_SCATTER, what.stage, collective.wire_bytes, self.sent[what], when)
            return
        self.pieces_left[what] -= 1
        if self.pieces_left[what] > 0:
            return
        source, target = self._ends(what)
        when += self.problem.handover_s
        self.arrived[what] = when
        rank = self.waiting.pop(what, None)
        self.row_of[what] = len(self.messages)
        self.messages.append(
            (
                0,
                0,
                MESSAGE_CODES[what.kind],
                what.stage,
                what.microbatch,
                source,
                target,
                _UNKNOWN,  # plan.predict knows the payload
                self._bytes(what),
                self.posted.get(what, _UNKNOWN),
                self.sent[what],
                when,
                _UNKNOWN,  # filled in when its consumer starts
                rank is not None,
            )
        )
        if rank is not None:
            self._start(rank, self.schedule.rows[rank][self.position[rank]], when)

    def _bytes(self, message: Message) -> float:
        return self.problem.message_bytes[min(message.stage, message.consumer)]

    def _all_gather(self) -> None:
        for stage, collective in enumerate(self.problem.all_gather):
            if collective.legs:
                self._record(ALL_GATHER, stage, collective.wire_bytes, 0.0, self.problem.gathered.ready_s[stage])

    def _record(self, kind: int, stage: int, size: float, sent: float, when: float) -> None:
        """A collective's row: from a stage's rank to its replicas, which have the same number."""
        rank = self.schedule.stage_to_rank[stage]
        times = (_UNKNOWN, sent, when, when)
        self.messages.append((0, 0, kind, stage, NO_MICROBATCH, rank, rank, _UNKNOWN, size, *times, False))

    def _message_table(self) -> Table:
        table = np.array(self.messages, dtype=MESSAGE)
        for row, taken_s in self.taken.items():
            table["taken_s"][row] = taken_s
        return table
