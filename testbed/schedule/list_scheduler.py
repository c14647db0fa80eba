"""Event-driven list scheduling of whole blocks for any placement: a free rank starts the best action that is ready.

Links are those of the event model (first come, first served, several hops cut through), so what it plans is what
`simulate` predicts, but for reduce-scatters, which follow a stage's last action. Costs O(S M v log(S M)) for S stages,
M microbatches and v stages per rank.
By default an input gradient goes before a forward, and that before a weight gradient. A banker's check (Dijkstra) keeps
ranks with several stages out of deadlock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from testbed.errors import BadInput
from testbed.model.gather import gathered
from testbed.model.network import idle_links, occupy
from testbed.pipeline.depend import produced
from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem

Priority = Callable[[int, Kind, int], Any]
"""(stage, kind, microbatch) -> a key; among ready actions of a rank the lowest key starts. Asked once per action."""

_KINDS = (Kind.F, Kind.I, Kind.W)
_F, _I, _W = range(3)
_NEVER = math.inf


def input_first(stage: int, kind: Kind, microbatch: int) -> tuple[int, int, int]:
    """I before F before W; within a kind the deeper stage first: what was begun comes to its end."""
    return ((1, 0, 2)[_KINDS.index(kind)], -stage, microbatch)


def oldest_first(stage: int, kind: Kind, microbatch: int) -> tuple[int, int, int]:
    """I before F before W; within a kind the oldest microbatch first, the deeper stage at equal age."""
    return ((1, 0, 2)[_KINDS.index(kind)], microbatch, -stage)


def forward_first(stage: int, kind: Kind, microbatch: int) -> tuple[int, int, int]:
    """F before I before W; within a kind the deeper stage first."""
    return (_KINDS.index(kind), -stage, microbatch)


def list_schedule(
    problem: Problem,
    *,
    priority: Priority = input_first,
    alternate: bool = False,
    patience_s: float = 0.0,
    in_flight: tuple[float, ...] | None = None,
    name: str = "list",
) -> Schedule:
    """A valid schedule of whole F, I and W blocks, microbatches in order per stage and kind.

    priority: the static key of every action. alternate: after an I prefer F, after an F prefer I, whatever their keys.
    patience_s: seconds a rank stays idle for a message that is on its way and has a better key than what is ready.
    in_flight: per rank, a tighter memory limit (microbatches of a whole rank) to plan with.
    Raises BadInput when a rank cannot hold a single microbatch.
    """
    return _Lister(problem, priority, alternate, patience_s, in_flight).run(name)


class _Memory:
    """What a rank holds, and whether every microbatch it has begun can still be finished in what is left."""

    def __init__(self, problem: Problem, rank: int, limit: float) -> None:
        self.limit = limit + TOLERANCE
        self.stages = [s for s, r in enumerate(problem.stage_to_rank) if r == rank]
        self.deltas = {
            stage: tuple(problem.memory_delta(Action(stage, kind, 0)) for kind in _KINDS) for stage in self.stages
        }
        ways = [(s, _F) for s in self.stages]
        ways += [(s, kind) for s in reversed(self.stages) for kind in (_I, _W)]
        self.way = ways
        """A microbatch's way through this rank that needs the least memory: all F, then I and W stage by stage."""
        self.peak = self._need(())
        self.simple = len(self.stages) == 1 and all(deltas[_I] <= 0 for deltas in self.deltas.values())
        """Whether what has begun never needs more, so that any F that fits is safe."""
        self.held = 0.0
        self.begun: dict[int, set[tuple[int, int]]] = {}
        """microbatch -> (stage, kind) done or begun, for microbatches in flight, in ascending order"""
        self.holds: dict[int, float] = {}

    def _need(self, done: set[tuple[int, int]] | tuple[()]) -> float:
        level = most = 0.0
        for step in self.way:
            if step not in done:
                level += self.deltas[step[0]][step[1]]
                most = max(most, level)
        return most

    def allows(self, stage: int, kind: int, microbatch: int) -> bool:
        """Whether the action fits and leaves a state in which all can finish, oldest microbatch first."""
        delta = self.deltas[stage][kind]
        if delta <= 0:
            return True
        room = self.limit - self.held - delta
        if room < 0:
            return False
        if self.simple or room >= self.peak:
            return True
        fresh = microbatch not in self.begun
        for other, done in self.begun.items():
            step = {*done, (stage, kind)} if other == microbatch else done
            if self._need(step) > room:
                return False
            room += self.holds[other] + (delta if other == microbatch else 0.0)
            if room >= self.peak:
                return True
        return not fresh or self._need({(stage, kind)}) <= room

    def run(self, stage: int, kind: int, microbatch: int) -> None:
        """Account for an action; what it frees counts at once, since the rank does nothing else until it ends."""
        delta = self.deltas[stage][kind]
        self.held += delta
        if self.simple:
            return
        done = self.begun.setdefault(microbatch, set())
        done.add((stage, kind))
        self.holds[microbatch] = self.holds.get(microbatch, 0.0) + delta
        if len(done) == len(self.way):
            del self.begun[microbatch], self.holds[microbatch]


class _Lister:
    def __init__(
        self,
        problem: Problem,
        priority: Priority,
        alternate: bool,
        patience_s: float,
        in_flight: tuple[float, ...] | None,
    ) -> None:
        self.problem, self.alternate, self.patience_s = problem, alternate, patience_s
        stages, microbatches = range(problem.n_stages), range(problem.n_microbatches)
        limits = problem.memory_limit
        if in_flight is not None:
            limits = tuple(min(pair) for pair in zip(limits, in_flight, strict=True))
        self.memory = [_Memory(problem, rank, limits[rank]) for rank in range(problem.n_ranks)]
        for rank, memory in enumerate(self.memory):
            if memory.peak > memory.limit:
                expected = f"at least {memory.peak:g}, what one microbatch needs"
                raise BadInput.of("list schedule", f"memory limit of rank {rank}", limits[rank], expected)
        self.length = [tuple(problem.duration(Action(s, kind, 0)) for kind in _KINDS) for s in stages]
        self.keys = [[[priority(s, kind, m) for m in microbatches] for kind in _KINDS] for s in stages]
        self.ready = [[[_NEVER] * problem.n_microbatches for _ in _KINDS] for _ in stages]
        """When an action's input is there; infinite while that is not known."""
        gather = gathered(problem)
        self.parameters_s = gather.ready_s
        self.ready[0][_F] = [self.parameters_s[0]] * problem.n_microbatches
        self.next = [[0, 0, 0] for _ in stages]
        """Per stage and kind, the microbatch that comes next."""
        self.rows: list[list[Action]] = [[] for _ in range(problem.n_ranks)]
        self.busy = [False] * problem.n_ranks
        self.free_s = [0.0] * problem.n_ranks
        self.last = [_F] * problem.n_ranks
        self.wires = idle_links(problem.links, gather.link_free_s)
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sequence = 0
        self.touched: set[int] = set(range(problem.n_ranks))
        self._at(self.parameters_s[0], self._wake, problem.stage_to_rank[0])
        # Times that differ by rounding alone are one instant, or a rank would choose before it sees all it could.
        self.instant_s = 1e-9 * max(max(lengths) for lengths in self.length)

    def run(self, name: str) -> Schedule:
        now = 0.0
        while True:
            for rank in sorted(self.touched):
                if not self.busy[rank]:
                    self._choose(rank, now)
            self.touched.clear()
            if not self.events:
                break
            now = self.events[0][0]
            while self.events and self.events[0][0] <= now + self.instant_s:
                when, _, what, data = heapq.heappop(self.events)
                what(when, *data)
        rows = tuple(tuple(row) for row in self.rows)
        assert sum(map(len, rows)) == 3 * self.problem.n_stages * self.problem.n_microbatches
        return Schedule(name, rows, self.problem.stage_to_rank, self.problem.n_microbatches)

    def _at(self, when: float, what: Callable[..., None], *data: Any) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, what, data))

    def _choose(self, rank: int, now: float) -> None:
        """Start the best ready action of an idle rank, unless a better one comes soon."""
        best: tuple[Any, int, int, int] | None = None
        coming: list[tuple[float, Any]] = []
        memory = self.memory[rank]
        for stage in memory.stages:
            for kind in (_F, _I, _W):
                microbatch = self.next[stage][kind]
                if microbatch == self.problem.n_microbatches:
                    continue
                ready = self.ready[stage][kind][microbatch]
                if ready > now + self.instant_s and not now + self.patience_s >= ready:
                    continue
                if not memory.allows(stage, kind, microbatch):
                    continue
                turn = 0
                if self.alternate:
                    turn = 2 if kind == _W else int(kind == self.last[rank])
                key = (turn, self.keys[stage][kind][microbatch])
                if ready > now + self.instant_s:
                    coming.append((ready, key))
                elif best is None or key < best[0]:
                    best = (key, stage, kind, microbatch)
        if best is None or any(key < best[0] for _, key in coming):
            return  # the arrival that is waited for wakes the rank
        self._start(rank, now, *best[1:])

    def _start(self, rank: int, now: float, stage: int, kind: int, microbatch: int) -> None:
        self.next[stage][kind] += 1
        self.memory[rank].run(stage, kind, microbatch)
        if kind != _W:
            self.last[rank] = kind
        action = Action(stage, _KINDS[kind], microbatch)
        self.rows[rank].append(action)
        self.busy[rank] = True
        start = max(self.free_s[rank], self.ready[stage][kind][microbatch])
        self.free_s[rank] = max(start, now) + self.length[stage][kind]
        self._at(self.free_s[rank], self._end, rank, action)

    def _end(self, now: float, rank: int, action: Action) -> None:
        self.busy[rank] = False
        self.touched.add(rank)
        stage, kind, microbatch, _ = action
        assert microbatch is not None
        if kind is Kind.I:
            self.ready[stage][_W][microbatch] = now
        message = produced(action, self.problem.n_stages)
        if message is not None:
            source, target = self.problem.stage_to_rank[stage], self.problem.stage_to_rank[message.consumer]
            wanted = _F if message.kind == "F" else _I
            route = self.problem.route(source, target) if source != target else ()
            size = self.problem.planned_bytes[min(stage, message.consumer)] if route else 0.0
            self._hop(now, route, size, now, message.consumer, wanted, microbatch)
        elif kind is Kind.F:
            self.ready[stage][_I][microbatch] = now

    def _hop(
        self, now: float, route: tuple[int, ...], size: float, last_bit: float, stage: int, kind: int, microbatch: int
    ) -> None:
        """A message's first bit is at the head of `route`, its last bit comes at `last_bit` (as in `simulate`)."""
        if not route:
            self._arrives(last_bit, stage, kind, microbatch)
            return
        start, delay_s = occupy(self.wires, route[0], size, now, last_bit), self.problem.links[route[0]].delay_s
        out = float(self.wires.free_s[route[0]]) + delay_s
        if len(route) == 1:
            self._arrives(out, stage, kind, microbatch)
        else:
            self._at(start + delay_s, self._hop, route[1:], size, out, stage, kind, microbatch)

    def _arrives(self, when: float, stage: int, kind: int, microbatch: int) -> None:
        if kind == _F:
            when = max(when, self.parameters_s[stage])
        self.ready[stage][kind][microbatch] = when
        rank = self.problem.stage_to_rank[stage]
        self._at(when, self._wake, rank)

    def _wake(self, now: float, rank: int) -> None:
        self.touched.add(rank)
