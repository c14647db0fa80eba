"""The logical clock that paces real computation into the slots of a schedule.

An action that did not have to wait for data starts at the logical end of the action before it, not at "now": the
overshoot of sleeps and the engine's own overhead do not add up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from testbed.trace.tables import UNNOTICED_WAIT_S

LONGEST_SPIN_S = 100e-6
"""The end of a sleep is spun, since a sleeping process wakes late: on an ordinary machine by about this much."""

_PROBES, _PROBE_S, _SPIN_FACTOR = 5, 1e-3, 2.0


def now_s() -> float:
    """The one clock of all containers of a machine, in seconds."""
    return time.monotonic_ns() * 1e-9


def needed_spin_s(of: Callable[[Sequence[float]], float] = statistics.median) -> float:
    """How much of the end of a sleep to spin here: twice the typical lateness of a few sleeps, LONGEST_SPIN_S at most.

    Where timers are exact, spinning is only harm: each look at the clock can be dearer than the lateness, and on a
    machine with one processor a rank that spins keeps the others from theirs. The typical lateness, not the worst:
    another process that starts meanwhile must not decide. Where many start, that is not enough: no rank spins longer
    than what was measured before any of them was there, from the least lateness (`of`).
    """
    late = []
    for _ in range(_PROBES):
        begin = now_s()
        time.sleep(_PROBE_S)
        late.append(now_s() - begin - _PROBE_S)
    return min(LONGEST_SPIN_S, _SPIN_FACTOR * of(late))


def sleep_until(when_s: float, spin_s: float = LONGEST_SPIN_S) -> float:
    """Return at `when_s` on the monotonic clock, at once if it is past; the last `spin_s` are spun.

    Returns by how much it woke up too late; 0 where there was nothing to wait for.
    """
    slept = False
    while (left := when_s - now_s()) > 0:
        slept = True
        if left > spin_s:
            time.sleep(left - spin_s)
    return -left if slept else 0.0


class LogicalClock:
    """Where one rank is in the schedule's own time."""

    def __init__(self, start_s: float, spin_s: float = LONGEST_SPIN_S) -> None:
        self.time_s = start_s
        self.wake_late_s = 0.0
        """By how much the worst wake-up at the end of a slot was late."""
        self._spin_s = spin_s
        self._waits_s = 0.0
        """So much of what this rank is behind comes of waits that went unnoticed."""

    def begin(self, reached_s: float, ready_s: float) -> float:
        """The start of the slot of an action reached at `reached_s` whose input was there at `ready_s`."""
        if ready_s - reached_s > UNNOTICED_WAIT_S:
            self.time_s, self._waits_s = max(self.time_s, ready_s), 0.0
        return self.time_s

    def finish(self, duration_s: float, reached_s: float, ready_s: float, computed_s: float) -> float:
        """Wait out the slot; returns by how much the real computation overran it (0 when it fitted).

        What lies behind a slot because of waits that go unnoticed is no computation: the model has them too. The clock
        stays logical after an overrun: a following action that needs no data makes good for it.
        """
        self.time_s += duration_s
        self.wake_late_s = max(self.wake_late_s, sleep_until(self.time_s, self._spin_s))
        self._waits_s = max(0.0, min(ready_s - self.time_s, self._waits_s + ready_s - reached_s))
        return max(0.0, computed_s - self._waits_s - self.time_s)

    def follow(self, computed_s: float) -> None:
        """Without pacing: the slot is as long as the computation took."""
        self.time_s = computed_s
