"""What the machine did to a run, read from the kernel's own accounts: who stood in a run queue, what was stolen.

The files are opened once and read again and again: a read costs microseconds; and inside a lab's namespaces the
kernel's threads have no files any more, but files that were opened outside still tell.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_STEAL = 8
"""Place of stolen time in the first line of /proc/stat, the word `cpu` counted."""


class QueueFiles:
    """Open schedstat files of threads: how long they have been runnable, but not running."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._open: list[int] = []
        for path in paths:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a kernel without schedstats, or it ended
                self._open.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def waited_s(self) -> float:
        """Of all of them together, since each of them began; nan where the kernel does not tell.

        One that has ended counts no longer.
        """
        if not self._open:
            return math.nan
        total = 0
        for descriptor in self._open:
            with contextlib.suppress(ProcessLookupError):
                total += int(os.pread(descriptor, 100, 0).split()[1])
        return total * 1e-9

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open = []


def stolen_s(stat: bytes) -> float | None:
    """What the owner of a virtual machine took of all processors together; None where /proc/stat does not tell."""
    line = stat.split(b"\n", 1)[0].split()
    return int(line[_STEAL]) / _CLOCK_TICKS if len(line) > _STEAL else None


def threads_of(pid: int | str = "self") -> list[Path]:
    """The schedstat files of a process' threads."""
    return [task / "schedstat" for task in Path(f"/proc/{pid}/task").iterdir()]


class MachineCounts(NamedTuple):
    """What the machine has counted so far; seconds."""

    kernel_queued_s: float
    """Run-queue wait of the kernel's threads that carry packets on."""
    relay_queued_s: float
    """Of the relay."""
    steal_s: float
    """What the owner of a virtual machine took, per processor."""
    clock_offset_s: float
    """Between the wall clock and the monotonic clock."""

    def since(self, before: MachineCounts) -> MachineCounts:
        """What was counted since `before`."""
        return MachineCounts(*(now - then for now, then in zip(self, before, strict=True)))


class Witness(Protocol):
    """Whoever tells what machines did to a run."""

    def read(self) -> MachineCounts:
        """All accounts, now."""


class MachineWitness:
    """Open before the sandbox is entered. A context manager: leaving it closes the files.

    One that is not `active` opens no accounts and tells nothing, nor do the ranks of its run (what that saves is
    measured by benchmarks/witness_cost.py).
    """

    def __init__(self, *, active: bool = True) -> None:
        self.active = active
        carriers = [task for task in Path("/proc").glob("[0-9]*") if active and _name(task).startswith("ksoftirqd/")]
        self._kernel = QueueFiles(task / "schedstat" for task in carriers)
        self._relay = QueueFiles(())
        self._stat = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._processors = len(os.sched_getaffinity(0))

    def __enter__(self) -> MachineWitness:
        return self

    def __exit__(self, *_: object) -> None:
        self._kernel.close()
        self._relay.close()
        os.close(self._stat)

    def watch(self, pids: Sequence[int]) -> None:
        """The processes that carry the lab's packets."""
        self._relay.close()
        self._relay = QueueFiles(path for pid in pids if self.active for path in threads_of(pid))

    def read(self) -> MachineCounts:
        """All accounts, now."""
        if not self.active:
            return MachineCounts(math.nan, math.nan, math.nan, math.nan)
        steal_s = (stolen_s(os.pread(self._stat, 4096, 0)) or 0.0) / self._processors
        offset_s = (time.time_ns() - time.monotonic_ns()) * 1e-9
        return MachineCounts(self._kernel.waited_s(), self._relay.waited_s(), steal_s, offset_s)


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:  # it has ended
        return ""
