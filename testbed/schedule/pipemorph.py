"""PipeMorph, now Adaptra: a zero-bubble pipeline whose warm-up has slack for slow links (Wu et al., arXiv 2504.19232).

Stage i runs x_i forwards before its first backward. A link between i and i + 1 makes no cascade of bubbles as long as
t_F + t_B + 2c <= D t', with the slack D = x_i - x_{i+1}, c one way, and t' = t_F + t_B of the stage behind it (Theorem
1); t_B is the input gradient, after which the message leaves. The paper has delays alone in c; here it has the time on
the wire as well.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import Annotated

from pydantic import Field

from testbed.errors import BadInput
from testbed.pipeline.ir import Schedule
from testbed.pipeline.link import LinkCost, crossing_s
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family
from testbed.search.list_scheduler import Lister, input_first

LEAST_SLACK = 2
"""Warm-up forwards that a stage makes beyond the next one's, as far as memory allows: a zero bubble takes as many."""


def pipemorph(problem: Problem, warmup: Annotated[int, Field(ge=1)] | None = None) -> Schedule:
    """Every rank up to its number of warm-up forwards, then whatever is ready: I before F before W.

    By default adapted to the links at hand (the paper's Algorithm 2), within memory. With `warmup` forwards of the
    first stage it is planned for links that take no time: its slack is spread over all stages (Algorithm 1). Raises
    DoesNotFit when a rank cannot hold a single microbatch, BadInput for several stages per rank.
    """
    if problem.n_stages != problem.n_ranks:
        raise BadInput.of("pipemorph", "stages per rank", problem.n_stages // problem.n_ranks, "1")
    free = (LinkCost(0.0, 0.0),) * len(problem.links)
    lister = Lister(problem if warmup is None else replace(problem, links=free), warmups(problem, warmup))
    keys = input_first(problem.n_stages, problem.n_microbatches)
    return lister.schedule(lister.order(keys), "pipemorph")


def warmups(problem: Problem, first: int | None = None) -> list[int]:
    """Per stage, x as memory allows: made for the links, or spread from so many of the first one.

    The paper moves to the host what does not fit; here the late stages keep their slack, as theirs costs most.
    """
    return [min(wanted, most) for wanted, most in zip(_wanted(problem, first), _room(problem), strict=True)]


def _wanted(problem: Problem, first: int | None) -> list[int]:
    """Per stage, x whatever memory allows: 1 of the last one."""
    if first is None:
        wanted = list(accumulate(reversed(slacks(problem)), initial=1))[::-1]
    else:
        behind = problem.n_stages - 1
        wanted = [1 + math.ceil((first - 1) * (behind - stage) / behind) for stage in range(behind)] + [1]
    return [min(x, problem.n_microbatches) for x in wanted]


def slacks(problem: Problem) -> list[int]:
    """Per boundary of two stages, the least D that absorbs its link, whatever memory allows (Algorithm 2)."""
    # the paper's bound; its Algorithm 2 says nothing of fewer than 2 S + 2 microbatches
    most = max(LEAST_SLACK, problem.n_microbatches - 2 * problem.n_stages)
    return [min(most, max(LEAST_SLACK, _absorbing(problem, stage))) for stage in range(problem.n_stages - 1)]


def _absorbing(problem: Problem, stage: int) -> int:
    """The least D for which the law holds behind a stage; any is as good where the next one takes no time."""
    period_s = problem.forward_s[stage + 1] + problem.input_s[stage + 1]
    if not period_s:
        return LEAST_SLACK
    size = problem.planned_bytes[stage]
    there, back = problem.route(stage, stage + 1), problem.route(stage + 1, stage)
    trip_s = sum(crossing_s([problem.links[index] for index in route], size) for route in (there, back))
    needed = (problem.forward_s[stage] + problem.input_s[stage] + trip_s) / period_s
    # a trip of exactly n periods needs n, whatever rounding has made of it
    return math.ceil(needed - TOLERANCE)


def _room(problem: Problem) -> list[int]:
    """Per rank, the microbatches that it can hold and still run one's input gradient; at least 1."""
    room = []
    for stage, limit in enumerate(problem.memory_limit):
        taken = problem.activation[stage]
        left = limit - (problem.input_memory[stage] if problem.input_memory else 0.0)
        most = math.floor((left + TOLERANCE) / taken) if taken > 0 else problem.n_microbatches
        room.append(max(1, min(most, problem.n_microbatches)))
    return room


def limited(problem: Problem, warmup: int | None = None) -> str | None:
    """What memory takes from the warm-up, in words; None where it takes nothing."""
    got, wanted = warmups(problem, warmup), _wanted(problem, warmup)
    if got == wanted:
        return None
    return (
        f"memory allows {', '.join(map(str, got))} of {', '.join(map(str, wanted))} warm-up forwards "
        f"(all of them take memory for {_held(problem, wanted):g} microbatches)"
    )


def _held(problem: Problem, wanted: list[int]) -> float:
    """Most memory that a rank needs for these, in microbatches."""
    extra = problem.input_memory or (0.0,) * problem.n_stages
    return max(x * a + more for x, a, more in zip(wanted, problem.activation, extra, strict=True))


FAMILY = Family(
    pipemorph, "Adaptra's zero bubble with warm-ups made for slow links", uses_spare_memory=True, remark=limited
)
