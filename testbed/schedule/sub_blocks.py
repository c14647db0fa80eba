"""What sub-blocks cost, as CrossUDSub counts it: whole times, and memory with what the backward needs set aside."""

from __future__ import annotations

import numpy as np

from testbed.errors import DoesNotFit
from testbed.model.gather import gathered
from testbed.pipeline.ir import Action, Part
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.schedule.greedy_loop import Costs
from testbed.search.blocks import SPLIT_KINDS
from testbed.search.boundary_links import boundary_links


def costs(problem: Problem, n_sub: int) -> Costs:
    """The costs of a problem in ticks, whatever is not whole rounded.

    Raises DoesNotFit when a rank cannot hold a single microbatch.
    """
    n_ranks, part = problem.n_ranks, Part(0, 1, n_sub)
    length, delta = np.zeros((n_ranks, 3), np.int64), np.zeros((n_ranks, 3))
    most_unfinished = np.zeros(n_ranks, np.int64)
    for rank in range(n_ranks):
        for code, kind in enumerate(SPLIT_KINDS):
            length[rank, code] = round(problem.duration(Action(rank, kind, 0)))
            delta[rank, code] = problem.memory_delta(Action(rank, kind, 0, part))
        most_unfinished[rank] = _most_unfinished(problem, rank, n_sub)
    crossed = boundary_links(problem)
    ready, link_free = (np.rint(times).astype(np.int64) * n_sub for times in gathered(problem))
    limit = np.array(problem.memory_limit) + TOLERANCE
    wire, delay = crossed.wire * n_sub, crossed.delay * n_sub
    return Costs(length, delta, limit, most_unfinished, crossed.links, wire, delay, ready, link_free)


def _most_unfinished(problem: Problem, rank: int, n_sub: int) -> int:
    taken = problem.activation[rank]
    reserved = max(0.0, problem.input_memory[rank]) if problem.input_memory else 0.0
    limit = problem.memory_limit[rank]
    if taken + reserved > limit + TOLERANCE:
        expected = f"at least {taken + reserved:g}, what one microbatch needs"
        raise DoesNotFit.of("crosspipe-greedy", f"memory limit of rank {rank}", limit, expected)
    every = problem.n_microbatches * n_sub
    return every if taken <= 0 else min(every, int((limit + TOLERANCE - reserved) / taken * n_sub))
