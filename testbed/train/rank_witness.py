"""What the machine did to one rank during an iteration, read before and after it, never meanwhile."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

from testbed.lab.machine_witness import QueueFiles, threads_of


class RankWitness(NamedTuple):
    """Of one rank in one iteration."""

    rank_queued_s: float
    """How long the thread that computes was runnable, but not running."""
    threads_queued_s: float
    """How long gloo's threads were, together."""
    involuntary_switches: int
    """How often somebody else took the processor."""
    wake_late_s: float
    """By how much the worst of its sleeps ended late."""


class Accounts:
    """The kernel's accounts of the calling process, whose threads are all there by now; none if not `active`."""

    def __init__(self, *, active: bool) -> None:
        mine = Path("/proc/thread-self").resolve() / "schedstat"
        others = [path for path in threads_of() if path.parent.name != mine.parent.name]
        self._rank = QueueFiles([mine] if active else [])
        self._threads = QueueFiles(others if active else [])
        self._before = (0.0, 0.0, 0)

    def begin(self) -> None:
        """Note where they stand before an iteration."""
        self._before = self._read()

    def end(self, wake_late_s: float) -> RankWitness:
        """What was added since."""
        rank, threads, switches = (now - then for now, then in zip(self._read(), self._before, strict=True))
        return RankWitness(rank, threads, int(switches), wake_late_s)

    def _read(self) -> tuple[float, float, int]:
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return self._rank.waited_s(), self._threads.waited_s(), switches
