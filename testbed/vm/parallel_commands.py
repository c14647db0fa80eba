"""Several of our commands side by side, on either clock; one with a guest has a processor of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from testbed.lab import namespaces as ns

_POLL_S = 0.2
_END_S = 30.0
"""How long a command may take to end when it is asked to."""


@dataclass(frozen=True)
class ParallelCommand:
    """A module of ours to run."""

    name: str
    words: tuple[str, ...]
    """The module, and its arguments."""
    log: Path
    """Gets its standard error."""
    limit_s: float
    """Of wall time."""
    on_one_cpu: bool = True
    """Whether it boots a guest; a command on the real clock has all processors."""
    environment: tuple[tuple[str, str], ...] = ()
    """Beside ours."""


@dataclass(frozen=True)
class CommandEnded:
    """How a command ended."""

    command: ParallelCommand
    code: int | None
    """None where it passed its limit, and was ended."""
    wall_s: float

    def said(self, lines: int = 20) -> str:
        """The last lines of its standard error."""
        return "\n".join(self.command.log.read_text(errors="replace").strip().splitlines()[-lines:])


@dataclass(frozen=True)
class _Running:
    command: ParallelCommand
    process: subprocess.Popen[bytes]
    began: float
    cpu: int


def run_parallel(
    following: Callable[[], ParallelCommand | None], most: int, package: Path
) -> Generator[CommandEnded, None, None]:
    """Run commands, `most` at a time; yields each when it has ended. All that still run are ended with the generator.

    `following` is asked for the next command whenever there is room, also after it had none: until none runs.
    `package` is the copy of our source that they run (source.freeze): the checkout may change meanwhile.
    """
    running: list[_Running] = []
    try:
        while True:
            while len(running) < most and (command := following()) is not None:
                running.append(_started(command, package, [other.cpu for other in running]))
            if not running:
                return
            time.sleep(_POLL_S)
            for one in list(running):
                wall_s = time.monotonic() - one.began
                if one.process.poll() is None and wall_s <= one.command.limit_s:
                    continue
                running.remove(one)
                late = one.process.poll() is None
                _end([one])
                yield CommandEnded(one.command, None if late else one.process.returncode, wall_s)
    finally:
        _end(running)


def _started(command: ParallelCommand, package: Path, taken: Sequence[int]) -> _Running:
    cpu = min(sorted(os.sched_getaffinity(0)), key=taken.count)
    cpus = {cpu} if command.on_one_cpu else os.sched_getaffinity(0)
    with command.log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *command.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **dict(command.environment), "PYTHONPATH": str(package.parent)},
            preexec_fn=lambda: _prepare_child(cpus),
        )
    return _Running(command, process, time.monotonic(), cpu)


def _prepare_child(cpus: Set[int]) -> None:
    """On these processors, gone when we are."""
    os.sched_setaffinity(0, cpus)
    ns.die_with_parent(signal.SIGKILL)


def _end(running: Sequence[_Running]) -> None:
    """Ask those that still run to end, and see that they do."""
    for one in running:
        one.process.terminate()  # nothing where it has ended
    for one in running:
        try:
            one.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
