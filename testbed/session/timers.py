"""What is to be done at instants of the monotonic clock while something else is waited for."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple


class TimedAction(NamedTuple):
    """Something to do during an iteration."""

    at_s: float
    """Seconds into it, from the common start of all jobs."""
    act: Callable[[], None]


class Timers:
    """Actions with the instants at which they are due, each done once."""

    def __init__(self, actions: Iterable[TimedAction] = (), start_s: float = 0.0) -> None:
        """`actions` at seconds since `start_s`."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = count()
        for action in actions:
            self.at(start_s + action.at_s, action.act)

    def at(self, due_s: float, act: Callable[[], None]) -> None:
        """Have something done at an instant, or as soon after it as can be; at one instant in the order of asking."""
        heapq.heappush(self._due, (due_s, next(self._asked), act))

    def left_s(self) -> float | None:
        """Seconds until something is due, 0 where it is; None where nothing ever will be."""
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def act(self) -> None:
        """Do all that is due; what it raises is raised here, and what is due after it stays."""
        while self.left_s() == 0.0:
            heapq.heappop(self._due)[2]()
