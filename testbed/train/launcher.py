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
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pickle import UnpicklingError
from types import TracebackType
from typing import NoReturn

from testbed.errors import RunFailed
from testbed.lab.confinement import Confinement, plain_environment
from testbed.train import protocol
from testbed.train.assignment import ReferenceOutcome
from testbed.train.connected_workers import ConnectedWorkers
from testbed.train.received import receive

IMPORT_DEADLINE_S = 300.0
_ANSWER_MARGIN_S = 10.0
_FAILURE_DEADLINE_S = 60.0
"""For a worker that is to fail, and for those that are killed because of that."""
_LEAVE_S = 1.0
"""So long those that lose their connections by a failure have to end by themselves."""
_LOG_LINES = 20
_POLL_S = 5e-3
_LOOK_S = 0.2
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


def _started_server(fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "testbed.train.fork_server", str(fd)],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        env={**plain_environment(os.environ), **WORKER_ENVIRONMENT},
        process_group=0,  # Ctrl-C is for whoever leaves the Launcher, which ends it
    )


def _forked_server(not_its: Connection, fd: int) -> _Forked:
    """Where torch is imported already (a guest that runs many commands) a fork saves the import."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return _Forked(pid)
    status = 1
    try:
        from testbed.train.fork_server import main

        not_its.close()
        status = main([str(fd)])
    except BaseException:  # noqa: BLE001 - nothing may escape a fork
        traceback.print_exc()
    finally:
        os._exit(status)


class Launcher(ConnectedWorkers):
    """A fork server and its workers, one per rank. A context manager: leaving it ends every process."""

    def __init__(self, confinement: Confinement | None = None) -> None:
        """`confinement`, of workers that will live in containers, and of whatever else runs the job's code."""
        self._confinement = confinement
        self.world: protocol.WorldSpec | None = None
        self._imported_s: float | None = None
        self._asked: protocol.TrainReference | None = None
        self.memories: Sequence[int] = ()
        """Per rank, the descriptor of its memory for states, which is whoever's who made it."""
        ours, its = socket.socketpair()
        self.fork_server = Connection(ours.detach())
        super().__init__((), [self.fork_server])
        with its:
            forked = "torch" in sys.modules
            self.process = _forked_server(self.fork_server, its.fileno()) if forked else _started_server(its.fileno())

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for worker in (each for each in self.workers if not each.closed):
                with contextlib.suppress(BrokenPipeError):  # its container has ended already, and it with it
                    worker.send(protocol.Stop())
        for connection in (self.fork_server, *self.workers):
            connection.close()
        try:
            self.process.wait(timeout=5 if kind is None else 0.2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def await_failure(self, ranks: Collection[int]) -> None:
        """Return when these workers have failed by timers of their own. Raises RunFailed when they do not, or another
        one was killed."""
        until, named = time.monotonic() + _FAILURE_DEADLINE_S, sorted(ranks)
        while not self._ended.keys() >= set(ranks):
            if not self.fork_server.poll(max(0.0, until - time.monotonic())):
                raise RunFailed(f"{self.called(*named)} did not fail within {_FAILURE_DEADLINE_S:g} s of its time")
            self._hear(self.fork_server)
        # of several at one instant, who comes last may lose its connections before
        killed = {rank: -status for rank, status in self._ended.items() if status < 0}
        if not killed or not killed.keys() <= set(ranks) or set(killed.values()) != {signal.SIGALRM}:
            raise RunFailed(f"{self.called(*named)} was to fail, and not what did: ranks and signals {killed}")

    def end(self) -> None:
        """End all workers, of which one has failed: the others lose their connections. Raises RunFailed.

        Whoever has not ended by that soon is killed: gloo may not notice that a peer is gone. Others can be forked.
        """
        for worker in self.workers:
            worker.close()
        until, killed = time.monotonic() + _LEAVE_S, False
        while len(self._ended) < len(self.workers):
            if self.fork_server.poll(max(0.0, until - time.monotonic())):
                self._hear(self.fork_server)
            elif killed:
                left = [rank for rank in range(len(self.workers)) if rank not in self._ended]
                raise RunFailed(f"{self.called(*left)} did not end within {_FAILURE_DEADLINE_S:g} s of being killed")
            else:
                os.kill(self.process.pid, protocol.END_WORKERS)
                until, killed = time.monotonic() + _FAILURE_DEADLINE_S, True

    def imported(self, look: Callable[[], None] = lambda: None) -> float:
        """Wait until torch is imported; returns how long that took, in s. Meanwhile `look`, which may raise."""
        if self._imported_s is None:
            until = time.monotonic() + IMPORT_DEADLINE_S
            while not self.fork_server.poll(_LOOK_S):
                look()
                if time.monotonic() > until:
                    raise RunFailed(f"the fork server did not import torch within {IMPORT_DEADLINE_S:.0f} s")
            imported = self._receive(self.fork_server, _LOOK_S, "import torch")
            if not isinstance(imported, protocol.Imported):
                raise RunFailed(f"the fork server said {imported!r} instead of Imported")
            self._imported_s = imported.seconds
        return self._imported_s

    def ask_for_reference(self, request: protocol.TrainReference) -> None:
        """Have one process train the same, as soon as torch is imported; `reference` waits for it. Raises RunFailed."""
        self._asked = replace(request, confinement=self._confinement)
        self._tell_fork_server(self._asked)

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
        """See ConnectedWorkers."""
        self.world = replace(world, confinement=self._confinement)
        pairs = [socket.socketpair() for _ in world.places]
        self._begin([Connection(ours.detach()) for ours, _ in pairs])
        self._tell_fork_server(protocol.StartWorkers(self.world))
        for _, theirs in pairs:
            with theirs:
                self._hand_over(theirs.fileno())

    def join(self, world: protocol.WorldSpec) -> protocol.Join:
        """See ConnectedWorkers."""
        self.world = replace(world, confinement=self._confinement)
        return super().join(self.world)

    def _tell(self, rank: int, message: object) -> None:
        super()._tell(rank, message)
        if isinstance(message, protocol.Join) and message.world.confinement is not None:
            with message.world.log_file(rank).open("a") as log:
                reduction.send_handle(self.workers[rank], log.fileno(), 0)
        if isinstance(message, protocol.Remember):
            reduction.send_handle(self.workers[rank], self.memories[rank], 0)

    def _gone(self, teller: Connection) -> NoReturn:
        raise RunFailed(_FORK_SERVER_DIED)

    def called(self, *ranks: int) -> str:
        """See ConnectedWorkers."""
        assert self.world is not None  # workers are forked for one
        names = ", ".join(str(self.world.called(rank)) for rank in ranks)
        return f"rank {names} of {self.world.job}" if self.world.job else f"rank {names}"

    def log(self, rank: int) -> str:
        """See ConnectedWorkers."""
        assert self.world is not None
        name, path = self.world.called(rank), self.world.log_file(rank)
        lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
        return "".join(f"\n  rank {name} | {line}" for line in lines)

    def _tell_fork_server(self, message: object) -> None:
        try:
            self.fork_server.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise RunFailed(_FORK_SERVER_DIED) from None

    def _hand_over(self, fd: int) -> None:
        try:
            reduction.send_handle(self.fork_server, fd, self.process.pid)
        except (BrokenPipeError, ConnectionResetError):
            raise RunFailed(_FORK_SERVER_DIED) from None

    def _receive(self, connection: Connection, deadline_s: float, what: str) -> object:
        try:
            if not connection.poll(deadline_s):
                raise RunFailed(f"the fork server did not {what} within {deadline_s:.0f} s")
            return receive(connection)
        except (UnpicklingError, EOFError, ConnectionResetError):
            raise RunFailed(f"the fork server ended before it could {what}") from None
