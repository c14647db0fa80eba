"""CrossPipe's greedy schedule, CrossUDSub (section 4.2, Algorithm 1): list scheduling of sub-blocks over delayed links.

What the paper leaves open (ties, what follows a full block) is as in its published code. Beyond the
paper, forwards wait for their stage's all-gather, and leave the memory free that an input gradient needs beside them
(recomputation), without which a rank could never go on. Reduce-scatters, which follow a stage's last action, are not
planned. Times are whole ticks (ticks.py), so that equal times tie in every unit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from testbed.errors import BadInput
from testbed.model.network import Ints
from testbed.model.simulate import COMPILED as COMPILED_MODEL
from testbed.pipeline.action_columns import ActionColumns, rows_of
from testbed.pipeline.ir import KINDS, WHOLE, Row, Schedule
from testbed.pipeline.problem import Problem
from testbed.pipeline.ticks import in_ticks
from testbed.schedule import greedy_loop
from testbed.schedule.family import Family
from testbed.schedule.sub_blocks import costs
from testbed.search.blocks import SPLIT_KINDS

DEFAULT_SUB_BLOCKS = 4
"""CrossPipe's experiments use n_sub = 4."""


_NUMBERS = np.array([KINDS.index(kind) for kind in SPLIT_KINDS])

LARGE = 4000
"""Ranks x microbatches x sub-blocks from which the compiled loop is worth its import: of one problem, or, where the
event model runs compiled, of small ones together, as a controller has them made anew in every iteration."""


@dataclass
class _SmallOnes:
    """What this process has been asked for since the event model runs compiled."""

    size: int = 0


_SO_FAR = _SmallOnes()


def crosspipe_greedy(problem: Problem, n_sub: Annotated[int, Field(ge=1, le=64)] = DEFAULT_SUB_BLOCKS) -> Schedule:
    """CrossUDSub for one stage per rank, every block cut into `n_sub` sub-blocks.

    Raises DoesNotFit when a rank cannot hold a single microbatch, or holds several stages.
    """
    if problem.n_stages != problem.n_ranks:
        raise BadInput.of("crosspipe-greedy", "stages per rank", problem.n_stages // problem.n_ranks, "1")
    size = problem.n_ranks * problem.n_microbatches * n_sub
    rows = greedy_rows(in_ticks(problem), n_sub, compiled=_worth_compiling(size))
    return Schedule("crosspipe-greedy", rows, problem.stage_to_rank, problem.n_microbatches)


def _worth_compiling(size: int) -> bool:
    if COMPILED_MODEL not in sys.modules:
        return size > LARGE
    _SO_FAR.size += size
    return _SO_FAR.size > LARGE


def greedy_rows(problem: Problem, n_sub: int, *, compiled: bool = True) -> tuple[Row, ...]:
    """The rows of a problem in ticks with one stage per rank, whatever is not whole rounded; `compiled` is faster.

    Raises DoesNotFit when a rank cannot hold a single microbatch.
    """
    return rows_of(greedy_actions(problem, n_sub, compiled=compiled))


def greedy_actions(problem: Problem, n_sub: int, *, compiled: bool = True) -> ActionColumns:
    """The actions of `greedy_rows` as arrays."""
    loop = greedy_loop.greedy
    if compiled:
        from testbed.schedule.greedy_compiled import greedy as loop  # slow to import: only where it is used
    sequence = loop(problem.n_microbatches, n_sub, costs(problem, n_sub))
    assert (sequence[:, :, 2] >= 0).all(), "a rank never got to an end"
    return _joined(sequence, n_sub)


def _joined(sequence: Ints, n_sub: int) -> ActionColumns:
    """Neighbouring sub-blocks of one block joined into actions, rank by rank."""
    n_ranks, places, _ = sequence.shape
    kinds, microbatches, firsts = sequence.reshape(-1, 3).T
    begins = np.ones(n_ranks * places, np.bool_)
    begins[1:] = (kinds[1:] != kinds[:-1]) | (microbatches[1:] != microbatches[:-1])
    begins[::places] = True
    at = np.flatnonzero(begins)
    sizes = np.diff(np.append(at, len(begins)))
    whole = sizes == n_sub
    return ActionColumns(
        np.searchsorted(at, np.arange(n_ranks + 1) * places),
        at // places,
        at // places,
        _NUMBERS[kinds[at]],
        microbatches[at],
        np.where(whole, WHOLE.begin, firsts[at]),
        np.where(whole, WHOLE.end, firsts[at] + sizes),
        np.where(whole, WHOLE.of, n_sub),
    )


FAMILY = Family(crosspipe_greedy, "CrossPipe's greedy CrossUDSub, made for the links at hand", uses_spare_memory=True)
