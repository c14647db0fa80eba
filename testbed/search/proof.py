"""What a solver says of its schedule: how far it has come while it works, and what it has proven at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple


class Standing(NamedTuple):
    """How far a solver has come."""

    wall_s: float
    """Since it was called."""
    time_limit_s: float
    makespan_s: float
    """The best so far; infinite while there is none."""
    bound_s: float
    """Proven lower bound."""
    interrupted: bool = False
    """Whether it has been asked to stop: it goes on with the best so far."""

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan"""
        if self.makespan_s == math.inf:
            return 1.0
        return (self.makespan_s - self.bound_s) / self.makespan_s if self.makespan_s > 0 else 0.0


Progress = Callable[[Standing], None]
"""Called for a better schedule and for a better bound."""

Watch = Callable[[str, Standing], None]
"""The same with the schedule's name in front, for whoever watches several solvers."""


Status = Literal["optimal", "gap", "time limit", "interrupted"]
"""optimal: proven up to the rounding of time; gap: within the relative gap; else neither, and what ended the search."""

Covers = Literal["every schedule", "whole blocks"]
"""What a bound holds for. Whole blocks: with their backward split and their microbatches in order, so that sub-blocks,
or another order of microbatches, may be faster."""


class Proof(NamedTuple):
    """How good a solver's schedule is known to be, when messages are received early."""

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
