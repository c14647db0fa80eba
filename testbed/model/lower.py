"""A schedule and its problem as flat arrays: what the compiled event model runs on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.pipeline.depend import Message
from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.problem import Problem
from testbed.trace.tables import KINDS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NONE = -1


class Program(NamedTuple):
    """Actions in rank-major program order (length n), messages numbered as `message_number` says (2 S M of them).

    Behind the messages between stages come the edges of the rings that reduce gradients, stage by stage.
    A message between stages of one rank has an empty route and no delay.
    """

    row_start: Ints
    """Per rank (and one more), where its actions begin."""
    duration: Floats
    needs: Ints
    """Per action, the message it waits for, or NONE."""
    makes: Ints
    """Per action, the message it makes, or NONE."""
    not_before_s: Floats
    """Per action, when the parameters it needs are there (0 for all but F)."""
    completes: Ints
    """Per action, the stage of which it ends one microbatch's gradients, or NONE."""
    target_rank: Ints
    """Per message, the rank that takes it; NONE for an edge of a ring."""
    wire_bytes: Floats
    """Per message; of its last piece where it is routed in pieces."""
    piece_bytes: Floats
    """Per message, wire bytes of its other pieces."""
    pieces: Ints
    """Per message, in how many pieces it is routed; 0 when it keeps together."""
    acks: Ints
    """Per message, how many super-packets one of its pieces is, each acknowledged; 0 without any of that."""
    ack_start: Ints
    """Per link (and one more), where the acknowledgements that it carries begin in a list of all of them."""
    ack_bytes: Floats
    """Per message, wire bytes that acknowledge one super-packet."""
    route_of: Ints
    """Per message, its route: a pair of ranks (source * P + target), or P * P and on for the edges of rings."""
    edge_start: Ints
    """Per stage (and one more), the number of its ring's first edge among the messages."""
    route_start: Ints
    """Per route (and one more), where its links begin in `route_links`."""
    route_links: Ints
    extra_s: Floats
    """Per route, added to the arrival: a message's handover, a ring's further rounds."""
    unnoticed_wait_s: float
    """How long a rank may wait without being delayed."""
    taken_s: Floats
    """Per link, until when it is taken at the start: the all-gathers."""
    delay_s: Floats
    """Per link."""
    seconds_per_byte: Floats
    """Per link."""
    notice_s: Floats
    """Per pair of ranks, one-way delay from target back to source: what a late receive's notice takes."""


def message_number(message: Message, n_microbatches: int) -> int:
    """A number for every message of an iteration, dense."""
    return (2 * message.stage + (message.kind == "G")) * n_microbatches + message.microbatch


def lower(problem: Problem, schedule: Schedule) -> Program:
    """The arrays of a schedule on a problem."""
    n_ranks, n_stages, n_microbatches = schedule.n_ranks, schedule.n_stages, schedule.n_microbatches
    rows = schedule.rows
    row_start = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    needs: list[int] = []
    makes: list[int] = []
    durations: list[float] = []
    not_before: list[float] = []
    completes: list[int] = []
    parameters_s = problem.gathered.ready_s
    seconds = {(stage, kind): problem.duration(Action(stage, kind, 0)) for stage in range(n_stages) for kind in KINDS}
    forward, both, gradients = Kind.F, (Kind.I, Kind.B), (Kind.W, Kind.B)
    for row in rows:
        for stage, kind, microbatch, part in row:
            assert microbatch is not None
            durations.append(seconds[stage, kind] * part.fraction)
            not_before.append(parameters_s[stage] if kind is forward else 0.0)
            completes.append(stage if kind in gradients and part.is_last else NONE)
            need = make = NONE
            # the same rules as depend.consumed and depend.produced (tests hold them together), without their objects
            if kind is forward:
                if stage > 0 and part.is_first:
                    need = 2 * (stage - 1) * n_microbatches + microbatch
                if stage < n_stages - 1 and part.is_last:
                    make = 2 * stage * n_microbatches + microbatch
            elif kind in both:
                if stage < n_stages - 1 and part.is_first:
                    need = (2 * (stage + 1) + 1) * n_microbatches + microbatch
                if stage > 0 and part.is_last:
                    make = (2 * stage + 1) * n_microbatches + microbatch
            needs.append(need)
            makes.append(make)
    holder = np.array(schedule.stage_to_rank)
    stages = np.arange(n_stages)
    source = np.repeat(holder, 2)
    neighbours = np.stack([np.minimum(stages + 1, n_stages - 1), np.maximum(stages - 1, 0)], axis=1).ravel()
    sizes = np.zeros(2 * n_stages)
    for stage in range(n_stages - 1):
        sizes[2 * stage] = sizes[2 * (stage + 1) + 1] = problem.message_bytes[stage]
    reductions = [problem.reduction(stage) for stage in range(n_stages)]
    edges = [(ring, leg) for ring in reductions for leg in range(len(ring.legs))]
    routes = [problem.route(a, b) for a in range(n_ranks) for b in range(n_ranks)]
    routes += [ring.legs[leg] for ring, leg in edges]
    handover = [problem.handover_s] * (n_ranks * n_ranks)
    extra = handover + [ring.extra_delay_s(leg, problem.links) for ring, leg in edges]
    target = np.repeat(holder[neighbours], n_microbatches)
    pairs = np.repeat(source, n_microbatches) * n_ranks + target
    pieces, acks, ack_start = _pieces(problem, source, holder[neighbours], sizes, n_microbatches)
    whole = np.array(problem.piece_bytes, dtype=np.float64)[source] if problem.piece_bytes else np.zeros(len(sizes))
    ack_bytes = np.array(problem.ack_bytes, dtype=np.float64)[source] if problem.ack_bytes else np.zeros(len(sizes))
    for number in np.flatnonzero(pieces > 1):  # one by one, as simulate does: the same rounding
        for _ in range(pieces[number] - 1):
            sizes[number] -= whole[number]
    return Program(
        row_start=row_start,
        duration=np.array(durations),
        needs=np.array(needs, dtype=np.int64),
        makes=np.array(makes, dtype=np.int64),
        not_before_s=np.array(not_before),
        completes=np.array(completes, dtype=np.int64),
        target_rank=np.concatenate([target, np.full(len(edges), NONE)]).astype(np.int64),
        wire_bytes=np.concatenate([np.repeat(sizes, n_microbatches), [ring.wire_bytes for ring, _ in edges]]),
        piece_bytes=np.concatenate([np.repeat(whole, n_microbatches), np.zeros(len(edges))]),
        pieces=np.concatenate([np.repeat(pieces, n_microbatches), np.zeros(len(edges), np.int64)]),
        acks=np.concatenate([np.repeat(acks, n_microbatches), np.zeros(len(edges), np.int64)]),
        ack_start=ack_start,
        ack_bytes=np.concatenate([np.repeat(ack_bytes, n_microbatches), np.zeros(len(edges))]),
        route_of=np.concatenate([pairs, n_ranks * n_ranks + np.arange(len(edges))]).astype(np.int64),
        edge_start=(len(target) + np.cumsum([0, *(len(ring.legs) for ring in reductions)])).astype(np.int64),
        route_start=np.cumsum([0, *map(len, routes)]).astype(np.int64),
        route_links=np.array([link for route in routes for link in route], dtype=np.int64),
        extra_s=np.array(extra),
        unnoticed_wait_s=problem.unnoticed_wait_s,
        taken_s=np.array(problem.gathered.link_free_s, dtype=np.float64),
        delay_s=np.array([link.delay_s for link in problem.links], dtype=np.float64),
        seconds_per_byte=np.array([link.seconds_per_byte for link in problem.links], dtype=np.float64),
        notice_s=np.array([problem.route_delay(b, a) for a in range(n_ranks) for b in range(n_ranks)]),
    )


def _pieces(
    problem: Problem, sources: Ints, targets: Ints, sizes: Floats, n_microbatches: int
) -> tuple[Ints, Ints, Ints]:
    """Per kind of message the pieces it is routed in and the acknowledgements of each; per link where its own begin."""
    pieces, acks = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    carried = np.zeros(len(problem.links) + 1, np.int64)
    for number, (source, target, size) in enumerate(
        zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True)
    ):
        count = problem.pieces(source, target, size)
        several = len(problem.route(source, target)) > 1
        pieces[number] = count if several else 0
        if problem.ack_bytes and count:
            acks[number] = 1 if several else count
            for link in problem.route(target, source):
                carried[link + 1] += n_microbatches * max(1, pieces[number])
    return pieces, acks, np.cumsum(carried)
