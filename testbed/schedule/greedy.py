"""CrossPipe's greedy schedule, CrossUDSub (section 4.2, Algorithm 1): list scheduling of sub-blocks over delayed links.

What the paper leaves open (ties, what follows a full block) is as in its published code. Beyond the
paper, forwards wait for their stage's all-gather, and leave the memory free that an input gradient needs beside them
(recomputation), without which a rank could never go on. Reduce-scatters, which follow a stage's last action, are not
planned. Times are whole ticks (ticks.py), so that equal times tie in every unit.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from testbed.errors import BadInput
from testbed.pipeline.depend import consumed, produced
from testbed.pipeline.ir import WHOLE, Action, Kind, Part, Row, Schedule
from testbed.pipeline.problem import Problem
from testbed.pipeline.ticks import in_ticks
from testbed.schedule.family import Family
from testbed.schedule.sub_blocks import KINDS, Costs, costs

DEFAULT_SUB_BLOCKS = 4
"""CrossPipe's experiments use n_sub = 4."""


LARGE = 4000
"""Ranks x microbatches x sub-blocks from which the compiled loop is worth its import."""


def crosspipe_greedy(problem: Problem, n_sub: Annotated[int, Field(ge=1, le=64)] = DEFAULT_SUB_BLOCKS) -> Schedule:
    """CrossUDSub for one stage per rank, every block cut into `n_sub` sub-blocks.

    Raises DoesNotFit when a rank cannot hold a single microbatch, or holds several stages.
    """
    if problem.n_stages != problem.n_ranks:
        raise BadInput.of("crosspipe-greedy", "stages per rank", problem.n_stages // problem.n_ranks, "1")
    if problem.n_ranks * problem.n_microbatches * n_sub > LARGE:
        from testbed.schedule.greedy_compiled import greedy_rows

        rows = greedy_rows(in_ticks(problem), n_sub)
    else:
        rows = plain_rows(in_ticks(problem), n_sub)
    return Schedule("crosspipe-greedy", rows, problem.stage_to_rank, problem.n_microbatches)


def plain_rows(problem: Problem, n_sub: int) -> tuple[Row, ...]:
    """Algorithm 1 in plain Python, for a problem in ticks; greedy_compiled makes the same rows faster."""
    cost = costs(problem, n_sub)
    ranks = [_Rank(rank, cost, problem.n_microbatches, n_sub) for rank in range(problem.n_ranks)]
    wires = [_Wire([(0, until)] if until else []) for until in cost.link_free.tolist()]
    begin = int(cost.ready[0])
    ranks[0].available[Kind.F].extend((begin, m) for m in range(problem.n_microbatches))

    queue = [(begin, 0)]  # (earliest start, rank); stale entries are skipped when they come up
    while queue:
        when, rank = heapq.heappop(queue)
        current = ranks[rank]
        if current.next_start() != when:
            continue
        finished = current.run_sub_block(when)
        if finished is not None:
            if finished.kind is Kind.I:
                current.available[Kind.W].append((current.end, _microbatch(finished)))
            _pass_on(cost, finished, ranks, wires, queue)
        _requeue(current, queue)

    assert all(len(current.sequence) == 3 * n_sub * problem.n_microbatches for current in ranks)
    return tuple(_merge(_pull_weights_earlier(current.sequence)) for current in ranks)


def _microbatch(action: Action) -> int:
    assert action.microbatch is not None
    return action.microbatch


def _requeue(rank: _Rank, queue: list[tuple[int, int]]) -> None:
    when = rank.next_start()
    if when is not None:
        heapq.heappush(queue, (when, rank.rank))


def _pass_on(
    cost: Costs, finished: Action, ranks: list[_Rank], wires: list[_Wire], queue: list[tuple[int, int]]
) -> None:
    """Make what depends on a finished block available, after the time its message spends on the links."""
    arrival = ranks[finished.stage].end
    microbatch = _microbatch(finished)
    message = produced(finished, len(ranks))
    if message is not None:
        way, boundary = (0 if message.kind == "F" else 1), min(message.stage, message.consumer)
        hops = zip(cost.route_links[way, boundary].tolist(), cost.wire[way, boundary].tolist(), strict=True)
        for (link, occupied), delay in zip(hops, cost.delay[way, boundary].tolist(), strict=True):
            if link >= 0:
                arrival = wires[link].reserve(arrival, occupied) + delay
        target, kind = ranks[message.consumer], Kind.F if message.kind == "F" else Kind.I
    elif finished.kind is Kind.F:  # the last stage turns round without a message
        target, kind = ranks[finished.stage], Kind.I
    else:
        return
    if kind is Kind.F:
        arrival = max(arrival, int(cost.ready[target.rank]))
    assert message is None or consumed(Action(target.rank, kind, microbatch), len(ranks)) == message
    target.available[kind].append((arrival, microbatch))
    _requeue(target, queue)


@dataclass
class _Wire:
    """Reservations of one directed link: bw_model of Algorithm 1."""

    busy: list[tuple[int, int]] = field(default_factory=list)

    def reserve(self, ready: int, length: int) -> int:
        """Take the earliest free window of `length` at or after `ready`; returns its end."""
        start = ready
        position = bisect_right(self.busy, (ready, float("inf")))
        if position and self.busy[position - 1][1] > start:
            start = self.busy[position - 1][1]
        while position < len(self.busy) and self.busy[position][0] < start + length:
            start = max(start, self.busy[position][1])
            position += 1
        insort(self.busy, (start, start + length))
        return start + length


@dataclass
class _Rank:
    """One stage's state while Algorithm 1 runs."""

    rank: int
    cost: Costs
    n_microbatches: int
    n_sub: int

    def __post_init__(self) -> None:
        self.available: dict[Kind, deque[tuple[int, int]]] = {k: deque() for k in KINDS}
        """Per kind, (available from, microbatch) in microbatch order; the head is the one in progress."""
        self.progress = {Kind.F: 0, Kind.I: 0, Kind.W: 0}
        self.end = 0
        self.held = 0.0
        self.last_full = Kind.F
        self.forwards_left = self.n_microbatches
        self.unfinished = 0
        """Sub-blocks of F, without those of microbatches whose I is over."""
        self.sequence: list[Action] = []
        self.limit, self.most_unfinished = self.cost.limit[self.rank], self.cost.most_unfinished[self.rank]
        self.length = dict(zip(KINDS, self.cost.length[self.rank].tolist(), strict=True))
        self.delta = dict(zip(KINDS, self.cost.delta[self.rank].tolist(), strict=True))

    def _fits(self, kind: Kind) -> bool:
        if kind is Kind.F and self.unfinished >= self.most_unfinished:
            return False
        return self.delta[kind] <= 0 or bool(self.held + self.delta[kind] <= self.limit)

    def _priority(self) -> tuple[Kind, Kind, Kind]:
        if self.forwards_left == 0:  # tear-down
            return (Kind.I, Kind.W, Kind.F)
        if not self._fits(Kind.I):
            return (Kind.W, Kind.F, Kind.I)
        if self.last_full is Kind.F:
            return (Kind.I, Kind.F, Kind.W)
        if not self._fits(Kind.F) and self._frees_per_time(Kind.W) > self._frees_per_time(Kind.I):
            return (Kind.W, Kind.I, Kind.F)
        if not self._fits(Kind.F):
            return (Kind.I, Kind.W, Kind.F)
        return (Kind.F, Kind.I, Kind.W)

    def _frees_per_time(self, kind: Kind) -> float:
        length = self.length[kind]
        return -self.delta[kind] / length if length else (float("inf") if self.delta[kind] < 0 else 0.0)

    def _candidates(self) -> Iterable[tuple[int, int, Kind]]:
        """(earliest start, place in the priority order, kind) of every operation that fits in memory now."""
        for place, kind in enumerate(self._priority()):
            if self.available[kind] and self._fits(kind):
                yield max(self.end, self.available[kind][0][0]), place, kind

    def next_start(self) -> int | None:
        """When the next sub-block can start; None while there is nothing that could."""
        first = min(self._candidates(), default=None)
        return None if first is None else first[0]

    def run_sub_block(self, when: int) -> Action | None:
        """Schedule the next sub-block at `when`; returns the block if that was its last one."""
        _, _, kind = min(self._candidates())
        microbatch = self.available[kind][0][1]
        begin = self.progress[kind]
        self.sequence.append(Action(self.rank, kind, microbatch, Part(begin, begin + 1, self.n_sub)))
        self.end = when + self.length[kind]
        self.held += self.delta[kind]
        self.unfinished += kind is Kind.F
        self.progress[kind] = (begin + 1) % self.n_sub
        if self.progress[kind]:
            return None
        self.available[kind].popleft()
        if kind is not Kind.W:
            self.last_full = kind
        if kind is Kind.F:
            self.forwards_left -= 1
        if kind is Kind.I:
            self.unfinished -= self.n_sub
        return Action(self.rank, kind, microbatch)


def _pull_weights_earlier(sequence: list[Action]) -> list[Action]:
    """Move W sub-blocks out of the middle of F and I blocks, back to where no such block is open.

    At the memory limit the greedy alternates one W and one F sub-block; pulled together they run as whole blocks.
    A W never moves before its own I has ended.
    """
    result: list[Action] = []
    boundary = 0  # behind this place no F or I block is open
    open_blocks: set[tuple[Kind, int | None]] = set()
    input_done: dict[int | None, int] = {}  # microbatch -> place behind its I
    for action in sequence:
        block = (action.kind, action.microbatch)
        if action.kind is Kind.W and open_blocks:
            place = max(boundary, input_done[action.microbatch])
            result.insert(place, action)
            input_done = {m: p + (p > place) for m, p in input_done.items()}
            input_done[action.microbatch] = place + 1  # its next sub-block goes behind this one
            boundary = max(boundary, place + 1) if place == boundary else boundary
            continue
        result.append(action)
        if action.kind is not Kind.W:
            open_blocks.add(block)
            if action.part.is_last:
                open_blocks.discard(block)
                if action.kind is Kind.I:
                    input_done[action.microbatch] = len(result)
        if not open_blocks:
            boundary = len(result)
    return result


def _merge(sequence: list[Action]) -> Row:
    """Join neighbouring sub-blocks of one block; a block that is whole again loses its part."""
    merged: list[Action] = []
    for action in sequence:
        last = merged[-1] if merged else None
        if last is not None and last[:3] == action[:3] and last.part.end == action.part.begin:
            merged[-1] = last._replace(part=last.part._replace(end=action.part.end))
        else:
            merged.append(action)
    return tuple(a._replace(part=WHOLE) if a.part.is_first and a.part.is_last else a for a in merged)


FAMILY = Family(crosspipe_greedy, "CrossPipe's greedy CrossUDSub, made for the links at hand", uses_spare_memory=True)
