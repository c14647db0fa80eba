"""What the machine did for a while to those who measure: CPU time stolen, waits in run queues, sleeps that end late."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from testbed.lab.machine_witness import QueueFiles, stolen_s
from testbed.lab.probes import Spread, spread
from testbed.thresholds import QUIET_LATE_S, QUIET_STOLEN, QUIET_WAITED
from testbed.units import show_time

_SLEEP_S = 1e-3
_SLEEPS = 100
_QUIET_LOOKS = 2
"""One quiet look may be chance."""


class Counted(NamedTuple):
    """Readings at an instant; None where the kernel does not say."""

    at_s: float
    stolen_s: float | None
    """Of all processors together, since the machine began."""
    waited_s: tuple[float, ...]
    """Per watched process, time in run queues so far; nan where the kernel does not say."""


@dataclass(frozen=True)
class Disturbance:
    """What the machine did for `seconds`; None for what was not looked at, or the kernel does not say."""

    seconds: float
    stolen: float | None
    """Share of all processors' time that the owner of a virtual machine took."""
    waited: float | None
    """Share of the time that the watched process which had to wait longest stood in a run queue."""
    late: Spread | None = None
    """How much later than asked sleeps of 1 ms ended."""

    @property
    def quiet(self) -> bool:
        """Whether none of it is enough to spoil a measurement."""
        return (
            (self.stolen or 0.0) <= QUIET_STOLEN
            and (self.waited or 0.0) <= QUIET_WAITED
            and (self.late is None or self.late.median <= QUIET_LATE_S)
        )

    def __str__(self) -> str:
        said = []
        if self.stolen is not None:
            said.append(f"{self.stolen:.1%} of the processors' time was stolen")
        if self.waited is not None:
            said.append(f"those who measure stood in run queues for {self.waited:.1%} of the time")
        if self.late is not None:
            said.append(f"sleeps ended {show_time(self.late.median)} late (99th percentile {show_time(self.late.p99)})")
        return ", ".join(said) or "the kernel does not say"

    def as_json(self) -> dict[str, Any]:
        """JSON-able, times in seconds, shares from 0 to 1."""
        known = {"seconds": self.seconds, "stolen": self.stolen, "waited": self.waited}
        return known | {"late_s": self.late and self.late._asdict(), "quiet": self.quiet}


def count(watched: Sequence[int]) -> Counted:
    """The readings now: of the machine, of the calling thread, and of the processes `watched`."""
    files = [Path("/proc/thread-self/schedstat"), *(Path(f"/proc/{pid}/schedstat") for pid in watched)]
    return Counted(time.monotonic(), stolen_s(Path("/proc/stat").read_bytes()), tuple(map(_waited_s, files)))


def between(before: Counted, after: Counted) -> Disturbance:
    """What happened between two readings with the same watched processes."""
    seconds, stolen = after.at_s - before.at_s, None
    if seconds <= 0:
        return Disturbance(seconds, None, None)
    if before.stolen_s is not None and after.stolen_s is not None:
        stolen = (after.stolen_s - before.stolen_s) / seconds / (os.cpu_count() or 1)
    waits = [(b - a) / seconds for a, b in zip(before.waited_s, after.waited_s, strict=True)]
    return Disturbance(seconds, stolen, max((share for share in waits if not math.isnan(share)), default=None))


def sleep_lateness(*, sleeps: int = _SLEEPS) -> Spread:
    """How much later than asked sleeps of 1 ms of the calling thread end."""
    lateness = []
    for _ in range(sleeps):
        began = time.monotonic()
        time.sleep(_SLEEP_S)
        lateness.append(time.monotonic() - began - _SLEEP_S)
    return spread(lateness)


def look(watched: Sequence[int]) -> Disturbance:
    """What the machine does now, for about as long as a probe of sleeps takes."""
    before = count(watched)
    late = sleep_lateness()
    return replace(between(before, count(watched)), late=late)


def wait_for_quiet(
    limit_s: float,
    look_now: Callable[[], Disturbance],
    tell: Callable[[Disturbance, float], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Disturbance, ...]:
    """Look until the machine is quiet twice in a row, at most about `limit_s`; returns all that was seen.

    `tell` hears what was seen, and how many seconds are left.
    """
    until, seen, quiet = clock() + limit_s, list[Disturbance](), 0
    while quiet < _QUIET_LOOKS and (not seen or clock() < until):
        seen.append(look_now())
        quiet = quiet + 1 if seen[-1].quiet else 0
        tell(seen[-1], max(0.0, until - clock()))
    return tuple(seen)


def _waited_s(file: Path) -> float:
    files = QueueFiles([file])
    try:
        return files.waited_s()
    finally:
        files.close()
