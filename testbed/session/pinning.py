"""Which processor core each rank of an unpaced run has for itself: a rank that shares one has no time of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from testbed.plan.plan import Plan

_SYSFS = Path("/sys/devices/system/cpu")


class Pinning(NamedTuple):
    """Where the ranks compute."""

    cores: tuple[int, ...] = ()
    """Per rank; empty where they are left to the kernel."""
    relay_core: int | None = None
    """Of what carries the links in user space: a spare core, else the last rank's. Left to the kernel it would take its
    time now from one rank, now from another."""
    reasons: tuple[str, ...] = ()
    """Why what they take cannot be trusted."""


def pinning(plan: Plan, allowed: Iterable[int] | None = None) -> Pinning:
    """A core for every rank of an unpaced plan, of those `allowed` (default: to this process). None when paced."""
    if all(job.workload.pacing for job in plan.jobs):
        return Pinning()
    cores = by_processor(os.sched_getaffinity(0) if allowed is None else allowed)
    ranks = sum(job.mesh.size for job in plan.jobs)
    if ranks <= len(cores):
        return Pinning(tuple(cores[:ranks]), cores[min(ranks, len(cores) - 1)])
    many = f"{len(cores)} core" if len(cores) == 1 else f"{len(cores)} cores"
    return Pinning(reasons=(f"{ranks} unpaced ranks share {many}: what a rank takes depends on what the others do",))


def keep_on(pid: int, core: int) -> None:
    """Keep a process, with all its threads, on one core. Raises OSError."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def by_processor(cores: Iterable[int], sysfs: Path = _SYSFS) -> list[int]:
    """The cores in order, one of every physical processor first: two threads of one slow each other down."""
    number: dict[str, int] = {}
    turn: dict[int, int] = {}
    for core in sorted(cores):
        try:
            siblings = (sysfs / f"cpu{core}/topology/thread_siblings_list").read_text().strip()
        except OSError:  # a kernel that does not say takes every core for a processor
            siblings = str(core)
        turn[core] = number[siblings] = number.get(siblings, -1) + 1
    return sorted(turn, key=lambda core: (turn[core], core))
