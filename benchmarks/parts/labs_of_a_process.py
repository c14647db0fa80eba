"""What labs leave behind, in the process that had them and on the machine: counted after each of many in a row."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from testbed.lab.sandbox import run_with_own_files
from testbed.plan.plan import Plan


class Standing(NamedTuple):
    """Of one process at one moment."""

    processes: int
    """Below it."""
    namespaces: int
    """In use on the machine by it and what is below it."""
    mounts: int
    """That it sees."""
    interfaces: int
    """That it sees."""
    descriptors: int
    """That it has open."""
    files: int
    """Its temporary ones."""
    memory_kib: int
    """Of its own, in memory."""


def standing(temporary: Path) -> Standing:
    """Of this process."""
    gc.collect()
    family = [os.getpid(), *_below(os.getpid())]
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Standing(
        processes=len(family) - 1,
        namespaces=len(set(_namespaces(family))),
        mounts=len(Path("/proc/self/mounts").read_text().splitlines()),
        interfaces=len(Path("/proc/self/net/dev").read_text().splitlines()),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        files=sum(1 for _ in temporary.rglob("*")),
        memory_kib=int(status["RssAnon"].split()[0]),
    )


def _below(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it ended while we looked
            found += map(int, task.read_text().split())
    return [each for child in found for each in (child, *_below(child))]


def _namespaces(pids: list[int]) -> Iterator[str]:
    for pid in pids:
        for entry in Path(f"/proc/{pid}/ns").glob("*"):
            with suppress(OSError):
                yield str(entry.readlink())


def labs_in_a_row(plan: Plan, labs: int, temporary: Path) -> Iterator[Standing]:
    """Build labs of a plan, each in a sandbox of its own, with all links measured by a ping; what stands after each.

    `temporary` is where temporary files are made. Raises RunFailed when one cannot be built.
    """

    def build() -> int:
        from testbed.lab.lab import Lab

        with Lab(plan, shaper="relay") as lab:
            for number in range(len(lab.directions)):
                router, _, _, there = lab.link_ends(number)
                router.run(["ping", "-q", "-c", "1", there])
        return 0

    for _ in range(labs):
        if code := run_with_own_files(build):
            raise RuntimeError(f"a lab ended with exit code {code}")
        yield standing(temporary)


def labs_in_one_sandbox(plan: Plan, labs: int, temporary: Path, answer: int) -> None:
    """The same in one sandbox, so that it is the process which builds them that is looked at.

    Writes a line of numbers per lab to the descriptor `answer`.
    """

    def build() -> int:
        from testbed.lab.lab import Lab

        for _ in range(labs):
            with Lab(plan, shaper="relay") as lab:
                lab.describe()
            os.write(answer, (" ".join(map(str, standing(temporary))) + "\n").encode())
        return 0

    if code := run_with_own_files(build):
        raise RuntimeError(f"labs in one sandbox ended with exit code {code}")
