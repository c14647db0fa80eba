"""The workers of a job as whoever leads them sees them: their connections, and which of them died first. No torch."""

from __future__ import annotations

import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pickle import UnpicklingError
from typing import Any, NoReturn

from testbed.errors import RunFailed
from testbed.grouping import grouped
from testbed.train import protocol
from testbed.train.received import receive

_CULPRIT_GRACE_S = 1.0
"""So much later than a peer's complaint, a worker's death may become known."""
_EXIT_DEADLINE_S = 10.0
"""The same where a connection shows that a worker has ended: on a busy machine who tells of it has to get its turn."""
_LOOK_S = 0.1


class ConnectedWorkers(ABC):
    """The workers of a job, by rank, and the connections over which it is told how they end.

    Who waits for workers is session/loop.py. Every RunFailed holds the tail of the log of the rank that failed first.
    """

    def __init__(self, workers: Sequence[Connection], tellers: Sequence[Connection]) -> None:
        self.workers, self.tellers = list(workers), list(tellers)
        self._ended: dict[int, int] = {}
        """By rank, how one ended: its exit status; negative: a signal, or that nothing is known of it any more."""
        self._halted: dict[int, int] = {}
        """By rank, the signal that stopped one; it would go on."""

    def _begin(self, workers: Sequence[Connection]) -> None:
        """Have these workers in the place of those before, who have ended."""
        self.workers = list(workers)
        self._ended.clear()
        self._halted.clear()

    @property
    def reach_s(self) -> float:
        """How long a word takes to the farthest of them and back."""
        return 0.0

    @abstractmethod
    def fork_workers(self, world: protocol.WorldSpec) -> None:
        """Have the workers forked; each says Ready when its connections are up and warm. Raises RunFailed."""

    def join(self, world: protocol.WorldSpec) -> protocol.Join:
        """What they, who have left their process group, are to be told to join another one."""
        return protocol.Join(world)

    @abstractmethod
    def called(self, *ranks: int) -> str:
        """What errors call these ranks of the process group."""

    def halted(self) -> str:
        """Which of them were stopped and do not go on, to be put behind an error; "" where none was."""
        by_signal = grouped((number, rank) for rank, number in sorted(self._halted.items()) if number)
        said = [f"{self.called(*ranks)} was stopped by {signal.Signals(by).name}" for by, ranks in by_signal.items()]
        return f"; {', '.join(said)}" if said else ""

    @abstractmethod
    def log(self, rank: int) -> str:
        """The last lines that a rank wrote, to be put behind an error."""

    @abstractmethod
    def _gone(self, teller: Connection) -> None:
        """Who told of ends has ended itself. Raises RunFailed where that says all."""

    def _how(self, status: int) -> str:
        """What became of a worker with a negative status, in words."""
        return f"was killed by signal {-status}"

    def send(self, message: object) -> int | None:
        """Tell every worker; returns the rank of one that has ended and cannot be told."""
        for rank in range(len(self.workers)):
            try:
                self._tell(rank, message)
            except (BrokenPipeError, ConnectionResetError):
                return rank
        return None

    def _tell(self, rank: int, message: object) -> None:
        if isinstance(message, protocol.Prepare):
            message = replace(message, task=message.task.of(rank))
        self.workers[rank].send(message)

    def reply(self, rank: int) -> Any:
        """What a worker that has something to say says, or that it is no message; None when it has ended."""
        try:
            return receive(self.workers[rank])
        except UnpicklingError as error:
            return protocol.Failed(rank, f"it said what no worker says: {error}")
        except (EOFError, OSError):
            return None

    def note_exit(self, teller: Connection) -> None:
        """Hear of a worker's end. Raises RunFailed when it was killed, or who tells of it is gone."""
        self._hear(teller)
        for rank, status in self._ended.items():
            if status < 0:
                self.fail(rank, None, "stay alive")

    def _hear(self, teller: Connection) -> None:
        try:
            message = receive(teller)
        except (UnpicklingError, EOFError, OSError):
            self._gone(teller)
            return
        if isinstance(message, protocol.Exited):
            self._note(message)
        elif isinstance(message, protocol.Halted):
            self._halted[message.rank] = message.by

    def _note(self, ended: protocol.Exited) -> None:
        self._ended[ended.rank] = ended.status

    def fail(self, rank: int, reply: object, what: str) -> NoReturn:
        """A worker said Failed, or nothing more. Raises RunFailed; it blames the one that died: peers only complain."""
        began = time.monotonic()
        while len(self._ended) < len(self.workers) and not any(status < 0 for status in self._ended.values()):
            limit_s = _EXIT_DEADLINE_S if self._unexplained() else _CULPRIT_GRACE_S + self.reach_s
            if (left := began + limit_s - time.monotonic()) <= 0:
                break
            try:
                for teller in wait(self.tellers, min(left, _LOOK_S)):
                    assert isinstance(teller, Connection)
                    self._hear(teller)
            except RunFailed:  # there is nobody left to tell of: all workers have ended by themselves
                break
        for culprit, status in self._ended.items():
            if status < 0:
                died = f"{self.called(culprit)} {self._how(status)}"
                raise RunFailed(f"{died}; it did not {what}{self.log(culprit)}")
        reason = reply.reason if isinstance(reply, protocol.Failed) else "the worker ended without a word"
        raise RunFailed(f"{self.called(rank)} did not {what}: {reason}{self.log(rank)}")

    def _unexplained(self) -> bool:
        """Whether a worker has closed its connection of whose end nobody has told yet: it will be."""
        looks = select.poll()
        for rank, worker in enumerate(self.workers):
            if rank not in self._ended:
                looks.register(worker.fileno(), 0)  # a hang-up is reported whatever is asked for
        return bool(looks.poll(0))
