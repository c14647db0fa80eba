"""The logical clock that paces real computation into the slots of a schedule.

An action that did not have to wait for data starts at the logical end of the action before it, not at "now": the
overshoot of sleeps and the engine's own overhead do not add up (reading/pipelining.md, section 7).
"""

from __future__ import annotations

import time

INPUT_WAS_THERE_S = 200e-6
"""A wait on a receive shorter than this found the data already in its buffer; it is the cost of the call."""

SPIN_S = 100e-6
"""The end of a sleep is spun, since a sleeping process wakes about this late."""


def now_s() -> float:
    """The one clock of all containers of a machine, in seconds."""
    return time.monotonic_ns() * 1e-9


def sleep_until(when_s: float) -> None:
    """Return at `when_s` on the monotonic clock, at once if it is past."""
    while (left := when_s - now_s()) > 0:
        if left > SPIN_S:
            time.sleep(left - SPIN_S)


class LogicalClock:
    """Where one rank is in the schedule's own time."""

    def __init__(self, start_s: float) -> None:
        self.time_s = start_s

    def begin(self, enter_s: float, ready_s: float) -> float:
        """The start of the slot of an action reached at `enter_s` whose input was there at `ready_s`."""
        waited = ready_s - enter_s > INPUT_WAS_THERE_S
        self.time_s = max(self.time_s, ready_s) if waited else self.time_s
        return self.time_s

    def finish(self, duration_s: float, done_s: float) -> float:
        """Wait out the slot; returns by how much the real computation overran it (0 when it fitted).

        The clock stays logical after an overrun: a following action that needs no data makes good for it.
        """
        self.time_s += duration_s
        sleep_until(self.time_s)
        return max(0.0, done_s - self.time_s)

    def follow(self, done_s: float) -> None:
        """Without pacing: the slot is as long as the computation took."""
        self.time_s = done_s
