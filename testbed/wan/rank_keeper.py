"""The keeper of a rank: the process that torchrun has started, which forks the worker and answers for its machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from testbed.errors import RunFailed
from testbed.lab.machine_witness import MachineWitness
from testbed.lab.namespaces import die_with_parent
from testbed.scratch import scratch_directory
from testbed.train.protocol import Exited, StartWorkers, WorldSpec
from testbed.wan.path_probe import measure_path, serve_path
from testbed.wan.wan_messages import (
    MachineTold,
    MeasurePath,
    Release,
    RemoteEnd,
    ServePath,
    TellMachine,
    TellTime,
    TimeTold,
    Trouble,
)

if TYPE_CHECKING:
    from testbed.train.data import Corpus

WHY_ENDED = "another rank of this machine failed, or somebody interrupted it"
"""When torchrun ends all of its processes."""

_MOST_LOG = 1_000_000
"""Characters of a worker's log that rank 0 gets, from its end."""


class EndedByTorchrun(BaseException):
    """torchrun has told this process to end. No Exception: whatever is done when it comes, nothing may take it for a
    failure of that."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"torchrun has ended rank {rank}: {WHY_ENDED}")


@dataclass
class RankKeeper:
    """Of one rank; `keep` returns when rank 0 lets it go."""

    rank: int
    address: str
    """Of this machine, where others measure the path to it."""
    leader: Connection
    worker_line: Connection
    """Rank 0's other connection: the worker's."""
    corpus: Corpus
    longest_spin_s: float
    _worker: int = 0
    """Its process."""
    _pidfd: int = -1
    _logs: list[Path] = field(default_factory=list)

    def keep(self) -> None:
        """Do as rank 0 says. Raises RunFailed: what it says has failed, it is gone, or torchrun ends us."""
        signal.signal(signal.SIGTERM, self._ended_by_torchrun)
        try:
            with scratch_directory("testbed-wan-") as scratch, MachineWitness() as witness:
                self._keep(scratch, witness)
        except EndedByTorchrun as ended:
            raise RunFailed(str(ended)) from None

    def _keep(self, scratch: Path, witness: MachineWitness) -> None:
        try:
            self._serve(scratch, witness)
        except (EOFError, OSError) as error:
            raise RunFailed("rank 0 has gone without a word") from error
        finally:
            self._end_worker()

    def _ended_by_torchrun(self, *_: object) -> NoReturn:
        raise EndedByTorchrun(self.rank)

    def _serve(self, scratch: Path, witness: MachineWitness) -> None:
        while True:
            awaited: list[Connection | int] = [self.leader, *([self._pidfd] if self._worker else [])]
            for ready in wait(awaited):
                if ready is not self.leader:
                    self._tell_end()
                    continue
                message = self.leader.recv()
                asked_s = time.monotonic_ns() * 1e-9
                match message:
                    case TellTime():
                        self.leader.send(TimeTold(asked_s, time.monotonic_ns() * 1e-9))
                    case TellMachine():
                        self.leader.send(MachineTold(witness.read()))
                    case ServePath():
                        self._try(partial(serve_path, self.address, self.leader.send))
                    case MeasurePath(address, port):
                        self._try(partial(measure_path, address, port))
                    case StartWorkers(world):
                        self._fork(replace(world, logs=str(scratch)))
                    case Release(reason):
                        if reason:
                            raise RunFailed(reason)
                        return
                    case other:
                        raise TypeError(f"not a message for a keeper: {other!r}")

    def _try(self, measure: Callable[[], object]) -> None:
        try:
            self.leader.send(measure())
        except (OSError, RunFailed) as error:
            self.leader.send(Trouble(f"{type(error).__name__}: {error}"))

    def _fork(self, world: WorldSpec) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._logs = [Path(world.logs) / f"rank{self.rank}.log"]
        self._worker = os.fork()
        if self._worker == 0:
            self._work(world)
        self._pidfd = os.pidfd_open(self._worker)
        self.worker_line.close()

    def _work(self, world: WorldSpec) -> NoReturn:
        """The worker: never returns."""
        from testbed.train.worker import work

        status = 1
        try:
            die_with_parent(signal.SIGKILL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's to handle
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.leader.close()
            status = work(self.rank - world.first_rank, world, self.worker_line, self.corpus, self.longest_spin_s)
        finally:
            os._exit(status)

    def _tell_end(self) -> None:
        _, waited = os.waitpid(self._worker, 0)
        os.close(self._pidfd)
        self._worker = 0
        log = "".join(path.read_text(errors="replace") for path in self._logs if path.exists())
        ended = Exited(self.rank, os.waitstatus_to_exitcode(waited))
        self.leader.send(RemoteEnd(ended.rank, ended.status, log[-_MOST_LOG:]))

    def _end_worker(self) -> None:
        if self._worker:
            with suppress(ProcessLookupError):
                os.kill(self._worker, signal.SIGKILL)
            os.waitpid(self._worker, 0)
            os.close(self._pidfd)
