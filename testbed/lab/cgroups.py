"""Limits of memory and processors for the ranks of a node, by the machine's control groups (version 1 or 2), or none.

Whoever runs a lab makes a group for each node that has limits below a group of its own, if it may; workers join theirs
before they touch memory, so what is charged is what they add. The kernel ends a process of a group that has no memory
left, and counts that. Groups go with the lab; where its process is killed, with the keeper of its files (scratch.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from testbed.errors import MachineLacks, RunFailed, in_words
from testbed.scratch import remove_at_the_end

_PERIOD_US = 100_000
_GONE_S = 5.0
_POLL_S = 0.01
MEMORY, PROCESSORS = "memory", "cpu"


class NodeLimits(NamedTuple):
    """Of all ranks on one node together; None: none."""

    memory_bytes: float | None
    cpus: float | None

    @property
    def controllers(self) -> tuple[str, ...]:
        """What it takes."""
        wanted = ((MEMORY, self.memory_bytes), (PROCESSORS, self.cpus))
        return tuple(name for name, value in wanted if value is not None)


class Place(NamedTuple):
    """Where groups of a controller can be made."""

    version: int
    directory: Path


def place_of(controller: str, mounts: str, groups: str) -> Place | None:
    """Where this process could make groups of a controller, by what /proc/self/mounts and /proc/self/cgroup say.

    Of version 2 the nearest group above that hands the controller on; None where there is none.
    """
    unified: Path | None = None
    for line in mounts.splitlines():
        _, point, kind, options = line.split()[:4]
        if kind == "cgroup" and controller in options.split(","):
            return Place(1, _below(Path(point), _own(groups, controller)))
        if kind == "cgroup2":
            unified = Path(point)
    if unified is None:
        return None
    own = _below(unified, _own(groups, ""))
    for directory in (own, *own.parents):
        handed_on = directory / "cgroup.subtree_control"
        if handed_on.is_file() and controller in handed_on.read_text(encoding="ascii").split():
            return Place(2, directory)
        if directory == unified:
            break
    return None


def _own(groups: str, controller: str) -> str:
    """The path of this process's group, from the top of its hierarchy."""
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    return "/"


def _below(point: Path, path: str) -> Path:
    """Of a container's own, which are mounted as the top, the path is of outside."""
    directory = point / path.lstrip("/")
    return directory if directory.is_dir() else point


def lacks(controllers: Sequence[str]) -> str | None:
    """Why no groups with these controllers can be made here, by trying; None: they can."""
    for controller in controllers:
        place = _place(controller)
        if place is None:
            return f"no control group here has the {controller} controller"
        probe = place.directory / f"testbed-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"no control group for {controller} can be made in {place.directory}: {in_words(error)}"
    return None


def _place(controller: str) -> Place | None:
    self_ = Path("/proc/self")
    return place_of(
        controller,
        (self_ / "mounts").read_text(encoding="utf-8"),
        (self_ / "cgroup").read_text(encoding="utf-8"),
    )


class NodeGroup:
    """The groups of one node: of version 1 one for each controller, of version 2 one for all."""

    def __init__(self, name: str, limits: NodeLimits, places: Mapping[str, Place]) -> None:
        self.limits = limits
        self._memory: Path | None = None
        self._version = next(iter(places.values())).version
        self.directories: list[Path] = []
        for controller in limits.controllers:
            directory = places[controller].directory / name
            if directory not in self.directories:
                remove_at_the_end(directory)
                directory.mkdir()
                self.directories.append(directory)
            self._limit(controller, directory)

    def _limit(self, controller: str, directory: Path) -> None:
        if controller == MEMORY:
            assert self.limits.memory_bytes is not None
            most = str(int(self.limits.memory_bytes))
            self._memory = directory
            _write(directory / ("memory.max" if self._version == 2 else "memory.limit_in_bytes"), most)
            swap, none = ("memory.swap.max", "0") if self._version == 2 else ("memory.memsw.limit_in_bytes", most)
            if (directory / swap).is_file():
                _write(directory / swap, none)
            return
        assert self.limits.cpus is not None
        quota_us = round(self.limits.cpus * _PERIOD_US)
        if self._version == 2:
            _write(directory / "cpu.max", f"{quota_us} {_PERIOD_US}")
        else:
            _write(directory / "cpu.cfs_period_us", str(_PERIOD_US))
            _write(directory / "cpu.cfs_quota_us", str(quota_us))

    @property
    def joined_by(self) -> tuple[str, ...]:
        """Files that a process writes 0 to in order to belong to it."""
        return tuple(str(directory / "cgroup.procs") for directory in self.directories)

    def killed(self) -> int:
        """How many processes the kernel has ended for want of memory in it."""
        if self._memory is None:
            return 0
        events = self._memory / ("memory.events" if self._version == 2 else "memory.oom_control")
        counts = dict(line.split() for line in events.read_text(encoding="ascii").splitlines())
        return int(counts.get("oom_kill", 0))

    def remove(self) -> None:
        """Once its processes have ended, which takes a moment. Raises RunFailed where one does not."""
        until = time.monotonic() + _GONE_S
        while self.directories:
            try:
                self.directories[-1].rmdir()
                self.directories.pop()
            except FileNotFoundError:
                self.directories.pop()
            except OSError as error:
                if time.monotonic() > until:
                    raise RunFailed(f"{self.directories[-1]} cannot be removed: {in_words(error)}") from error
                time.sleep(_POLL_S)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="ascii")
    except OSError as error:
        raise MachineLacks(f"{file} cannot be set to {text}: {in_words(error)}") from error


class LabGroups:
    """Those of a lab, by node; nodes without limits have none."""

    def __init__(self, groups: Mapping[str, NodeGroup]) -> None:
        self._groups = groups
        self._known = dict.fromkeys(groups, 0)

    def joined_by(self, node: str) -> tuple[str, ...]:
        """Files that the workers of a node write 0 to."""
        return self._groups[node].joined_by if node in self._groups else ()

    def out_of_memory(self) -> str | None:
        """The nodes of which the kernel has ended a process since this was asked last, and their limits; None: none."""
        found = []
        for node, group in self._groups.items():
            before, self._known[node] = self._known[node], group.killed()
            if self._known[node] > before:
                assert group.limits.memory_bytes is not None
                found.append(f"{node} needs more than its {group.limits.memory_bytes / 2**20:g} MiB of memory")
        return ", ".join(found) or None


@contextmanager
def limited(limits: Mapping[str, NodeLimits]) -> Iterator[LabGroups]:
    """Groups for the nodes with limits, as long as the body takes. Raises MachineLacks where there can be none."""
    wanted = tuple(sorted({name for of_node in limits.values() for name in of_node.controllers}))
    if (why := lacks(wanted)) is not None:
        raise MachineLacks(f"the topology has limits for its nodes, and {why}")
    places = {name: place for name in wanted if (place := _place(name)) is not None}
    groups: dict[str, NodeGroup] = {}
    own = f"testbed-{os.getpid()}-{time.monotonic_ns()}"
    try:
        for number, (node, of_node) in enumerate(limits.items()):
            groups[node] = NodeGroup(f"{own}-{number}", of_node, places)
        yield LabGroups(groups)
    finally:
        for group in groups.values():
            group.remove()
