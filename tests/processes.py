"""Other processes, as tests see them: what a command started, and that it is gone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 60


def descendants(pid: int) -> set[int]:
    """All children of a process, theirs, and so on."""
    found: set[int] = set()
    frontier = [pid]
    while frontier:
        for task in Path(f"/proc/{frontier.pop()}/task").glob("*/children"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
                new = set(map(int, task.read_text().split())) - found
                found |= new
                frontier += new
    return found


def command_line(pid: int) -> str:
    """Its words, a blank between them; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until(condition: Callable[[], object], otherwise: str, within_s: float = DEADLINE_S) -> None:
    """Raises AssertionError, saying `otherwise`, when it is not so within a minute, or so many seconds."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, otherwise
        time.sleep(0.05)


def guest_directories() -> set[Path]:
    """Of guests that are plain processes, and of copies: those of other tests, too."""
    return set(Path("/dev/shm").glob("testbed-guest-*"))


def wait_until_removed(directories: set[Path], within_s: float) -> None:
    """Raises AssertionError when one of these is still there then."""
    named = sorted(map(str, directories))
    wait_until(lambda: not any(each.exists() for each in directories), f"one is left of {named}", within_s)


def wait_until_gone(pids: set[int]) -> None:
    """Raises AssertionError when one of them is still there after a minute."""
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"a process is left of {sorted(pids)}")
