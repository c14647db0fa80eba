"""The pipeline scheduling problem: what actions and messages cost, and how much fits in memory.

It is all that a schedule generator and the event model see of a topology and a workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from typing import Literal, NamedTuple

from testbed.pipeline.collectives import NO_COLLECTIVE, Collective
from testbed.pipeline.ir import Action, Kind
from testbed.pipeline.link import LinkChange, LinkCost, Stream

Route = tuple[int, ...]
"""Indexes into a problem's `links`, first to last; () when it costs nothing."""


NO_CARD = -1
"""In `rank_cards`: the rank's node has none."""


class Transfer(NamedTuple):
    """Wire bytes of what a tensor rank sends each other one of its stage, and of what acknowledges that as it comes."""

    there: float = 0.0
    acks: float = 0.0


NO_TRANSFER = Transfer()


class Exchanges(NamedTuple):
    """What one action's tensor ranks send each other over their network cards."""

    gathered: Transfer = Transfer()
    """Its part of the action's input, which each of them sends the others as soon as it has come in."""
    summed: Transfer = Transfer()
    """In every sum."""
    sums: int = 0


class Exchanged(NamedTuple):
    """What each tensor rank of a stage sends every other one for a microbatch.

    Sums follow each other: a rank begins the next one when it has what the others sent for the one before.
    """

    forward: Transfer
    """In every sum of F ..."""
    backward: Transfer
    """... and of I or B."""
    forward_sums: int = 1
    backward_sums: int = 1
    forward_gathered: Transfer = Transfer()
    """Its part of the tensor that F takes, which each tensor rank sends the others as soon as it has come in ..."""
    backward_gathered: Transfer = Transfer()
    """... and of the gradient that I or B takes."""


class PipelineRoutes(NamedTuple):
    """How the messages of one pipeline travel: its routes, and what they are cut into on the way."""

    routes: Mapping[tuple[int, int], Route] = {}
    """(source pipeline rank, target pipeline rank) -> route; a pair left out is joined without delay."""
    piece_bytes: tuple[float, ...] = ()
    """Per source rank, wire bytes of the super-packets its messages leave in; empty: messages keep together.

    On a link further along a route other messages come between the pieces of one that is still coming in."""
    ack_bytes: tuple[float, ...] = ()
    """Per source rank, wire bytes that go back as acknowledgement of every piece; empty: none."""
    rank_cards: tuple[int, ...] = ()
    """Per rank, which of the links is the network card that tensor ranks send each other over; empty: over none."""

    def route(self, source_rank: int, target_rank: int) -> Route:
        """Links a message takes between two ranks, in order; () when it costs nothing."""
        return self.routes.get((source_rank, target_rank), ())


Receives = Literal["early", "late", "late-free-notice"]
"""When a receive is posted: a step ahead, or when its rank reaches the action.

Gloo's notice of that crosses the network like any message; a free notice takes no time, as where delay is injected into
the data alone (CrossPipe, appendix F.1)."""


@dataclass(frozen=True)
class Problem:
    """P ranks, S stages, M microbatches, durations, memory and links.

    Per-stage tuples have length S, per-rank tuples length P. Memory is counted in microbatches of a *whole rank*
    in flight: with v chunks per rank, each stage's microbatch weighs 1/v.
    """

    n_microbatches: int
    stage_to_rank: tuple[int, ...]
    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    memory_limit: tuple[float, ...]
    """Per rank, microbatches in flight."""
    activation: tuple[float, ...]
    """Per stage, memory a forward adds (CrossPipe's M_F); the end of B or W frees what is held."""
    backward_s: tuple[float, ...] = ()
    """Per stage, a fused backward; empty: I and W together."""
    input_memory: tuple[float, ...] = ()
    """Per stage, memory an input gradient adds (CrossPipe's M_D), 0 unless given."""
    message_bytes: tuple[float, ...] = ()
    """Per boundary s -> s + 1 (length S - 1), wire bytes of one message in either direction."""
    payload_bytes: tuple[float, ...] = ()
    """Per boundary, what of them is the tensor; empty where nobody asks."""
    part_bytes: tuple[tuple[float, ...], ...] = ()
    """Per boundary, wire bytes of the parts in which a message is sent, each over a connection of its own; empty: it is
    sent as a whole."""
    links: tuple[LinkCost, ...] = ()
    changes: tuple[LinkChange, ...] = ()
    """What becomes of links within the iteration, in order of time. The event model alone has it: schedules are made
    for `links`."""
    stamped: bool = False
    """Whether a change is for packets that come to their link after it, and not for those that wait there."""
    streams: tuple[Stream, ...] = ()
    """What else is on links. The event model alone has it, as it has `changes`."""
    cards: frozenset[int] = frozenset()
    """Which of the links are network cards: a route over nothing else stays inside a datacenter."""
    pipelines: tuple[PipelineRoutes, ...] = (PipelineRoutes(),)
    """Of every replica its tensor ranks, one pipeline after the other; each is simulated for itself. A generator plans
    for the first one (`route`); for another it is given the problem `with_first` that one."""
    exchanged: tuple[Exchanged, ...] = ()
    """Per stage, what its tensor ranks send each other, within actions' slots, from their inputs and start on. Empty:
    nothing."""
    exchange_notice: Transfer = NO_TRANSFER
    """With which a tensor rank tells each other one, when it has what all sent, that its next receive is posted."""
    handover_s: float = 0.0
    """From a message's last bit at the receiving rank's host to its use, on every message between ranks."""
    send_s: float = 0.0
    """What the call that sends a message takes where no link is on its route: all of the message's own time."""
    send_s_per_byte: float = 0.0
    """And for each byte."""
    wake_s: float = 0.0
    """How long gloo's thread takes to answer a notice, unless something else has just woken it."""
    begins_s: tuple[float, ...] = ()
    """How long after the job's start each rank begins, replica by replica (tensor ranks together), so that none come
    first by chance; empty: all at once."""
    unnoticed_wait_s: float = 0.0
    """A rank that waits for its input no longer than this is not delayed (the engine's logical clock)."""
    tie_s: float = 20e-6
    """What this has within so much of each other may come the other way round."""
    notice_bytes: float = 0.0
    """Wire bytes of the notice that gloo sends when a send, and when a receive, is posted."""
    tensor: int = 1
    """How many tensor ranks share every stage of a replica: as many pipelines, one behind the other, that run the same
    schedule. An action begins on all of them when all have their input."""
    receives: Receives = "early"
    """When ranks post receives: what searches judge their schedules by."""
    numbers: tuple[tuple[int, ...], ...] = ()
    """Per pipeline, the numbers of its ranks among those of the job; empty: one pipeline's after the other's."""
    all_gather: tuple[Collective, ...] = ()
    """Per stage, before its first F (ZeRO-1); empty without data parallelism."""
    reductions: tuple[Collective, ...] = ()
    """Per stage, after its last W: a reduce-scatter (ZeRO-1) or an all-reduce."""

    @property
    def n_ranks(self) -> int:
        """Pipeline degree P."""
        return len(self.memory_limit)

    @property
    def n_stages(self) -> int:
        """Number of stages S."""
        return len(self.stage_to_rank)

    def gather(self, stage: int) -> Collective:
        """What a stage's parameters come by before its first F; one without messages costs nothing."""
        return self.all_gather[stage] if self.all_gather else NO_COLLECTIVE

    def reduction(self, stage: int) -> Collective:
        """What a stage's gradients are reduced by after its last W; one without messages costs nothing."""
        return self.reductions[stage] if self.reductions else NO_COLLECTIVE

    @cached_property
    def planned_bytes(self) -> tuple[float, ...]:
        """Per boundary, wire bytes that a generator should count with: all replicas that send over the same link.

        Replicas run in step, so what they send over a link comes to it at the same time.
        """
        counts = [
            sum(not {*self.route(a, b)}.isdisjoint(pipeline.route(a, b)) for pipeline in self.pipelines)
            for a, b in pairwise(self.stage_to_rank)
        ]
        return tuple(size * max(1, count) for size, count in zip(self.message_bytes, counts, strict=True))

    def with_first(self, replica: int) -> Problem:
        """The same job with this replica and the first one in each other's places; of replica 0 the problem itself."""
        if replica == 0:
            return self
        size, begin, count = self.tensor, replica * self.tensor, len(self.pipelines)
        order = [*range(begin, begin + size), *range(size, begin), *range(size), *range(begin + size, count)]
        return replace(
            self,
            pipelines=tuple(self.pipelines[index] for index in order),
            numbers=tuple(self.numbers[index] for index in order) if self.numbers else (),
            # two places that are exchanged: what comes to a place was where that goes
            all_gather=tuple(collective.with_members(order) for collective in self.all_gather),
            reductions=tuple(collective.with_members(order) for collective in self.reductions),
        )

    def with_each_first(self) -> list[Problem]:
        """The same job for a generator to plan: once with each replica first whose messages travel at other costs."""
        replicas = range(len(self.pipelines) // self.tensor)
        distinct = {self._travel(self.pipelines[replica * self.tensor]): replica for replica in reversed(replicas)}
        return [self.with_first(replica) for replica in sorted(distinct.values())]

    def _travel(self, pipeline: PipelineRoutes) -> object:
        """What messages between neighbours of a pipeline go through, there and back."""
        pairs = [pair for a, b in pairwise(self.stage_to_rank) for pair in ((a, b), (b, a))]
        return tuple(
            tuple(self.links[index] for index in pipeline.route(*pair)) for pair in pairs
        ), pipeline.piece_bytes

    def without_collectives(self) -> Problem:
        """The same pipelines without what the replicas exchange."""
        return replace(self, all_gather=(), reductions=()) if self.all_gather or self.reductions else self

    def duration(self, action: Action) -> float:
        """Seconds an action takes on its rank; B takes I and W together unless its own time is known."""
        stage = action.stage
        match action.kind:
            case Kind.F:
                whole = self.forward_s[stage]
            case Kind.I:
                whole = self.input_s[stage]
            case Kind.W:
                whole = self.weight_s[stage]
            case Kind.B:
                whole = self.whole_backward_s(stage)
            case _:
                raise ValueError(f"{action} has no compute time")
        return whole * action.part.fraction

    def exchanges(self, action: Action) -> Exchanges:
        """What the tensor ranks of a stage send each other in all parts of an action."""
        if not self.exchanged or action.kind is Kind.W:
            return Exchanges()
        of = self.exchanged[action.stage]
        if action.kind is Kind.F:
            return Exchanges(of.forward_gathered, of.forward, of.forward_sums)
        return Exchanges(of.backward_gathered, of.backward, of.backward_sums)

    def whole_backward_s(self, stage: int) -> float:
        """Seconds of a stage's fused backward."""
        return self.backward_s[stage] if self.backward_s else self.input_s[stage] + self.weight_s[stage]

    @cached_property
    def least_input_s(self) -> tuple[float, ...]:
        """Per stage, until a gradient can leave at the earliest: after I, or after a fused backward."""
        return tuple(min(i, self.whole_backward_s(s)) for s, i in enumerate(self.input_s))

    @cached_property
    def least_weight_s(self) -> tuple[float, ...]:
        """Per stage, what a weight gradient adds to that at least: as W, or within a fused backward."""
        pairs = zip(self.least_input_s, self.weight_s, strict=True)
        return tuple(min(w, self.whole_backward_s(s) - i) for s, (i, w) in enumerate(pairs))

    def memory_delta(self, action: Action) -> float:
        """Net change of a rank's memory by an action: positive from its start, negative from its end."""
        stage = action.stage
        extra = self.input_memory[stage] if self.input_memory else 0.0
        match action.kind:
            case Kind.F:
                whole = self.activation[stage]
            case Kind.I:
                whole = extra
            case Kind.W:
                whole = -self.activation[stage] - extra
            case Kind.B:
                whole = -self.activation[stage]
            case _:
                whole = 0.0
        return whole * action.part.fraction

    def memory_needed(self, action: Action) -> float:
        """Memory an action needs from its start beside what its rank holds: B needs what I would, and gives it back."""
        if action.kind is Kind.B and self.input_memory:
            return self.input_memory[action.stage] * action.part.fraction
        return max(0.0, self.memory_delta(action))

    def route(self, source_rank: int, target_rank: int) -> Route:
        """Links a message of the first pipeline takes between two ranks, in order; () when it costs nothing."""
        return self.pipelines[0].route(source_rank, target_rank)

    @cached_property
    def first_like(self) -> tuple[int, ...]:
        """Per pipeline, the first one whose messages cross links of the same delays and rates."""

        def costs(pipeline: PipelineRoutes) -> tuple[object, ...]:
            routes = [
                (pair, tuple(self.links[index] for index in route)) for pair, route in sorted(pipeline.routes.items())
            ]
            return (routes, pipeline.piece_bytes, pipeline.ack_bytes)

        known = [costs(pipeline) for pipeline in self.pipelines]
        return tuple(map(known.index, known))

    def number(self, pipeline: int, rank: int) -> int:
        """The number among the job's ranks of a pipeline's rank."""
        return self.numbers[pipeline][rank] if self.numbers else pipeline * self.n_ranks + rank

    @cached_property
    def _seats(self) -> dict[int, tuple[int, int]]:
        """Per number of a rank, its pipeline and its rank there."""
        return {self.number(*seat): seat for seat in product(range(len(self.pipelines)), range(self.n_ranks))}

    def crosses(self, source: int, target: int) -> bool:
        """Whether messages between two ranks of the job cross any link."""
        (of, rank), (to, other) = self._seats[source], self._seats[target]
        if of == to:
            return bool(self.pipelines[of].route(rank, other))
        return bool(self.reduction(self.stage_to_rank.index(rank)).routes.get((of, to)))

    def route_delay(self, source_rank: int, target_rank: int) -> float:
        """One-way delay between two ranks of the first pipeline, without time on the wire."""
        return sum(self.links[index].delay_s for index in self.route(source_rank, target_rank))

    def with_memory(self, limit: float | tuple[float, ...]) -> Problem:
        """The same problem under another memory limit (one for all ranks, or one each)."""
        limits = limit if isinstance(limit, tuple) else (limit,) * self.n_ranks
        return replace(self, memory_limit=limits)


def uniform(
    n_ranks: int,
    n_microbatches: int,
    *,
    forward_s: float = 1.0,
    input_s: float = 1.0,
    weight_s: float = 1.0,
    memory: float | None = None,
    delay_s: float = 0.0,
    wire_s: float = 0.0,
    cuts: tuple[int, ...] | None = None,
    stage_to_rank: tuple[int, ...] | None = None,
) -> Problem:
    """A problem with equal ranks, and equal links across `cuts` (after rank c, for c in cuts; default: every pair).

    Times are for a whole rank's share of the model; with v stages per rank each stage takes 1/v of them.
    `wire_s` is the time one message occupies a link. `memory` defaults to P microbatches in flight.
    """
    placement = stage_to_rank or tuple(range(n_ranks))
    chunks = len(placement) // n_ranks
    cut_set = set(range(n_ranks - 1)) if cuts is None else set(cuts)
    links: list[LinkCost] = []
    index: dict[tuple[int, int], int] = {}
    if delay_s or wire_s:
        for cut in sorted(cut_set):
            for pair in ((cut, cut + 1), (cut + 1, cut)):
                index[pair] = len(links)
                links.append(LinkCost(delay_s, wire_s))
    routes: dict[tuple[int, int], Route] = {}
    for source in range(n_ranks):
        for target in range(n_ranks):
            step = 1 if target > source else -1
            hops = ((r, r + step) for r in range(source, target, step))
            if path := tuple(index[hop] for hop in hops if hop in index):
                routes[source, target] = path
    n_stages = len(placement)
    return Problem(
        n_microbatches=n_microbatches,
        stage_to_rank=placement,
        forward_s=(forward_s / chunks,) * n_stages,
        input_s=(input_s / chunks,) * n_stages,
        weight_s=(weight_s / chunks,) * n_stages,
        memory_limit=(float(n_ranks) if memory is None else memory,) * n_ranks,
        activation=(1.0 / chunks,) * n_stages,
        message_bytes=(1.0,) * (n_stages - 1),
        links=tuple(links),
        pipelines=(PipelineRoutes(routes),),
    )
