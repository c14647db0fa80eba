"""Plays changes of live links when their time has come, from a thread of its own: for shapers in the kernel."""

from __future__ import annotations

import ctypes
import heapq
import threading
import time
from collections.abc import Callable, Sequence

from testbed.errors import RunFailed, TestbedError
from testbed.lab.shaping import TimedChange

_PR_SET_TIMERSLACK = 29
_NEAR_S = 1e-3
"""From then on it only sleeps, to the nanosecond, where a wait with a lock is to the microsecond."""

_DONE_S = 10.0
"""For a change whose time has come to be made, or refused."""


class ChangeClock:
    """What is scheduled is played at its instant of the monotonic clock, in order of time."""

    def __init__(self, play: Callable[[TimedChange], None]) -> None:
        self._play, self._waiting = play, list[tuple[float, int, TimedChange]]()
        self._happened: dict[int, float] = {}
        """By number, when those were made that nobody has asked for."""
        self._count = 0
        self._failed: TestbedError | OSError | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, changes: Sequence[TimedChange]) -> None:
        """Have these happen, beside those that are still to come."""
        with self._changed:
            for one in changes:
                heapq.heappush(self._waiting, (one.at_s, self._count, one))
                self._count += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="changes of links", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def happened(self) -> list[float]:
        """When those were made whose time has come, in the order in which they were scheduled; forgotten then.

        Raises RunFailed where one was refused, or was not made in time.
        """
        with self._changed:
            made = self._changed.wait_for(self._none_is_due, _DONE_S)
            if self._failed is not None:
                raise RunFailed(f"a link could not be changed: {self._failed}") from self._failed
            if not made:
                raise RunFailed(f"a change of a link was not made within {_DONE_S:g} s")
            found = [self._happened[number] for number in sorted(self._happened)]
            self._happened.clear()
            return found

    def _none_is_due(self) -> bool:
        return self._failed is not None or not self._waiting or self._waiting[0][0] > time.monotonic()

    def close(self) -> None:
        """Play no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # of this thread
        with self._changed:
            while not self._closed and self._failed is None:
                if not self._waiting:
                    self._changed.wait()
                    continue
                at_s, number, one = self._waiting[0]
                left_s = at_s - time.monotonic()
                if left_s > _NEAR_S:
                    self._changed.wait(left_s - _NEAR_S)
                    continue
                try:
                    time.sleep(max(0.0, left_s))
                    self._play(one)
                except (TestbedError, OSError) as error:
                    self._failed = error
                heapq.heappop(self._waiting)
                self._happened[number] = time.monotonic()
                self._changed.notify_all()
