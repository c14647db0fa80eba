"""Starts the workers of a job and ends them; knows which of them died first. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from testbed.errors import RunFailed
from testbed.train.job import Reference
from testbed.train.protocol import (
    Exited,
    Failed,
    Imported,
    StartWorkers,
    Stop,
    Trained,
    TrainReference,
    WorldSpec,
)

IMPORT_DEADLINE_S = 300.0
_ANSWER_MARGIN_S = 10.0
_LOG_LINES = 20
_CULPRIT_GRACE_S = 1.0
_POLL_S = 5e-3

WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # page faults are dear in User-Mode Linux: keep freed memory (malloc_trim costs a system call per page there)
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(2**26),
    "PYTHONHASHSEED": "0",
}
"""What the process that imports torch must find in its environment."""


class _Forked:
    """A forked process with the two methods of Popen that the launcher needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False

    def wait(self, timeout: float | None = None) -> None:
        """Return when it has ended. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ended:
            pid, _ = os.waitpid(self.pid, 0 if until is None else os.WNOHANG)
            self._ended = pid == self.pid
            if not self._ended and until is not None:
                if time.monotonic() > until:
                    raise subprocess.TimeoutExpired("zygote", timeout or 0.0)
                time.sleep(_POLL_S)

    def kill(self) -> None:
        """End it."""
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)


def _start_zygote(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "testbed.train.zygote", *map(str, fds)],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **WORKER_ENVIRONMENT},
        process_group=0,  # Ctrl-C is for whoever leaves the Launcher, which ends it
    )


def _fork_zygote(not_its: Sequence[Connection], fds: Sequence[int]) -> _Forked:
    """Where torch is imported already (a guest that runs many commands) a fork saves the import."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return _Forked(pid)
    status = 1
    try:
        from testbed.train.zygote import main

        for connection in not_its:
            connection.close()
        status = main(list(map(str, fds)))
    except BaseException:  # noqa: BLE001 - nothing may escape a fork
        traceback.print_exc()
    finally:
        os._exit(status)


class Launcher:
    """A zygote and its workers, one per rank. A context manager: leaving it ends every process.

    Who waits for workers is session/loop.py. Every RunFailed holds the tail of the log of the rank that failed first.
    """

    def __init__(self, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self.world: WorldSpec | None = None
        self._ended: dict[int, int] = {}
        self._imported_s: float | None = None
        self._asked: TrainReference | None = None
        pairs = [socket.socketpair() for _ in range(n_ranks + 1)]
        ours = [Connection(pair[0].detach()) for pair in pairs]
        theirs = [pair[1].detach() for pair in pairs]
        self.zygote, self.workers = ours[0], ours[1:]
        self.process = _fork_zygote(ours, theirs) if "torch" in sys.modules else _start_zygote(theirs)
        for fd in theirs:
            os.close(fd)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for worker in self.workers:
                with contextlib.suppress(BrokenPipeError):  # its container has ended already, and it with it
                    worker.send(Stop())
        for connection in (self.zygote, *self.workers):
            connection.close()
        try:
            self.process.wait(timeout=5 if kind is None else 0.2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def send(self, message: object) -> None:
        """Tell every worker."""
        for worker in self.workers:
            worker.send(message)

    def imported(self) -> float:
        """Wait until torch is imported; returns how long that took, in s."""
        if self._imported_s is None:
            imported = self._receive(self.zygote, IMPORT_DEADLINE_S, "import torch")
            if not isinstance(imported, Imported):
                raise RunFailed(f"the zygote said {imported!r} instead of Imported")
            self._imported_s = imported.seconds
        return self._imported_s

    def ask_for_reference(self, request: TrainReference) -> None:
        """Have one process train the same, as soon as torch is imported; `reference` waits for it."""
        self._asked = request
        self.zygote.send(request)

    def reference(self) -> Reference:
        """What was asked for: its losses, or why there are none. Raises RunFailed when the zygote is gone."""
        assert self._asked is not None
        self.imported()
        answer = self._receive(self.zygote, self._asked.deadline_s + _ANSWER_MARGIN_S, "train the reference")
        if not isinstance(answer, Trained):
            raise RunFailed(f"the zygote said {answer!r} instead of Trained")
        return answer.reference

    def fork_workers(self, world: WorldSpec) -> None:
        """Have the workers forked; each says Ready when its connections are up and warm."""
        self.world = world
        self.zygote.send(StartWorkers(world))

    def reply(self, rank: int) -> Any:
        """What a worker that has something to say says; None when it has ended."""
        try:
            return self.workers[rank].recv()
        except (EOFError, ConnectionResetError):
            return None

    def note_exit(self) -> None:
        """Hear of a worker's end from the zygote. Raises RunFailed when it was killed, or the zygote is gone."""
        try:
            message = self.zygote.recv()
        except (EOFError, ConnectionResetError):
            raise RunFailed("the process that holds the workers died") from None
        if isinstance(message, Exited):
            self._ended[message.rank] = message.status
            if message.status < 0:
                self.fail(message.rank, None, "stay alive")

    def fail(self, rank: int, reply: object, what: str) -> NoReturn:
        """A worker said Failed, or nothing more. Raises RunFailed; it blames the one that died: peers only complain."""
        until = time.monotonic() + _CULPRIT_GRACE_S
        while not any(status < 0 for status in self._ended.values()) and (left := until - time.monotonic()) > 0:
            if self.zygote.poll(left):
                try:
                    message = self.zygote.recv()
                except (EOFError, ConnectionResetError):
                    break
                if isinstance(message, Exited):
                    self._ended[message.rank] = message.status
        for culprit, status in self._ended.items():
            if status < 0:
                raise RunFailed(f"rank {culprit} was killed by signal {-status}; it did not {what}{self.log(culprit)}")
        reason = reply.reason if isinstance(reply, Failed) else "the worker ended without a word"
        raise RunFailed(f"rank {rank} did not {what}: {reason}{self.log(rank)}")

    def log(self, rank: int) -> str:
        """The last lines that a rank wrote, to be put behind an error."""
        if self.world is None:
            return ""
        path = Path(self.world.logs) / f"rank{rank}.log"
        lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
        return "".join(f"\n  rank {rank} | {line}" for line in lines)

    def _receive(self, connection: Connection, deadline_s: float, what: str) -> object:
        try:
            if not connection.poll(deadline_s):
                raise RunFailed(f"the zygote did not {what} within {deadline_s:.0f} s")
            return connection.recv()
        except (EOFError, ConnectionResetError):
            raise RunFailed(f"the zygote ended before it could {what}") from None
