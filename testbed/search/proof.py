"""What a solver has proven of its schedule."""

from __future__ import annotations

from typing import Literal, NamedTuple

Status = Literal["optimal", "gap", "time limit", "interrupted"]
"""optimal: proven up to the rounding of time; gap: within the relative gap; else neither, and what ended the search."""

Covers = Literal["every schedule", "whole blocks"]
"""What a bound holds for. Whole blocks: with their backward split and their microbatches in order, so that sub-blocks,
or another order of microbatches, may be faster."""


class Proof(NamedTuple):
    """How good a solver's schedule is known to be."""

    makespan_s: float
    """By the event model; never above the hint's."""
    bound_s: float
    """No schedule that `covers` speaks of has a smaller makespan."""
    gap: float
    """(makespan - bound) / makespan"""
    status: Status
    time_limit_s: float
    wall_s: float
    covers: Covers = "whole blocks"
