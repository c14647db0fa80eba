"""CrossPipe's greedy schedule, CrossUDSub (section 4.2, Algorithm 1): list scheduling of sub-blocks over delayed links.

What the paper leaves open (ties, what follows a full block) is as in its published code. Beyond the
paper, forwards wait for their stage's all-gather, and leave the memory free that an input gradient needs beside them
(recomputation), without which a rank could never go on. Reduce-scatters, which follow a stage's last action, are not
planned. Times are whole ticks (ticks.py), so that equal times tie in every unit.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from typing import Annotated

import numpy as np
from pydantic import Field

from testbed.errors import BadInput
from testbed.model.network import Ints
from testbed.pipeline.ir import WHOLE, Action, Part, Row, Schedule
from testbed.pipeline.problem import Problem
from testbed.pipeline.ticks import in_ticks
from testbed.schedule import greedy_loop
from testbed.schedule.family import Family
from testbed.schedule.sub_blocks import costs
from testbed.search.blocks import SPLIT_KINDS

DEFAULT_SUB_BLOCKS = 4
"""CrossPipe's experiments use n_sub = 4."""


LARGE = 4000
"""Ranks x microbatches x sub-blocks from which the compiled loop is worth its import."""


def crosspipe_greedy(problem: Problem, n_sub: Annotated[int, Field(ge=1, le=64)] = DEFAULT_SUB_BLOCKS) -> Schedule:
    """CrossUDSub for one stage per rank, every block cut into `n_sub` sub-blocks.

    Raises DoesNotFit when a rank cannot hold a single microbatch, or holds several stages.
    """
    if problem.n_stages != problem.n_ranks:
        raise BadInput.of("crosspipe-greedy", "stages per rank", problem.n_stages // problem.n_ranks, "1")
    large = problem.n_ranks * problem.n_microbatches * n_sub > LARGE
    rows = greedy_rows(in_ticks(problem), n_sub, compiled=large)
    return Schedule("crosspipe-greedy", rows, problem.stage_to_rank, problem.n_microbatches)


def greedy_rows(problem: Problem, n_sub: int, *, compiled: bool = True) -> tuple[Row, ...]:
    """The rows of a problem in ticks with one stage per rank, whatever is not whole rounded; `compiled` is faster.

    Raises DoesNotFit when a rank cannot hold a single microbatch.
    """
    loop = greedy_loop.greedy
    if compiled:
        from testbed.schedule.greedy_compiled import greedy as loop  # slow to import: only where it is used
    sequence = loop(problem.n_microbatches, n_sub, costs(problem, n_sub))
    assert (sequence[:, :, 2] >= 0).all(), "a rank never got to an end"
    return tuple(_row(rank, sequence[rank], n_sub) for rank in range(problem.n_ranks))


def _row(rank: int, sequence: Ints, n_sub: int) -> Row:
    """Neighbouring sub-blocks of one block joined into actions."""
    blocks = sequence[:, 0] * (1 << 32) + sequence[:, 1]
    begins = np.flatnonzero(np.concatenate(([True], blocks[1:] != blocks[:-1])))
    sizes = np.diff(np.append(begins, len(blocks))).tolist()
    kinds, microbatches, firsts = (column.tolist() for column in sequence[begins].T)
    return tuple(map(_action, repeat(rank), kinds, microbatches, firsts, sizes, repeat(n_sub)))


@lru_cache(maxsize=1 << 18)
def _action(rank: int, kind: int, microbatch: int, first: int, size: int, n_sub: int) -> Action:
    """So many sub-blocks of one block; kept, as a search makes the same ones of every order that it tries."""
    return Action(rank, SPLIT_KINDS[kind], microbatch, WHOLE if size == n_sub else Part(first, first + size, n_sub))


FAMILY = Family(crosspipe_greedy, "CrossPipe's greedy CrossUDSub, made for the links at hand", uses_spare_memory=True)
