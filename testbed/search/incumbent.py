"""The incumbent of a search: its best solution so far, the bound on it, until when to search, and who is told.

An incumbent is what operations research calls the best solution known so far. Every search keeps its own in an
`Incumbent`: how long it has, what Ctrl-C does, and what is shown of it while it works are the same for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Generic, NamedTuple, TypeVar

from pydantic import Field

from testbed.interrupts import dealt_with

TimeLimit = Annotated[float, Field(gt=0, le=3600)]
"""Of a search, as an option: wall seconds."""

Solution = TypeVar("Solution")

CLOSE_ENOUGH = 1e-9
"""A solution that is above its lower bound by no more than this share meets it."""


class Standing(NamedTuple):
    """How far a search has come."""

    wall_s: float
    """Since it began."""
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
"""Called for a better solution and for a better bound."""

Watch = Callable[[str, Standing], None]
"""The same with the name of what is searched in front, for whoever watches several searches."""


class Incumbent(Generic[Solution]):
    """The best solution of a search so far; its time limit runs from the moment this is made."""

    best: Solution
    """There from the first one that is kept."""

    def __init__(
        self,
        time_limit_s: float = math.inf,
        bound_s: float = 0.0,
        progress: Progress | None = None,
        *,
        unit_s: float = 1.0,
    ) -> None:
        """`bound_s` is a lower bound, in units of `unit_s` seconds as all makespans; `time_limit_s` is wall time."""
        self._begin, self._progress, self._unit_s = time.monotonic(), progress, unit_s
        self.time_limit_s, self.until = time_limit_s, self._begin + time_limit_s
        """`until` is on the monotonic clock."""
        self.best_s, self.bound_s, self.interrupted = math.inf, bound_s, False

    def offer(self, solution: Solution, makespan_s: float) -> bool:
        """Keep a solution if it is better, and say so; returns whether it is."""
        better = makespan_s < self.best_s
        if better:
            self.keep(solution, makespan_s, min(self.bound_s, makespan_s))  # they may meet but for rounding
        return better

    def keep(self, solution: Solution, makespan_s: float, bound_s: float) -> None:
        """Take a solution, better by what the search itself compares, and say so."""
        self.best, self.best_s, self.bound_s = solution, makespan_s, bound_s
        self.report()

    def raise_bound(self, bound_s: float) -> bool:
        """Take a lower bound if it is higher, and say so; returns whether it is. It never is above the best."""
        bound_s = min(bound_s, self.best_s)
        higher = bound_s > self.bound_s
        if higher:
            self.bound_s = bound_s
            self.report()
        return higher

    @property
    def wall_s(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._begin

    def left_s(self) -> float:
        """Of the time limit; below 0 behind it."""
        return self.until - time.monotonic()

    @property
    def good_enough_s(self) -> float:
        """What meets the lower bound."""
        return self.bound_s * (1 + CLOSE_ENOUGH)

    def over(self) -> bool:
        """Whether the time is up, or nothing is left to gain."""
        return self.best_s <= self.good_enough_s or self.left_s() < 0

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Ctrl-C ends the body and nothing else: the search goes on with the best so far, and says so."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupt()
            dealt_with()

    def interrupt(self) -> None:
        """Say that Ctrl-C ends the search."""
        self.interrupted = True
        self.report()

    def standing(self) -> Standing:
        """How far the search has come, in seconds."""
        best_s, bound_s = self.best_s * self._unit_s, self.bound_s * self._unit_s
        return Standing(self.wall_s, self.time_limit_s, best_s, bound_s, self.interrupted)

    def report(self) -> None:
        """Tell whoever watches."""
        if self._progress is not None:
            self._progress(self.standing())
