"""What the workers in a guest are doing, for its reports: seen in /proc with few system calls."""

from __future__ import annotations

import os
import re
from pathlib import Path

_RANK = re.compile(r"rank (\d+)")
_KTHREADD = "2"
_STATES = {"R": "running", "S": "waiting", "D": "waiting", "T": "stopped", "Z": "ended"}
_MOST_BYTES = 4096


class RankStates:
    """What every worker of a task is doing. The files that tell are kept open: a look is one system call for each."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        """By process, its stat in /proc; -1 of the kernel's own, which has more of them than we have."""

    def say(self) -> list[str]:
        """E.g. "rank 2 it 5: waiting": its name and its state."""
        found, there = [], [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        for pid in self._files.keys() - there:  # or workers who are replaced again and again use up what may be open
            self._forget(pid)
        for pid in there:
            try:
                stat = self._stat(pid)
            except OSError:  # it ended while we looked, or another one has its number now
                self._forget(pid)
                continue
            if not stat:
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            if _KTHREADD in (pid, parent):
                self._forget(pid)
                self._files[pid] = -1
            elif _RANK.match(name):
                found.append(f"{name}: {_STATES.get(state, state)}")
        return sorted(found)

    def close(self) -> None:
        """Before another task begins, whose processes are no business of these files."""
        for pid in tuple(self._files):
            self._forget(pid)

    def _stat(self, pid: str) -> str:
        if pid not in self._files:
            self._files[pid] = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        file = self._files[pid]
        return "" if file < 0 else os.pread(file, _MOST_BYTES, 0).decode("ascii", errors="replace")

    def _forget(self, pid: str) -> None:
        if (file := self._files.pop(pid, -1)) >= 0:
            os.close(file)
