"""The loop of CrossUDSub (CrossPipe, section 4.2, Algorithm 1) on arrays; greedy.py says what it plans with.

Plain functions: interpreted for small plans, compiled (compile.py) for large ones and for searches. Times are whole
numbers, so equal times are equal.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints
from testbed.search.blocks import F, I, W

COMPILED = ("greedy", "idle_ranks")
INLINED = ("next_sub_block", "fits", "preferred", "frees_per_time", "write", "finish_block", "pass_on", "reserve")
"""What compile.py compiles of this module, and what becomes part of the functions that call it."""

Event = tuple[int, int]
"""(when, rank): a rank may have something to run then. Others may have become true meanwhile: it is looked at again."""


class Costs(NamedTuple):
    """One stage per rank; times in n_sub-ths of a tick, so that every sub-block's is a whole number."""

    length: Ints
    """(P, 3): of a sub-block of F, I, W"""
    delta: Floats
    """(P, 3): memory that a sub-block adds"""
    limit: Floats
    """(P,)"""
    most_unfinished: Ints
    """(P,): sub-blocks of F that may have begun beyond those of microbatches whose I is over.

    What these hold comes free only after an I, which takes memory of its own under recomputation: so much is left free
    for one I that it can always run. W needs none, so all others can finish after it, one after the other."""
    route_links: Ints
    """(2, P, hops): links from rank r to r + 1, and from r + 1 to r; -1 behind the last"""
    wire: Ints
    """(2, P, hops): time a message occupies each of them"""
    delay: Ints
    """(2, P, hops)"""
    ready: Ints
    """(P,): from when on a stage has its parameters"""
    link_free: Ints
    """Per link, until when all-gathers occupy it"""


class SubBlockProgress(NamedTuple):
    """How far every rank is, and what is reserved on the links. The arrays change as the loop goes on."""

    sequence: Ints
    """(P, places, (kind, microbatch, sub-block)): what each rank runs, -1 where nothing is yet"""
    filled: Ints
    """(P,): places in use"""
    available: Ints
    """(P, 3, M): from when on the n-th block of a kind could run"""
    arrived: Ints
    """(P, 3): how many blocks of a kind have such a time ..."""
    head: Ints
    """(P, 3): ... and how many of these are over; the next one is under way or could begin"""
    progress: Ints
    """(P, 3): sub-blocks of that one that are over"""
    end: Ints
    """(P,): of the last sub-block"""
    held: Floats
    """(P,): memory"""
    unfinished: Ints
    """(P,): sub-blocks of F, without those of microbatches whose I is over"""
    last_full: Ints
    """(P,): the kind of the last whole block, F or I"""
    boundary: Ints
    """(P,): the place in the sequence from which on an F or I block is open ..."""
    open_blocks: Ints
    """(P,): ... how many are ..."""
    input_done: Ints
    """(P, M): ... and the place behind a microbatch's I, and the W sub-blocks of it that follow"""
    busy: Ints
    """(links, reservations, 2): begin and end, in the order of time ..."""
    reserved: Ints
    """(links,): ... and how many"""


def idle_ranks(n_microbatches: int, n_sub: int, cost: Costs) -> SubBlockProgress:
    """Before anything has run: the first rank may begin with every microbatch as soon as it has its parameters."""
    n_ranks, n_links = len(cost.limit), max(1, len(cost.link_free))
    ranks = SubBlockProgress(
        sequence=np.full((n_ranks, 3 * n_microbatches * n_sub, 3), -1),
        filled=np.zeros(n_ranks, np.int64),
        available=np.zeros((n_ranks, 3, n_microbatches), np.int64),
        arrived=np.zeros((n_ranks, 3), np.int64),
        head=np.zeros((n_ranks, 3), np.int64),
        progress=np.zeros((n_ranks, 3), np.int64),
        end=np.zeros(n_ranks, np.int64),
        held=np.zeros(n_ranks),
        unfinished=np.zeros(n_ranks, np.int64),
        last_full=np.full(n_ranks, F),
        boundary=np.zeros(n_ranks, np.int64),
        open_blocks=np.zeros(n_ranks, np.int64),
        input_done=np.zeros((n_ranks, n_microbatches), np.int64),
        busy=np.zeros((n_links, 2 * n_ranks * n_microbatches + 1, 2), np.int64),
        reserved=np.zeros(n_links, np.int64),
    )
    ranks.arrived[0, F] = n_microbatches
    ranks.available[0, F] = cost.ready[0]
    for link in range(len(cost.link_free)):
        if cost.link_free[link] > 0:
            ranks.busy[link, 0, 1] = cost.link_free[link]
            ranks.reserved[link] = 1
    return ranks


def greedy(n_microbatches: int, n_sub: int, cost: Costs) -> Ints:
    """The sequence of every rank's sub-blocks: (ranks, places, (kind, microbatch, sub-block)), -1 where none is.

    The first event is looked at first; ties, and what follows a full block, are as in CrossPipe's published code.
    """
    ranks = idle_ranks(n_microbatches, n_sub, cost)
    events = [(cost.ready[0], 0)]
    while len(events) > 0:
        when, rank = heapq.heappop(events)
        kind, start = next_sub_block(ranks, cost, n_microbatches, rank)
        if kind < 0 or start > when:  # an event of its own comes then
            continue
        if start < when:
            heapq.heappush(events, (start, rank))
            continue
        write(ranks, rank, kind, n_sub)
        ranks.end[rank] = when + cost.length[rank, kind]
        ranks.held[rank] += cost.delta[rank, kind]
        ranks.unfinished[rank] += kind == F
        ranks.progress[rank, kind] += 1
        if ranks.progress[rank, kind] == n_sub:
            finish_block(ranks, rank, kind, n_sub)
            target, then = pass_on(ranks, cost, rank, kind)
            if target >= 0:
                heapq.heappush(events, (then, target))
        # when this rank could go on: every kind's head may be next, whichever fits then
        for option in range(3):
            head = ranks.head[rank, option]
            if head < ranks.arrived[rank, option]:
                heapq.heappush(events, (max(ranks.end[rank], ranks.available[rank, option, head]), rank))
    return ranks.sequence


def next_sub_block(ranks: SubBlockProgress, cost: Costs, n_microbatches: int, rank: int) -> tuple[int, int]:
    """(kind, start) of the sub-block that can start first, the preferred kind at equal times; kind -1 for none."""
    fits_f = fits(ranks, cost, rank, F) and ranks.unfinished[rank] < cost.most_unfinished[rank]
    fits_i = fits(ranks, cost, rank, I)
    torn_down = ranks.head[rank, F] == n_microbatches
    weight_frees_faster = frees_per_time(cost, rank, W) > frees_per_time(cost, rank, I)
    found, first = -1, 0
    for kind in preferred(torn_down, ranks.last_full[rank] == F, fits_f, fits_i, weight_frees_faster):
        head = ranks.head[rank, kind]
        if head < ranks.arrived[rank, kind] and (kind == W or (fits_i if kind == I else fits_f)):
            start = max(ranks.end[rank], ranks.available[rank, kind, head])
            if found < 0 or start < first:
                found, first = kind, start
    return found, first


def fits(ranks: SubBlockProgress, cost: Costs, rank: int, kind: int) -> bool:
    """Whether a rank's memory has room for one more sub-block of a kind."""
    delta = cost.delta[rank, kind]
    return bool(delta <= 0 or ranks.held[rank] + delta <= cost.limit[rank])


def preferred(
    torn_down: bool, after_forward: bool, fits_f: bool, fits_i: bool, weight_frees_faster: bool
) -> tuple[int, int, int]:
    """The kinds in CrossPipe's order of preference. `torn_down`: no forward is left."""
    if torn_down:
        return (I, W, F)
    if not fits_i:
        return (W, F, I)
    if after_forward:
        return (I, F, W)
    if fits_f:
        return (F, I, W)
    return (W, I, F) if weight_frees_faster else (I, W, F)


def frees_per_time(cost: Costs, rank: int, kind: int) -> float:
    """Memory that a sub-block frees per unit of time."""
    if cost.length[rank, kind] > 0:
        return float(-cost.delta[rank, kind] / cost.length[rank, kind])
    return np.inf if cost.delta[rank, kind] < 0 else 0.0


def write(ranks: SubBlockProgress, rank: int, kind: int, n_sub: int) -> None:
    """Put the next sub-block of a kind into a rank's sequence: behind the last one, but W where no block is open.

    At the memory limit the greedy alternates one W and one F sub-block; a W that goes back to where no F or I block is
    open lets them run as whole blocks. It never goes before its own I, or before a W of it that is there.
    """
    row, done, microbatch = ranks.sequence[rank], ranks.input_done[rank], ranks.head[rank, kind]
    sub, place = ranks.progress[rank, kind], ranks.filled[rank]
    if kind == W and ranks.open_blocks[rank] > 0:
        place = max(ranks.boundary[rank], done[microbatch])
        for index in range(ranks.filled[rank], place, -1):
            for part in range(3):
                row[index, part] = row[index - 1, part]
        for other in range(microbatch, ranks.head[rank, I]):
            if done[other] > place:
                done[other] += 1
        done[microbatch] = place + 1
        if place == ranks.boundary[rank]:
            ranks.boundary[rank] = place + 1
    row[place, 0], row[place, 1], row[place, 2] = kind, microbatch, sub
    ranks.filled[rank] += 1
    if kind != W and sub == 0:
        ranks.open_blocks[rank] += 1
    if kind != W and sub == n_sub - 1:
        ranks.open_blocks[rank] -= 1
        if kind == I:
            done[microbatch] = ranks.filled[rank]
    if ranks.open_blocks[rank] == 0:
        ranks.boundary[rank] = ranks.filled[rank]


def finish_block(ranks: SubBlockProgress, rank: int, kind: int, n_sub: int) -> None:
    """Note the end of a whole block on its own rank: after an I, its W could run."""
    ranks.progress[rank, kind] = 0
    ranks.head[rank, kind] += 1
    if kind != W:
        ranks.last_full[rank] = kind
    if kind == I:
        ranks.unfinished[rank] -= n_sub
        ranks.available[rank, W, ranks.arrived[rank, W]] = ranks.end[rank]
        ranks.arrived[rank, W] += 1


def pass_on(ranks: SubBlockProgress, cost: Costs, rank: int, kind: int) -> tuple[int, int]:
    """Make what depends on a block that has just ended available, after its message's time on the links.

    Returns another rank that could go on, and when; -1 where none could.
    """
    if kind == W or (kind == I and rank == 0):
        return -1, 0
    came = ranks.end[rank]
    if kind == F and rank == len(cost.limit) - 1:  # turns round without a message
        ranks.available[rank, I, ranks.arrived[rank, I]] = came
        ranks.arrived[rank, I] += 1
        return -1, 0
    target, upward = (rank + 1, 0) if kind == F else (rank - 1, 1)
    boundary = min(rank, target)
    for hop in range(cost.route_links.shape[2]):
        link = cost.route_links[upward, boundary, hop]
        if link >= 0:
            over = reserve(ranks.busy[link], ranks.reserved, link, came, cost.wire[upward, boundary, hop])
            came = over + cost.delay[upward, boundary, hop]
    if kind == F:
        came = max(came, cost.ready[target])
    ranks.available[target, kind, ranks.arrived[target, kind]] = came
    ranks.arrived[target, kind] += 1
    return target, max(ranks.end[target], came)


def reserve(busy: Ints, reserved: Ints, link: int, ready: int, length: int) -> int:
    """Take a link's earliest free window at or after `ready` (bw_model of Algorithm 1); returns its end."""
    count = reserved[link]
    place = count
    while place > 0 and busy[place - 1, 0] > ready:
        place -= 1
    begin = ready
    if place > 0 and busy[place - 1, 1] > begin:
        begin = busy[place - 1, 1]
    while place < count and busy[place, 0] < begin + length:
        begin = max(begin, busy[place, 1])
        place += 1
    for index in range(count, place, -1):
        busy[index, 0], busy[index, 1] = busy[index - 1, 0], busy[index - 1, 1]
    busy[place, 0], busy[place, 1] = begin, begin + length
    reserved[link] = count + 1
    return begin + length
