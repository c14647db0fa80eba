"""Starts the workers of a job and ends them; knows which of them died first. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import select
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
from testbed.train import protocol
from testbed.train.assignment import ReferenceOutcome

IMPORT_DEADLINE_S = 300.0
_ANSWER_MARGIN_S = 10.0
_LOG_LINES = 20
_CULPRIT_GRACE_S = 1.0
"""So much later than a peer's complaint, a worker's death may become known."""
_EXIT_DEADLINE_S = 10.0
"""The same where a connection shows that a worker has ended: on a busy machine the fork server has to get its turn."""
_LOOK_S = 0.1
_POLL_S = 5e-3
_FORK_SERVER_DIED = "the process that holds the workers died"

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
                    raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
                time.sleep(_POLL_S)

    def kill(self) -> None:
        """End it."""
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)


def _started_server(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "testbed.train.fork_server", *map(str, fds)],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **WORKER_ENVIRONMENT},
        process_group=0,  # Ctrl-C is for whoever leaves the Launcher, which ends it
    )


def _forked_server(not_its: Sequence[Connection], fds: Sequence[int]) -> _Forked:
    """Where torch is imported already (a guest that runs many commands) a fork saves the import."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return _Forked(pid)
    status = 1
    try:
        from testbed.train.fork_server import main

        for connection in not_its:
            connection.close()
        status = main(list(map(str, fds)))
    except BaseException:  # noqa: BLE001 - nothing may escape a fork
        traceback.print_exc()
    finally:
        os._exit(status)


class Launcher:
    """A fork server and its workers, one per rank. A context manager: leaving it ends every process.

    Who waits for workers is session/loop.py. Every RunFailed holds the tail of the log of the rank that failed first.
    """

    def __init__(self, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self.world: protocol.WorldSpec | None = None
        self._ended: dict[int, int] = {}
        self._imported_s: float | None = None
        self._asked: protocol.TrainReference | None = None
        pairs = [socket.socketpair() for _ in range(n_ranks + 1)]
        ours = [Connection(pair[0].detach()) for pair in pairs]
        theirs = [pair[1].detach() for pair in pairs]
        self.fork_server, self.workers = ours[0], ours[1:]
        self.process = _forked_server(ours, theirs) if "torch" in sys.modules else _started_server(theirs)
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
                    worker.send(protocol.Stop())
        for connection in (self.fork_server, *self.workers):
            connection.close()
        try:
            self.process.wait(timeout=5 if kind is None else 0.2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def send(self, message: object) -> int | None:
        """Tell every worker; returns the rank of one that has ended and cannot be told."""
        for rank, worker in enumerate(self.workers):
            try:
                worker.send(message)
            except (BrokenPipeError, ConnectionResetError):
                return rank
        return None

    def imported(self) -> float:
        """Wait until torch is imported; returns how long that took, in s."""
        if self._imported_s is None:
            imported = self._receive(self.fork_server, IMPORT_DEADLINE_S, "import torch")
            if not isinstance(imported, protocol.Imported):
                raise RunFailed(f"the fork server said {imported!r} instead of Imported")
            self._imported_s = imported.seconds
        return self._imported_s

    def ask_for_reference(self, request: protocol.TrainReference) -> None:
        """Have one process train the same, as soon as torch is imported; `reference` waits for it. Raises RunFailed."""
        self._asked = request
        self._tell_fork_server(request)

    @property
    def asked_for_reference(self) -> bool:
        """Whether its fork server trains one."""
        return self._asked is not None

    def reference(self) -> ReferenceOutcome:
        """What was asked for: its losses, or why there are none. Raises RunFailed when the fork server is gone."""
        assert self._asked is not None
        self.imported()
        answer = self._receive(self.fork_server, self._asked.deadline_s + _ANSWER_MARGIN_S, "train the reference")
        if not isinstance(answer, protocol.ReferenceTrained):
            raise RunFailed(f"the fork server said {answer!r} instead of Trained")
        return answer.reference

    def fork_workers(self, world: protocol.WorldSpec) -> None:
        """Have the workers forked; each says Ready when its connections are up and warm. Raises RunFailed."""
        self.world = world
        self._tell_fork_server(protocol.StartWorkers(world))

    def join(self, world: protocol.WorldSpec) -> protocol.Join:
        """What its workers, which have left their process group, are to be told to join another one."""
        self.world = world
        return protocol.Join(world)

    def reply(self, rank: int) -> Any:
        """What a worker that has something to say says; None when it has ended."""
        try:
            return self.workers[rank].recv()
        except (EOFError, ConnectionResetError):
            return None

    def note_exit(self) -> None:
        """Hear of a worker's end from the fork server. Raises RunFailed when it was killed, or that is gone."""
        try:
            message = self.fork_server.recv()
        except (EOFError, ConnectionResetError):
            raise RunFailed(_FORK_SERVER_DIED) from None
        if isinstance(message, protocol.Exited):
            self._ended[message.rank] = message.status
            if message.status < 0:
                self.fail(message.rank, None, "stay alive")

    def fail(self, rank: int, reply: object, what: str) -> NoReturn:
        """A worker said Failed, or nothing more. Raises RunFailed; it blames the one that died: peers only complain."""
        began = time.monotonic()
        while not any(status < 0 for status in self._ended.values()):
            limit_s = _EXIT_DEADLINE_S if self._unexplained() else _CULPRIT_GRACE_S
            if (left := began + limit_s - time.monotonic()) <= 0:
                break
            if self.fork_server.poll(min(left, _LOOK_S)):
                try:
                    message = self.fork_server.recv()
                except (EOFError, ConnectionResetError):
                    break
                if isinstance(message, protocol.Exited):
                    self._ended[message.rank] = message.status
        for culprit, status in self._ended.items():
            if status < 0:
                died = f"{self.called(culprit)} was killed by signal {-status}"
                raise RunFailed(f"{died}; it did not {what}{self.log(culprit)}")
        reason = reply.reason if isinstance(reply, protocol.Failed) else "the worker ended without a word"
        raise RunFailed(f"{self.called(rank)} did not {what}: {reason}{self.log(rank)}")

    def _unexplained(self) -> bool:
        """Whether a worker has closed its connection whose end the fork server has not told of yet: it will."""
        looks = select.poll()
        for rank, worker in enumerate(self.workers):
            if rank not in self._ended:
                looks.register(worker.fileno(), 0)  # a hang-up is reported whatever is asked for
        return bool(looks.poll(0))

    def called(self, *ranks: int) -> str:
        """What errors call these ranks of the process group."""
        assert self.world is not None  # workers are forked for one
        names = ", ".join(str(self.world.first_rank + rank) for rank in ranks)
        return f"rank {names} of {self.world.job}" if self.world.job else f"rank {names}"

    def log(self, rank: int) -> str:
        """The last lines that a rank wrote, to be put behind an error."""
        assert self.world is not None
        name = self.world.first_rank + rank
        path = Path(self.world.logs) / f"rank{name}.log"
        lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
        return "".join(f"\n  rank {name} | {line}" for line in lines)

    def _tell_fork_server(self, message: object) -> None:
        try:
            self.fork_server.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise RunFailed(_FORK_SERVER_DIED) from None

    def _receive(self, connection: Connection, deadline_s: float, what: str) -> object:
        try:
            if not connection.poll(deadline_s):
                raise RunFailed(f"the fork server did not {what} within {deadline_s:.0f} s")
            return connection.recv()
        except (EOFError, ConnectionResetError):
            raise RunFailed(f"the fork server ended before it could {what}") from None
