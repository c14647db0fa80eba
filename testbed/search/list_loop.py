"""The loop of list scheduling on arrays that compile.py compiles (list_scheduler.py says what it does).

Times are whole numbers of ticks in floats, so equal times are equal.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints, LinkOccupancy, occupy
from testbed.search.blocks import F, I, W, block_number, block_of, step_number, step_of

COMPILED = ("run", "idle_ranks")
INLINED = ("begin_block", "end_block", "cross", "best_ready", "allows", "needed")
"""What compile.py compiles of this module, and what becomes part of the functions that call it."""

_WAKE = -1
"""Taken the rank off, an event that wakes a rank; others are blocks, plus the hops their message has made times the
number of all blocks."""


class LoopCosts(NamedTuple):
    """S stages on P ranks, M microbatches; times in ticks."""

    stage_to_rank: Ints
    stages: Ints
    """(P, chunks): the stages of a rank in ascending order, -1 behind the last"""
    length: Floats
    """(S, 3): of F, I, W"""
    delta: Floats
    """(S, 3): memory they add"""
    limit: Floats
    """(P,)"""
    peak: Floats
    """(P,): what one microbatch needs by itself"""
    simple: Ints
    """(P,): whether what has begun never needs more memory, so that any F that fits is safe"""
    ready: Floats
    """(S,): since when a stage has its parameters"""
    route_links: Ints
    """(2, S, hops): links from stage s to s + 1, and from s + 1 to s; -1 behind the last"""
    wire: Floats
    """(2, S, hops): time a message occupies each of them"""
    most_ahead: Ints
    """(S,): forwards that may have begun beyond the input gradients that have"""


class BlockProgress(NamedTuple):
    """How far every rank is. The arrays change as the loop goes on; a step is `blocks.step_number`."""

    order: Ints
    """(P, places): the blocks each rank runs, by number, -1 where nothing is yet"""
    filled: Ints
    """(P,): places in use"""
    ready: Floats
    """(S, 3, M): when a block's input is there; infinite while nobody knows"""
    follows: Ints
    """(S, 3): the microbatch that comes next"""
    held: Floats
    """(P,): memory"""
    last: Ints
    """(P,): the kind of the last block, F or I"""
    busy_until: Floats
    """(P,)"""
    done: Ints
    """(P, M): of a microbatch, a bit for each step that has begun ..."""
    holds: Floats
    """(P, M): ... and the memory that these hold"""
    begun: Ints
    """(P, 2): the first microbatch with steps left, and one more than the last one that has begun"""
    whole: Ints
    """(P,): the bits of all steps"""


def idle_ranks(cost: LoopCosts, n_microbatches: int) -> BlockProgress:
    """Before anything has run: the first stage could begin with every microbatch once it has its parameters."""
    n_stages, n_ranks, chunks = len(cost.stage_to_rank), len(cost.limit), cost.stages.shape[1]
    ready, whole = np.full((n_stages, 3, n_microbatches), np.inf), np.zeros(n_ranks, np.int64)
    ready[0, F] = cost.ready[0]
    for rank in range(n_ranks):
        for chunk in range(chunks):
            for kind in (F, I, W):
                if cost.stages[rank, chunk] >= 0:
                    whole[rank] |= 1 << step_number(chunk, kind)
    return BlockProgress(
        np.full((n_ranks, 3 * chunks * n_microbatches), -1),
        np.zeros(n_ranks, np.int64),
        ready,
        np.zeros((n_stages, 3), np.int64),
        np.zeros(n_ranks),
        np.zeros(n_ranks, np.int64),
        np.full(n_ranks, -1.0),
        np.zeros((n_ranks, n_microbatches), np.int64),
        np.zeros((n_ranks, n_microbatches)),
        np.zeros((n_ranks, 2), np.int64),
        whole,
    )


def run(
    cost: LoopCosts, wires: LinkOccupancy, keys: Floats, alternate: bool, patience: float, n_microbatches: int
) -> tuple[Ints, Ints]:
    """Per rank the numbers of its blocks in order, and how many there are.

    `keys` (S, 3, M): the lowest starts first.
    """
    ranks, n_ranks, blocks = idle_ranks(cost, n_microbatches), len(cost.limit), 3 * len(cost.length) * n_microbatches
    # (time, sequence, what and where it happens, see _WAKE; a message's last bit)
    events = [(cost.ready[0], 0, _WAKE - cost.stage_to_rank[0], 0.0)]
    touched, now, sequence = np.ones(n_ranks, np.bool_), 0.0, 0
    while True:
        for rank in range(n_ranks):
            if not touched[rank] or ranks.busy_until[rank] > now:
                continue
            step = best_ready(ranks, cost, keys, rank, now, alternate, patience)
            if step >= 0:  # else the arrival that is waited for wakes the rank
                block = begin_block(ranks, cost, rank, step, now, n_microbatches)
                sequence += 1
                heapq.heappush(events, (ranks.busy_until[rank], sequence, block, 0.0))
        touched[:] = False
        if len(events) == 0:
            return ranks.order, ranks.filled
        now = events[0][0]
        while len(events) > 0 and events[0][0] == now:
            _, _, what, last_bit = heapq.heappop(events)
            if what < 0:
                touched[_WAKE - what] = True
                continue
            hop, block = what // blocks, what % blocks
            stage, kind, microbatch = block_of(block, n_microbatches)
            if hop == 0:
                touched[cost.stage_to_rank[stage]] = True
                if not end_block(ranks, stage, kind, microbatch, now):
                    continue
                last_bit = now
            onward, last_bit = cross(cost, wires, stage, kind, hop, now, last_bit)
            if onward >= 0:
                sequence += 1
                heapq.heappush(events, (onward, sequence, what + blocks, last_bit))
                continue
            # the message is where it goes
            stage = stage + 1 if kind == F else stage - 1
            if kind == F:
                last_bit = max(last_bit, cost.ready[stage])
            ranks.ready[stage, kind, microbatch] = last_bit
            rank = cost.stage_to_rank[stage]
            if last_bit <= now:
                touched[rank] = True
            elif last_bit > ranks.busy_until[rank]:  # else the end of what it runs comes first
                sequence += 1
                heapq.heappush(events, (last_bit, sequence, _WAKE - rank, 0.0))


def begin_block(ranks: BlockProgress, cost: LoopCosts, rank: int, step: int, now: float, n_microbatches: int) -> int:
    """Have a rank begin the next block of a step; returns its number."""
    chunk, kind = step_of(step)
    stage = cost.stages[rank, chunk]
    microbatch = ranks.follows[stage, kind]
    ranks.follows[stage, kind] += 1
    ranks.held[rank] += cost.delta[stage, kind]
    ranks.done[rank, microbatch] |= 1 << step
    ranks.holds[rank, microbatch] += cost.delta[stage, kind]
    ranks.begun[rank, 1] = max(ranks.begun[rank, 1], microbatch + 1)
    first = ranks.begun[rank, 0]
    while first < ranks.begun[rank, 1] and ranks.done[rank, first] == ranks.whole[rank]:
        first += 1
    ranks.begun[rank, 0] = first
    if kind != W:
        ranks.last[rank] = kind
    block = block_number(stage, kind, microbatch, n_microbatches)
    ranks.order[rank, ranks.filled[rank]] = block
    ranks.filled[rank] += 1
    ranks.busy_until[rank] = now + cost.length[stage, kind]
    return int(block)


def end_block(ranks: BlockProgress, stage: int, kind: int, microbatch: int, now: float) -> bool:
    """Note what a block that has ended makes ready on its own stage; whether it makes a message for another one."""
    deepest = len(ranks.follows) - 1
    if kind == I:
        ranks.ready[stage, W, microbatch] = now
    if kind == F and stage == deepest:
        ranks.ready[stage, I, microbatch] = now
    return kind != W and stage != (deepest if kind == F else 0)


def cross(
    cost: LoopCosts, wires: LinkOccupancy, stage: int, kind: int, hop: int, now: float, last_bit: float
) -> tuple[float, float]:
    """Put a stage's message, whose first bit is there now, on the next link of its route, if there is one.

    Returns when its first bit is at the next link behind that, or -1, and when its last bit is there.
    """
    upward, boundary = (0, stage) if kind == F else (1, stage - 1)
    hops, link = cost.route_links.shape[2], -1
    if hop < hops:
        link = cost.route_links[upward, boundary, hop]
    if link < 0:
        return -1.0, last_bit
    start = occupy(wires, link, cost.wire[upward, boundary, hop], now, last_bit)
    over = wires.free_s[link] + wires.delay_s[link]
    if hop + 1 < hops and cost.route_links[upward, boundary, hop + 1] >= 0:
        return start + wires.delay_s[link], over
    return -1.0, over


def best_ready(
    ranks: BlockProgress, cost: LoopCosts, keys: Floats, rank: int, now: float, alternate: bool, patience: float
) -> int:
    """The step that an idle rank starts now; -1 for nothing, or where a better one comes soon."""
    best, best_turn, best_key = -1, 0, 0.0
    room = cost.limit[rank] - ranks.held[rank]
    for soon in (False, True):
        if soon and (patience == 0 or best < 0):
            break
        for step in range(3 * cost.stages.shape[1]):
            chunk, kind = step_of(step)
            stage = cost.stages[rank, chunk]
            if stage < 0 or ranks.follows[stage, kind] == keys.shape[2]:
                continue
            microbatch = ranks.follows[stage, kind]
            if kind == F and microbatch - ranks.follows[stage, I] >= cost.most_ahead[stage]:
                continue
            since, taken = ranks.ready[stage, kind, microbatch], cost.delta[stage, kind]
            if (since > now) != soon or since > now + patience:
                continue
            turn = 0
            if alternate:
                turn = 2 if kind == W else int(kind == ranks.last[rank])
            key = keys[stage, kind, microbatch]
            if best >= 0 and (turn > best_turn or (turn == best_turn and key >= best_key)):
                continue
            if taken > 0:
                left = room - taken
                if left < 0:
                    continue
                safe = cost.simple[rank] > 0 or left >= cost.peak[rank]
                if not safe and not allows(ranks, cost, rank, left, step, microbatch):
                    continue
            if soon:
                return -1
            best, best_turn, best_key = step, turn, key
    return best


def allows(ranks: BlockProgress, cost: LoopCosts, rank: int, room: float, step: int, place: int) -> bool:
    """Whether all that a rank has begun can finish, oldest first, with `room` left after one more step (Dijkstra).

    The step is of the microbatch `place`, and not begun yet.
    """
    chunk, kind = step_of(step)
    for microbatch in range(ranks.begun[rank, 0], ranks.begun[rank, 1]):
        mask, more = ranks.done[rank, microbatch], ranks.holds[rank, microbatch]
        if microbatch == place:
            mask, more = mask | 1 << step, more + cost.delta[cost.stages[rank, chunk], kind]
        if needed(cost.stages[rank], cost.delta, mask) > room:
            return False
        room += more
        if room >= cost.peak[rank]:
            return True
    return bool(place < ranks.begun[rank, 1] or needed(cost.stages[rank], cost.delta, 1 << step) <= room)


def needed(stages: Ints, delta: Floats, done: int) -> float:
    """Most memory beyond what is held that finishing a microbatch on a rank takes, in the way that takes least.

    All its F, then I and W stage by stage from the last; `done` has a bit for each step that has begun.
    """
    level, most = 0.0, 0.0
    for chunk in range(len(stages)):
        if stages[chunk] >= 0 and not done >> step_number(chunk, F) & 1:
            level += delta[stages[chunk], F]
            most = max(most, level)
    for chunk in range(len(stages) - 1, -1, -1):
        for kind in (I, W):
            if stages[chunk] >= 0 and not done >> step_number(chunk, kind) & 1:
                level += delta[stages[chunk], kind]
                most = max(most, level)
    return most
