"""What collectives come to on their own: when parameters are there, and how long a reduction takes on idle links."""

from __future__ import annotations

import math
from typing import NamedTuple

from testbed.model.execute import execute
from testbed.model.lower import Load, lower
from testbed.pipeline.collectives import Collective, CollectiveMessage
from testbed.pipeline.ir import Schedule
from testbed.pipeline.link import crossing_s
from testbed.pipeline.problem import Problem


class Gathered(NamedTuple):
    """What the all-gathers at the iteration's start come to, before any message of the pipelines."""

    ready_s: tuple[float, ...]
    """Per stage of the first replica, when its parameters are on its rank, or on all of its tensor ranks."""
    link_free_s: tuple[float, ...]
    """Per link, until when they occupy it."""


def gathered(problem: Problem) -> Gathered:
    """The all-gathers alone, as the event model has them: what generators plan with."""
    if not any(problem.gather(stage).steps for stage in range(problem.n_stages)):
        return Gathered((0.0,) * problem.n_stages, (0.0,) * len(problem.links))
    nothing = Schedule("nothing", ((),) * problem.n_ranks, problem.stage_to_rank, problem.n_microbatches)
    program, _ = lower([Load(problem, nothing)])
    times = execute(program, program.in_order())
    ready = [0.0] * problem.n_stages
    for message, stage in enumerate(program.gathers.tolist()):
        if 0 <= stage < problem.tensor * problem.n_stages:  # the first replica's, of all its tensor ranks
            ready[stage % problem.n_stages] = max(ready[stage % problem.n_stages], float(times.arrived_s[message]))
    return Gathered(tuple(ready), tuple(times.link_free_s.tolist()))


def idle_gather_s(problem: Problem, stage: int) -> float:
    """No all-gather brings the first replica its parameters of a stage earlier: its longest chain on idle links."""
    what = problem.gather(stage)
    ends = _chain_ends(problem, what, dict.fromkeys(range(len(problem.pipelines)), 0.0))
    return max((end for step, end in zip(what.steps, ends, strict=True) if step.target == 0), default=0.0)


def idle_reduction_s(problem: Problem, stage: int) -> float:
    """No reduction is over earlier than this after the first replica's gradients: what they start, on idle links."""
    return max((0.0, *_chain_ends(problem, problem.reduction(stage), {0: 0.0})))


def _chain_ends(problem: Problem, what: Collective, begin_s: dict[int, float]) -> list[float]:
    """When each message arrives at the earliest, if members begin at `begin_s`; those left out began long ago."""
    ends: list[float] = []
    for step in what.steps:
        before = [ends[other] for other in step.after]
        own = begin_s.get(step.source, -math.inf) if step.own or not step.after else -math.inf
        ends.append(max((own, *before)) + transfer_s(problem, what, step))
    return ends


def transfer_s(problem: Problem, what: Collective, step: CollectiveMessage) -> float:
    """Seconds a message of a collective takes on idle links: all delays, and the slowest link's time on the wire."""
    return crossing_s([problem.links[index] for index in what.route(step)], what.size(step))
