"""Whole blocks F, I and W of every stage and microbatch as numbers: what schedules with a split backward are made of.

Plain functions on numbers or arrays, which compile.py compiles for the loops that make schedules.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.pipeline.ir import Kind

F, I, W = 0, 1, 2  # noqa: E741

SPLIT_KINDS = (Kind.F, Kind.I, Kind.W)
"""By number."""

N_KINDS = len(SPLIT_KINDS)

COMPILED: tuple[str, ...] = ()
INLINED = ("block_number", "block_of", "step_number", "step_of")
"""What compile.py compiles of this module, and what becomes part of the functions that call it."""

Number = TypeVar("Number", int, NDArray[np.int64])


def block_number(stage: Number, kind: Number, microbatch: Number, n_microbatches: int) -> Number:
    """A number for every block of a schedule, dense."""
    return (stage * N_KINDS + kind) * n_microbatches + microbatch


def block_of(number: Number, n_microbatches: int) -> tuple[Number, Number, Number]:
    """(stage, kind, microbatch) of a block's number."""
    return number // (N_KINDS * n_microbatches), number // n_microbatches % N_KINDS, number % n_microbatches


def step_number(chunk: int, kind: int) -> int:
    """A number for what a rank can do with one microbatch: a kind of block of its `chunk`-th stage."""
    return N_KINDS * chunk + kind


def step_of(number: int) -> tuple[int, int]:
    """(chunk, kind) of a step's number."""
    return number // N_KINDS, number % N_KINDS
