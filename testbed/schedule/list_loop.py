"""The loop of list scheduling on arrays that compile.py compiles (list_scheduler.py says what it does).

Times are whole numbers of ticks in floats, so equal times are equal.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints, Wires, occupy

COMPILED = ("run", "best_ready", "allows", "needed")
"""What compile.py compiles of this module."""

F, I, W = 0, 1, 2  # noqa: E741

_WAKE = -1


class Costs(NamedTuple):
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


def needed(stages: Ints, delta: Floats, done: int) -> float:
    """Most memory beyond what is held that finishing a microbatch on a rank takes, in the way that takes least.

    All its F, then I and W stage by stage from the last; `done` has a bit for each that has begun: 3 * chunk + kind.
    """
    level, most = 0.0, 0.0
    for chunk in range(len(stages)):
        if stages[chunk] >= 0 and not done >> (3 * chunk) & 1:
            level += delta[stages[chunk], F]
            most = max(most, level)
    for chunk in range(len(stages) - 1, -1, -1):
        for kind in (I, W):
            if stages[chunk] >= 0 and not done >> (3 * chunk + kind) & 1:
                level += delta[stages[chunk], kind]
                most = max(most, level)
    return most


def allows(
    stages: Ints, delta: Floats, room: float, peak: float, done: Ints, holds: Floats, begun: Ints, step: int, place: int
) -> bool:
    """Whether all that a rank has begun can finish, oldest first, with `room` left after one more step (Dijkstra).

    The step is 3 * chunk + kind, of the microbatch `place`. `done` and `holds` are per microbatch, still without it;
    `begun` says from which on any is unfinished, and how many have begun.
    """
    for microbatch in range(begun[0], begun[1]):
        mask, more = done[microbatch], holds[microbatch]
        if microbatch == place:
            mask, more = mask | 1 << step, more + delta[stages[step // 3], step % 3]
        if needed(stages, delta, mask) > room:
            return False
        room += more
        if room >= peak:
            return True
    return bool(place < begun[1] or needed(stages, delta, 1 << step) <= room)


def best_ready(
    now: float,
    patience: float,
    alternate: bool,
    last: int,
    room: float,
    peak: float,
    simple: bool,
    stages: Ints,
    delta: Floats,
    keys: Floats,
    follows: Ints,
    ready: Floats,
    done: Ints,
    holds: Floats,
    begun: Ints,
) -> int:
    """What an idle rank starts now, as 3 * chunk + kind; -1 for nothing, or where a better one comes soon.

    `room` is what its memory has left; `follows` is per stage and kind the microbatch that comes next.
    """
    best, best_turn, best_key = -1, 0, 0.0
    for soon in (False, True):
        if soon and (patience == 0 or best < 0):
            break
        for step in range(3 * len(stages)):
            stage, kind = stages[step // 3], step % 3
            if stage < 0 or follows[stage, kind] == keys.shape[2]:
                continue
            microbatch = follows[stage, kind]
            since, taken = ready[stage, kind, microbatch], delta[stage, kind]
            if (since > now) != soon or since > now + patience:
                continue
            turn = 0
            if alternate:
                turn = 2 if kind == W else int(kind == last)
            key = keys[stage, kind, microbatch]
            if best >= 0 and (turn > best_turn or (turn == best_turn and key >= best_key)):
                continue
            if taken > 0:
                left = room - taken
                if left < 0:
                    continue
                if not (
                    simple or left >= peak or allows(stages, delta, left, peak, done, holds, begun, step, microbatch)
                ):
                    continue
            if soon:
                return -1
            best, best_turn, best_key = step, turn, key
    return best


def run(
    cost: Costs, wires: Wires, keys: Floats, alternate: bool, patience: float, n_microbatches: int
) -> tuple[Ints, Ints]:
    """Per rank its actions in order, as (stage * 3 + kind) * M + microbatch; and how many there are.

    `keys` (S, 3, M): the lowest starts first. Arrays are handed on one by one: in tuples they took three times as long.
    """
    stage_to_rank, stages, length, delta, limit, peak, simple, parameters, route_links, wire = cost
    n_stages, n_ranks, chunks = len(stage_to_rank), len(limit), stages.shape[1]
    order, filled = np.full((n_ranks, 3 * chunks * n_microbatches), -1), np.zeros(n_ranks, np.int64)
    ready = np.full((n_stages, 3, n_microbatches), np.inf)
    ready[0, F] = parameters[0]
    follows = np.zeros((n_stages, 3), np.int64)
    held, last = np.zeros(n_ranks), np.zeros(n_ranks, np.int64)
    busy_until = np.full(n_ranks, -1.0)
    done, holds = np.zeros((n_ranks, n_microbatches), np.int64), np.zeros((n_ranks, n_microbatches))
    begun = np.zeros((n_ranks, 2), np.int64)
    whole = np.zeros(n_ranks, np.int64)
    for rank in range(n_ranks):
        for chunk in range(chunks):
            if stages[rank, chunk] >= 0:
                whole[rank] |= 7 << (3 * chunk)
    touched = np.ones(n_ranks, np.bool_)
    # (time, sequence, what and where it happens: hop * all actions + action, or _WAKE - rank; a message's last bit)
    actions = 3 * n_stages * n_microbatches
    events = [(parameters[0], 0, _WAKE - stage_to_rank[0], 0.0)]
    now, sequence = 0.0, 0
    while True:
        for rank in range(n_ranks):
            if not touched[rank] or busy_until[rank] > now:
                continue
            step = best_ready(
                now,
                patience,
                alternate,
                last[rank],
                limit[rank] - held[rank],
                peak[rank],
                simple[rank] > 0,
                stages[rank],
                delta,
                keys,
                follows,
                ready,
                done[rank],
                holds[rank],
                begun[rank],
            )
            if step < 0:  # the arrival that is waited for wakes the rank
                continue
            stage, kind = stages[rank, step // 3], step % 3
            microbatch = follows[stage, kind]
            follows[stage, kind] += 1
            held[rank] += delta[stage, kind]
            done[rank, microbatch] |= 1 << step
            holds[rank, microbatch] += delta[stage, kind]
            begun[rank, 1] = max(begun[rank, 1], microbatch + 1)
            while begun[rank, 0] < begun[rank, 1] and done[rank, begun[rank, 0]] == whole[rank]:
                begun[rank, 0] += 1
            if kind != W:
                last[rank] = kind
            action = (stage * 3 + kind) * n_microbatches + microbatch
            order[rank, filled[rank]] = action
            filled[rank] += 1
            busy_until[rank] = now + length[stage, kind]
            sequence += 1
            heapq.heappush(events, (busy_until[rank], sequence, action, 0.0))
        touched[:] = False
        if len(events) == 0:
            return order, filled
        now = events[0][0]
        while len(events) and events[0][0] == now:
            _, _, what, last_bit = heapq.heappop(events)
            if what < 0:
                touched[_WAKE - what] = True
                continue
            hop, action = what // actions, what % actions
            stage, kind, microbatch = (
                action // (3 * n_microbatches),
                action // n_microbatches % 3,
                action % n_microbatches,
            )
            if hop == 0:  # its end
                touched[stage_to_rank[stage]] = True
                if kind == I:
                    ready[stage, W, microbatch] = now
                if kind == F and stage == n_stages - 1:
                    ready[stage, I, microbatch] = now
                if kind == W or stage == (n_stages - 1 if kind == F else 0):
                    continue
                last_bit = now
            # the first bit of the message that it makes is at the head of this hop
            way, boundary, stage = (0, stage, stage + 1) if kind == F else (1, stage - 1, stage - 1)
            if hop < route_links.shape[2] and route_links[way, boundary, hop] >= 0:
                link = route_links[way, boundary, hop]
                start = occupy(wires, link, wire[way, boundary, hop], now, last_bit)
                last_bit = wires.free_s[link] + wires.delay_s[link]
                if hop + 1 < route_links.shape[2] and route_links[way, boundary, hop + 1] >= 0:
                    sequence += 1
                    heapq.heappush(events, (start + wires.delay_s[link], sequence, what + actions, last_bit))
                    continue
            if kind == F:
                last_bit = max(last_bit, parameters[stage])
            ready[stage, kind, microbatch] = last_bit
            rank = stage_to_rank[stage]
            if last_bit <= now:
                touched[rank] = True
            elif last_bit > busy_until[rank]:  # else the end of what it runs comes first
                sequence += 1
                heapq.heappush(events, (last_bit, sequence, _WAKE - rank, 0.0))
