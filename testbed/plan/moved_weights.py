"""Weights that move: what ranks send each other where a job goes on with its stages on other ranks.

With the weights of a layer goes what the optimizer keeps of them; nothing is sent for layers whose rank stays. All that
goes from one rank to another of an old stage that is of a new one is a message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise, product
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.pipeline.problem import Problem, Route
from testbed.plan.framing import part_bytes, wire_bytes
from testbed.plan.plan import Plan
from testbed.spec.model import ModelSpec
from testbed.spec.workload import Workload

MOMENTS = {"adamw": 2, "sgd": 1}
"""Numbers that an optimizer keeps of every parameter."""

Stages = tuple[int, ...]
"""The pipeline rank of every stage."""


class StagePart(NamedTuple):
    """Layers of an old stage that are in a new one."""

    old: int
    new: int
    layers: range
    """Their numbers in the whole model."""
    blocks: range
    """The same as the even shares that a model is cut by."""


class MovedWeights(NamedTuple):
    """A message of one pipeline rank to another."""

    source: int
    target: int
    part: StagePart
    payload_bytes: int
    """As far as the model's description knows its parameters."""
    wire_bytes: float
    """With headers, and what gloo adds."""


def stage_parts(spec: ModelSpec, before: int, after: int) -> list[StagePart]:
    """What of a model that is cut into so many stages is where, once it is cut into others."""
    found = []
    for old, new in product(range(before), range(after)):
        cuts = (old, before), (new, after)
        shares = [range(one * spec.layers // of, (one + 1) * spec.layers // of) for one, of in cuts]
        blocks = range(max(share.start for share in shares), min(share.stop for share in shares))
        if blocks:
            first, last = (spec.stage_layers(block, spec.layers) for block in (blocks[0], blocks[-1]))
            found.append(StagePart(old, new, range(first.start, last.stop), blocks))
    return found


def moved_weights(plan: Plan, job: int, before: Stages, after: Stages) -> list[MovedWeights]:
    """What the ranks of each pipeline of a job send each other."""
    workload, gloo_bytes = plan.jobs[job].workload, plan.host_costs.gloo_bytes
    spec, kept, degree = workload.model, 1 + MOMENTS[workload.optimizer.kind], workload.parallelism.tensor
    found = []
    for part in stage_parts(spec, len(before), len(after)):
        source, target = before[part.old], after[part.new]
        if source != target:
            count = sum(spec.rank_parameter_count(block, spec.layers, degree) for block in part.blocks)
            payload = kept * count * spec.element_bytes
            streams = part_bytes(payload, spec.element_bytes, workload.streams)
            wire = sum(wire_bytes(each) + gloo_bytes for each in streams)
            found.append(MovedWeights(source, target, part, payload, wire))
    return found


def require_movable(workload: Workload, before: Stages, after: Stages, source: str, field: str) -> None:
    """Raises BadInput where a training cannot go on with its stages on these ranks."""
    shared = workload.parallelism.data > 1 and workload.data_parallel.sharding != "none"
    if before != after and shared:
        expected = (
            f"{before}, as before, or data_parallel.sharding: none: of an optimizer that replicas share "
            f"({workload.data_parallel.sharding}) no replica has all that would move"
        )
        raise BadInput.of(source, field, after, expected)


def moving_s(problem: Problem, moved: Sequence[MovedWeights]) -> float:
    """How long the ranks of all pipelines take to send each other these: word that a receive is posted goes back, then
    the weights come. Each link on the way carries what comes to it one after the other, and passes on what it has of a
    message while more of that still comes. Meanwhile what replicas have posted is used up.
    """
    coming = list[_OnItsWay]()
    for number, (pipeline, one) in enumerate(product(problem.pipelines, moved)):
        there, back = pipeline.route(one.source, one.target), pipeline.route(one.target, one.source)
        coming += [_OnItsWay(0.0, number, 0.0, problem.notice_bytes, back, (one.wire_bytes, there))] if there else []
    free_s, ended_s = defaultdict[int, float](float), _replicas_apart_s(problem)
    while coming:
        at_s, number, whole_s, size, (index, *further), answer = heappop(coming)
        link, begins_s = problem.links[index], max(at_s, free_s[index])
        free_s[index] = max(begins_s + size * link.seconds_per_byte, whole_s)
        there_s = free_s[index] + link.delay_s
        if further:
            heappush(coming, _OnItsWay(begins_s + link.delay_s, number, there_s, size, tuple(further), answer))
        elif answer is not None:
            heappush(coming, _OnItsWay(there_s, number, 0.0, *answer, None))
        ended_s = max(ended_s, there_s)
    return ended_s


class _OnItsWay(NamedTuple):
    """A message that comes to a link."""

    at_s: float
    """Its first byte."""
    number: int
    whole_s: float
    """When its last byte comes from the link before; 0: there is none."""
    wire_bytes: float
    route: Route
    """This link, and those behind it."""
    answer: tuple[float, Route] | None
    """What leaves when it is there, with its bytes and route."""


def using_up_s(problem: Problem) -> float:
    """How long the shortest messages take that use up the receives of an iteration: as long as to the farthest rank."""
    stages = problem.stage_to_rank
    ends = [pair for a, b in pairwise(stages) for pair in ((a, b), (b, a))]
    routes = (pipeline.route(*pair) for pipeline in problem.pipelines for pair in ends)
    return max((_delay_s(problem, route) for route in routes), default=0.0)


def _replicas_apart_s(problem: Problem) -> float:
    """How far the farthest two are from each other that a collective's message goes between."""
    collectives = (*problem.all_gather, *problem.reductions)
    routes = {collective.route(step) for collective in collectives for step in collective.steps}
    return max((_delay_s(problem, route) for route in routes), default=0.0)


def _delay_s(problem: Problem, route: Route) -> float:
    return sum(problem.links[index].delay_s for index in route)
