"""What a message is on its way: between which ranks, over which links, in which pieces, acknowledged by what."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from testbed.pipeline.depend import Message
from testbed.pipeline.problem import PipelineRoutes, Problem, Route
from testbed.trace.tables import MESSAGE_CODES


def message_number(message: Message, n_microbatches: int) -> int:
    """A number for every message between the stages of a pipeline, dense."""
    return (2 * message.stage + (message.kind == "G")) * n_microbatches + message.microbatch


class Frame(NamedTuple):
    """What a message of one kind is on its way."""

    route: Route
    back: Route
    pieces: int
    acks: int
    last_bytes: float
    piece_bytes: float
    notice_ahead_bytes: float
    ack_bytes: float


def framed(
    pipeline: PipelineRoutes, source: int, size: float, there_and_back: tuple[Route, Route], ahead: float = 0.0
) -> Frame:
    """`size` wire bytes sent by pipeline rank `source`, `ahead` of them ahead in a packet of their own.

    `there_and_back` are the route there and the one that acknowledgements take back.
    """
    route, back = there_and_back
    whole = pipeline.piece_bytes[source] if pipeline.piece_bytes and route else 0.0
    if not whole:
        return Frame(route, back, 0, 0, size, 0.0, 0.0, 0.0)
    count, several = math.ceil((size - ahead) / whole), len(route) > 1
    rest = _last_bytes(size - ahead, whole, count) if several else size
    packets = count + (ahead > 0)
    acks, ack_bytes = (packets, pipeline.ack_bytes[source]) if pipeline.ack_bytes else (0, 0.0)
    return Frame(route, back, packets if several else 0, acks, rest, whole, ahead, ack_bytes)


@lru_cache(maxsize=4096)
def _last_bytes(size: float, whole: float, count: int) -> float:
    """What is left for the last of so many pieces."""
    for _ in range(count - 1):
        size -= whole
    return size


class Way(NamedTuple):
    """Who sends a message to whom, and how much: what its frame follows from, whatever routes there are."""

    pipeline: int
    """Place of the one that sends it, among all of its job."""
    rank: int
    """Pipeline rank that sends it."""
    ends: tuple[int, int]
    """Pipeline ranks; of a collective members."""
    size: float
    """Wire bytes ..."""
    ahead: float
    """... and how many of them are ahead in a packet of their own."""
    stage: int = -1
    """Of the collective it is of; -1 for what stages send each other."""
    reduces: bool = False
    """Whether that is the reduction."""

    def frame(self, problem: Problem) -> Frame:
        """On the routes of a problem."""
        pipeline, back = problem.pipelines[self.pipeline], self.ends[::-1]
        if self.stage < 0:
            there_and_back = pipeline.route(*self.ends), pipeline.route(*back)
        else:
            what = problem.reduction(self.stage) if self.reduces else problem.gather(self.stage)
            there_and_back = what.routes.get(self.ends, ()), what.routes.get(back, ())
        return framed(pipeline, self.rank, self.size, there_and_back, self.ahead)


NOWHERE = Frame((), (), 0, 0, 0.0, 0.0, 0.0, 0.0)


def in_parts(count: int) -> Frame:
    """Of a message that is sent in so many parts, each of which is a message of its own on its way."""
    return NOWHERE._replace(pieces=count)


def send_seconds(problem: Problem, frame: Frame, wire_bytes: float) -> float:
    """What the call takes that sends a message; where a link is on the way it only queues it."""
    return 0.0 if frame.route else problem.send_s + problem.send_s_per_byte * wire_bytes


class Edge(NamedTuple):
    """What a stage sends to a neighbour, for every microbatch; pipeline ranks."""

    stage: int
    kind: int
    """As in the trace."""
    source: int
    target: int
    """The source again where there is no neighbour, or the same rank holds it."""
    wire_bytes: float
    payload_bytes: float
    parts: tuple[float, ...]
    """Wire bytes of the parts in which it is sent, each over a connection of its own."""


def edges_of(problem: Problem) -> list[Edge]:
    """In the order of `message_number`."""
    holder, edges = problem.stage_to_rank, []
    for stage in range(problem.n_stages):
        for letter, consumer in (("F", stage + 1), ("G", stage - 1)):
            inside = 0 <= consumer < problem.n_stages
            boundary = min(stage, consumer)
            size = problem.message_bytes[boundary] if inside and problem.message_bytes else 0.0
            payload = problem.payload_bytes[boundary] if inside and problem.payload_bytes else math.nan
            target = holder[consumer] if inside else holder[stage]
            parts = problem.part_bytes[boundary] if problem.part_bytes and target != holder[stage] else (size,)
            edges.append(Edge(stage, MESSAGE_CODES[letter], holder[stage], target, size, payload, parts))
    return edges
