"""Weights that move: what ranks send each other where a job goes on with its stages on other ranks.

With the weights of a layer goes what the optimizer keeps of them; nothing is sent for what stays with its rank. All
that goes from one rank to another of an old stage that is of a new one is a message. Where replicas share an optimizer
(ZeRO-1) each has only its own shards up to date: those alone go, to whoever has their elements among its own then, and
the next all-gather brings everybody the rest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise, product
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.pipeline.collectives import Exchange
from testbed.pipeline.problem import Problem, Route
from testbed.plan.exchange import exchange_at, sites_of
from testbed.plan.framing import ACK_BYTES, part_bytes, super_packet_bytes, wire_bytes
from testbed.plan.plan import Plan
from testbed.spec.model import ModelSpec
from testbed.spec.workload import Workload

MOMENTS = {"adamw": 2, "sgd": 1}
"""Numbers that an optimizer keeps of every parameter."""

MOST_PIECES = 256
"""In which a message is predicted: each is an event."""

Stages = tuple[int, ...]
"""The pipeline rank of every stage."""


class StagePart(NamedTuple):
    """Layers of an old stage that are in a new one."""

    old: int
    new: int
    layers: range
    """Their numbers in the whole model."""
    blocks: range
    """The same as the smallest shares that a model is cut into."""


class Seat(NamedTuple):
    """A pipeline rank of a replica: that of each of its tensor ranks."""

    replica: int
    pipeline_rank: int


class WeightPiece(NamedTuple):
    """What of a part goes from one seat to another, or stays where it is."""

    part: StagePart
    source: Seat
    target: Seat
    elements: tuple[range, ...] | None
    """Which of the part's parameters, as numbered one after the other; None: all."""


class MovedWeights(NamedTuple):
    """A message of one rank to another, by their numbers in the plan."""

    source: int
    target: int
    part: StagePart
    payload_bytes: int
    """As far as the model's description knows its parameters."""
    wire_bytes: float
    """With headers, and what gloo adds."""
    piece_bytes: float
    """Of the super-packets in which it leaves: a link passes on whole ones."""
    parts: int = 1
    """Each over a stream of its own, with a receive of its own."""


def stage_parts(spec: ModelSpec, before: int, after: int) -> list[StagePart]:
    """What of a model that is cut into so many stages is where, once it is cut into others."""
    found = []
    olds, news = ([blocks_of(spec, stage, count) for stage in range(count)] for count in (before, after))
    for (old, mine), (new, theirs) in product(enumerate(olds), enumerate(news)):
        if blocks := _common(mine, theirs):
            first, last = (spec.stage_layers(block, spec.layers) for block in (blocks[0], blocks[-1]))
            found.append(StagePart(old, new, range(first.start, last.stop), blocks))
    return found


def blocks_of(spec: ModelSpec, stage: int, n_stages: int) -> range:
    """Which of the smallest shares of a model are in a stage of so many: those of one stage for each of its `layers`.

    Raises ValueError where the model's own stage_layers cuts it within one of these.
    """
    layers = spec.stage_layers(stage, n_stages)
    shares = [spec.stage_layers(each, spec.layers) for each in range(spec.layers)]
    inside = [each for each, share in enumerate(shares) if share and _common(share, layers) == share]
    if sum(len(shares[each]) for each in inside) != len(layers):
        raise ValueError(f"stage {stage} of {n_stages}: layers {layers.start} to {layers.stop - 1}")
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def block_elements(workload: Workload) -> list[int]:
    """Parameters that a tensor rank has of each of the smallest shares that its model is cut into."""
    spec, degree = workload.model, workload.parallelism.tensor
    return [spec.rank_parameter_count(block, spec.layers, degree) for block in range(spec.layers)]


def shared(workload: Workload) -> bool:
    """Whether replicas share an optimizer, each with shards of its states."""
    return workload.parallelism.data > 1 and workload.data_parallel.sharding != "none"


def pieces(workload: Workload, before: Stages, after: Stages, exchanges: Sequence[Exchange]) -> list[WeightPiece]:
    """All of a job's weights, by who has them to whom they go: the same list on every rank.

    `exchanges` are those of the replicas of each pipeline rank; their shards are asked for where they are `shared`.
    """
    found, counts = list[WeightPiece](), block_elements(workload)
    for part in stage_parts(workload.model, len(before), len(after)):
        ranks = before[part.old], after[part.new]
        if not shared(workload):
            replicas = range(workload.parallelism.data)
            found += [WeightPiece(part, Seat(each, ranks[0]), Seat(each, ranks[1]), None) for each in replicas]
            continue
        stages = blocks_of(workload.model, part.old, len(before)), blocks_of(workload.model, part.new, len(after))
        olds, news = (
            _owned(exchanges[rank], blocks, part.blocks, counts) for rank, blocks in zip(ranks, stages, strict=True)
        )
        for (source, mine), (target, theirs) in product(enumerate(olds), enumerate(news)):
            both = (_common(one, other) for one, other in product(mine, theirs))
            if elements := tuple(filter(None, both)):
                found.append(WeightPiece(part, Seat(source, ranks[0]), Seat(target, ranks[1]), elements))
    return found


def _owned(exchange: Exchange, stage: range, part: range, counts: Sequence[int]) -> list[list[range]]:
    """Per replica, which elements of some of a stage's blocks are in shards of its own, as the part numbers them."""
    size = exchange.cell_size(sum(counts[block] for block in stage))
    ahead = sum(counts[block] for block in range(stage.start, part.start))
    whole = range(sum(counts[block] for block in part))
    return [
        [_common(range(size * first - ahead, size * behind - ahead), whole) for first, behind in cells]
        for cells in exchange.shards
    ]


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def moved_weights(plan: Plan, job: int, before: Stages, after: Stages) -> list[MovedWeights]:
    """What the ranks of a job send each other."""
    mesh, workload = plan.jobs[job].mesh, plan.jobs[job].workload
    kept, element, counts = 1 + MOMENTS[workload.optimizer.kind], workload.model.element_bytes, block_elements(workload)
    exchanges = [exchange_at(plan.jobs[job], rank) for rank in range(mesh.pp)] if shared(workload) else []
    found, sites = [], sites_of(plan.jobs[job])
    for piece in pieces(workload, before, after, exchanges):
        if piece.source == piece.target:
            continue
        every = sum(counts[block] for block in piece.part.blocks)
        payload = kept * element * (every if piece.elements is None else sum(map(len, piece.elements)))
        streams = part_bytes(payload, element, workload.streams)
        wire = sum(wire_bytes(each) + plan.host_costs.gloo_bytes for each in streams)
        for tensor_rank in range(mesh.tp):
            source, target = (mesh.rank(*seat, tensor_rank) for seat in (piece.source, piece.target))
            gso = plan.framing.gso_bytes[sites[source - mesh.first_rank]]
            found.append(MovedWeights(source, target, piece.part, payload, wire, super_packet_bytes(gso), len(streams)))
    return found


def require_movable(workload: Workload, before: Stages, after: Stages, source: str, field: str) -> None:
    """Raises BadInput where a training cannot go on with its stages on these ranks."""
    if before == after:
        return
    try:
        stage_parts(workload.model, len(before), len(after))
    except ValueError as error:
        expected = f"{before}, as before: {error}, which are no whole stages of {workload.model.layers}"
        raise BadInput.of(source, field, after, expected) from error
    if shared(workload) and not workload.model.counts_stages:
        expected = (
            f"{before}, as before, data_parallel.sharding: none, or a model with stage_parameter_count: where "
            f"replicas share an optimizer ({workload.data_parallel.sharding}) it says where their shards begin"
        )
        raise BadInput.of(source, field, after, expected)


class UsedUp(NamedTuple):
    """The shortest of messages, for receives that are posted and will not be taken."""

    source: int
    """The rank that sends them, by its number in the plan."""
    route: Route
    back: Route
    """Which acknowledgements take."""
    wire_bytes: float
    """Of each, in two packets ..."""
    number: int
    """... of so many, from one rank to another."""


def moving_s(
    problem: Problem,
    moved: Sequence[MovedWeights],
    route_of: Callable[[int, int], Route],
    used_up: Sequence[UsedUp] = (),
) -> float:
    """How long the ranks of a job take to send each other these: word that a receive is posted goes back, then the
    weights come, in pieces. Each link on the way carries whole ones, first come, first served, and acknowledgements of
    what comes the other way. Ranks begin one after the other, each with the words that it has, what uses up receives
    that are posted, and notice of the weights.

    `route_of` two ranks by their numbers in the plan, to links of the problem.
    """
    notice_bytes, coming = problem.notice_bytes, list[_OnItsWay]()
    ways = [(route_of(one.source, one.target), route_of(one.target, one.source)) for one in moved]
    for number, (one, (there, back)) in enumerate(zip(moved, ways, strict=True)):
        if there:
            size, acks = one.parts * notice_bytes, float(one.parts * ACK_BYTES)
            coming.append(_OnItsWay(0.0, one.target, number, _WORD, size, back, there, acks))
            last = len(moved) + len(used_up) + number
            coming.append(_OnItsWay(0.0, one.source, last, _NOTICE, size, there, back, acks))
    for number, shortest in enumerate(used_up, len(moved)):
        sizes = _pieces_bytes(shortest.number * shortest.wire_bytes, shortest.wire_bytes)
        for place, size in enumerate(sizes, 1):
            acks = 2 * ACK_BYTES * size / shortest.wire_bytes
            coming.append(_OnItsWay(0.0, shortest.source, number, place, size, shortest.route, shortest.back, acks))
    heapify(coming)
    free_s, ended_s = defaultdict[int, float](float), 0.0
    while coming:
        what = heappop(coming)
        index, *further = what.route
        link = problem.links[index]
        free_s[index] = max(what.at_s, free_s[index]) + what.wire_bytes * link.seconds_per_byte
        there_s = free_s[index] + link.delay_s
        if further:
            heappush(coming, what._replace(at_s=there_s, route=tuple(further)))
            continue
        if what.back and what.ack_bytes:
            acknowledged = what._replace(at_s=there_s, piece=_ACKNOWLEDGED, wire_bytes=what.ack_bytes)
            heappush(coming, acknowledged._replace(route=what.back, back=()))
        if what.piece == _WORD:
            one, (there, back) = moved[what.number], ways[what.number]
            rest = max(0.0, one.wire_bytes - one.parts * notice_bytes)
            for place, size in enumerate(_pieces_bytes(rest, one.piece_bytes), 1):
                heappush(coming, _OnItsWay(there_s, one.source, what.number, place, size, there, back, ACK_BYTES))
        if what.piece != _ACKNOWLEDGED:
            ended_s = max(ended_s, there_s)
    return ended_s


def _pieces_bytes(wire_bytes: float, piece_bytes: float) -> list[float]:
    """Wire bytes of the super-packets of a message, of a long one of several at once; of several messages likewise."""
    size = piece_bytes * math.ceil(wire_bytes / piece_bytes / MOST_PIECES)
    whole = int(wire_bytes // size)
    return [size] * whole + ([wire_bytes - whole * size] if wire_bytes > whole * size else [])


class _OnItsWay(NamedTuple):
    """What comes to a link."""

    at_s: float
    rank: int
    """That has sent it, or what is acknowledged."""
    number: int
    """Of the message."""
    piece: int
    """Which of its pieces, from 1 on; or _WORD, _NOTICE, _ACKNOWLEDGED."""
    wire_bytes: float
    route: Route
    """This link, and those behind it."""
    back: Route
    ack_bytes: float
    """Of the acknowledgements that go back when it has come."""


_ACKNOWLEDGED, _NOTICE, _WORD = -2, -1, 0
"""In place of a piece: acknowledgements, the notice that they will be sent, word that their receive is posted."""


def used_up(problem: Problem, workload: Workload, *, moves: bool, first_rank: int = 0) -> list[UsedUp]:
    """What ranks send so that no receive stays posted that will not be taken: of those between stages, where they are
    posted ahead, and of those between replicas where stages `moves`. `first_rank` is the job's, in the plan."""
    size, found = 2 * problem.notice_bytes + workload.model.element_bytes, list[UsedUp]()
    if workload.receives == "early":
        boundaries = enumerate(pairwise(problem.stage_to_rank))
        for (place, pipeline), (boundary, pair) in product(enumerate(problem.pipelines), boundaries):
            parts = len(problem.part_bytes[boundary]) if problem.part_bytes else 1
            for ends in (pair, pair[::-1]):
                ways = pipeline.route(*ends), pipeline.route(*ends[::-1])
                found.append(
                    UsedUp(first_rank + problem.number(place, ends[0]), *ways, size, problem.n_microbatches * parts)
                )
    for each in (problem.all_gather, problem.reductions) if moves else ():
        for what, rank in zip(each, problem.stage_to_rank, strict=bool(each)):
            for step in what.steps:
                back = what.routes.get((step.target, step.source), ())
                source = first_rank + problem.number(step.source, rank)
                found.append(UsedUp(source, what.route(step), back, size, len(what.parts(step))))
    return [one for one in found if one.route]
