"""Workers on machines of their own, as rank 0 leads them, and all that it asks their keepers."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from testbed.errors import RunFailed
from testbed.thresholds import CLOCK_PACE
from testbed.train import protocol
from testbed.train.connected_workers import ConnectedWorkers
from testbed.wan.admission import RankConnections
from testbed.wan.machine_clocks import OURS, ClockExchange, ClockOffset, ClockOffsets, between_the_worst
from testbed.wan.rank_keeper import EndedByTorchrun
from testbed.wan.wan_messages import Release, RemoteEnd, TellTime, TimeTold, Trouble

ANSWER_S = 30.0
"""For a keeper to answer: it does nothing else meanwhile."""

_GONE = -1000
"""In place of the exit status of a rank of which nothing is known any more."""

_TORCHRUN_S = 5.0
"""torchrun ends the processes of a machine one after the other: by then it has told rank 0, after its keeper."""

_LOG_LINES = 20
_RECENT = 8

Told = TypeVar("Told")


class Keepers:
    """The keepers of all ranks, by rank. A context manager: leaving it lets all go, with the reason if there is one."""

    def __init__(self, ranks: Sequence[RankConnections]) -> None:
        self.ranks = ranks
        ours = ranks[0].introduction.clock
        self._offsets = {one.introduction.clock: ClockOffsets() for one in ranks if one.introduction.clock != ours}
        self._asked = {one.introduction.clock: rank for rank, one in reversed(list(enumerate(ranks)))}
        """By clock, the rank that is asked for it."""
        self._asked.pop(ours)
        self._round_trips_s: deque[float] = deque(maxlen=_RECENT)
        self.ended: dict[int, RemoteEnd] = {}

    def __enter__(self) -> Keepers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reason = "" if error is None else str(error) or type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            reason = "rank 0 was interrupted"
        for one in self.ranks:
            with suppress(OSError):  # it is gone already
                one.keeper.send(Release(reason))
            one.keeper.close()
            one.worker.close()

    def called(self, *ranks: int) -> str:
        """What errors call these ranks."""
        return f"rank {', '.join(f'{rank} ({self.ranks[rank].introduction.host})' for rank in ranks)}"

    def ask(self, ranks: Iterable[int], message: object, expected: type[Told]) -> dict[int, Told]:
        """Tell keepers, and wait until all of them have answered. Raises RunFailed naming one that does not."""
        asked = list(ranks)
        for rank in asked:
            self.tell(rank, message)
        return {rank: found for rank, (found, _) in self.answers(asked, expected).items()}

    def tell(self, rank: int, message: object) -> None:
        """Tell one keeper. Raises RunFailed when it is gone."""
        try:
            self.ranks[rank].keeper.send(message)
        except OSError as error:
            raise RunFailed(f"{self.called(rank)} {how_gone()}: {error}") from error

    def answers(
        self, ranks: Iterable[int], expected: type[Told], deadline_s: float = ANSWER_S
    ) -> dict[int, tuple[Told, float]]:
        """What keepers answer, each with the instant at which it was here."""
        left = {self.ranks[rank].keeper: rank for rank in ranks}
        found: dict[int, tuple[Told, float]] = {}
        until = time.monotonic() + deadline_s
        while left:
            ready = wait(list(left), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise RunFailed(f"{self.called(*sorted(left.values()))} did not answer within {deadline_s:g} s")
            for line in ready:
                assert isinstance(line, Connection)
                rank = left[line]
                try:
                    told = line.recv()
                except (EOFError, OSError):
                    wait_for_torchrun(rank)
                    raise RunFailed(f"{self.called(rank)} {how_gone()}") from None
                here_s = time.monotonic_ns() * 1e-9
                if isinstance(told, RemoteEnd):
                    self.ended[rank] = told
                    raise RunFailed(f"{self.called(rank)} {_how_ended(told.status)}{log_lines(rank, told.log)}")
                if isinstance(told, Trouble) or not isinstance(told, expected):
                    reason = told.reason if isinstance(told, Trouble) else repr(told)
                    raise RunFailed(f"{self.called(rank)}: {reason}")
                found[rank] = told, here_s
                del left[line]
        return found

    def compare_clocks(self, times: int) -> None:
        """Exchange so many words with one rank of every other clock. Raises RunFailed."""
        for _ in range(times):
            sent_s = {}
            for rank in self._asked.values():
                sent_s[rank] = time.monotonic_ns() * 1e-9
                self.tell(rank, TellTime())
            told = self.answers(sent_s, TimeTold)
            for clock, rank in self._asked.items():
                answer, here_s = told[rank]
                middle_s = (sent_s[rank] + here_s) / 2
                exchange = ClockExchange(middle_s, answer.asked_s - sent_s[rank], answer.answered_s - here_s)
                self._offsets[clock].add(exchange)
                self._round_trips_s.append(exchange.round_trip_s)

    def offset(self, rank: int) -> ClockOffset:
        """By how much the clock of a rank is ahead of this process's, now."""
        offsets = self._offsets.get(self.ranks[rank].introduction.clock)
        return OURS if offsets is None else offsets.at(time.monotonic())

    @property
    def uncertainty_s(self) -> float:
        """How far off the difference of two ranks' clocks may be now, at worst."""
        return between_the_worst([offsets.at(time.monotonic()) for offsets in self._offsets.values()])

    def drift_s(self, seconds: float) -> float:
        """By how much that may grow in so many seconds in which clocks are not compared."""
        return min(2, len(self._offsets)) * CLOCK_PACE * seconds

    @property
    def contradictions(self) -> int:
        """Exchanges that contradict others, of all clocks."""
        return sum(offsets.contradictions for offsets in self._offsets.values())

    @property
    def reach_s(self) -> float:
        """How long a word lately took to the farthest rank and back."""
        return max(self._round_trips_s, default=0.0)


def wait_for_torchrun(gone: int) -> None:
    """The keeper of a rank is gone. That of rank 0 is on this machine: where torchrun has ended it, this process comes
    next, and that has to be said. Its handler of SIGTERM raises EndedByTorchrun meanwhile; where that has come already,
    and whoever was interrupted is putting things in order, SIGTERM is ignored, and this raises it again."""
    if gone == 0:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
            raise EndedByTorchrun(0)
        time.sleep(_TORCHRUN_S)


def how_gone() -> str:
    """What is known of a rank whose connection has ended."""
    return "is gone: its process, its machine, or the network to it"


def _how_ended(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended early, with exit code {status}"


def log_lines(rank: int, log: str) -> str:
    """The end of a rank's log, to be put behind an error."""
    return "".join(f"\n  rank {rank} | {line}" for line in log.splitlines()[-_LOG_LINES:])


class RemoteWorkers(ConnectedWorkers):
    """The workers of one job; times that they are told are by their own clocks."""

    def __init__(self, keepers: Keepers, ranks: range, job: str = "") -> None:
        """`ranks` of the job among all; `job`: its name, where there are several."""
        self._keepers, self._ranks, self._job = keepers, ranks, job
        mine = [keepers.ranks[rank] for rank in ranks]
        super().__init__([one.worker for one in mine], [one.keeper for one in mine])
        self._teller_of = {one.keeper: rank for rank, one in enumerate(mine)}

    @property
    def reach_s(self) -> float:
        """See ConnectedWorkers."""
        return self._keepers.reach_s

    def fork_workers(self, world: protocol.WorldSpec) -> None:
        """See ConnectedWorkers."""
        for rank in self._ranks:
            self._keepers.tell(rank, protocol.StartWorkers(world))

    def _tell(self, rank: int, message: object) -> None:
        if isinstance(message, protocol.Go):
            theirs_s = message.start_s + self._keepers.offset(self._ranks[rank]).seconds
            message = replace(message, start_s=theirs_s)
        super()._tell(rank, message)

    def called(self, *ranks: int) -> str:
        """See ConnectedWorkers."""
        names = self._keepers.called(*(self._ranks[rank] for rank in ranks))
        return f"{names} of {self._job}" if self._job else names

    def log(self, rank: int) -> str:
        """See ConnectedWorkers."""
        told = self._keepers.ended.get(self._ranks[rank])
        return "" if told is None else log_lines(self._ranks[rank], told.log)

    def _note(self, ended: protocol.Exited) -> None:
        assert isinstance(ended, RemoteEnd)
        self._keepers.ended[ended.rank] = ended
        self._ended[ended.rank - self._ranks.start] = ended.status

    def _gone(self, teller: Connection) -> None:
        self.tellers.remove(teller)
        rank = self._teller_of[teller]
        wait_for_torchrun(self._ranks[rank])
        self._ended[rank] = _GONE

    def _how(self, status: int) -> str:
        return how_gone() if status == _GONE else super()._how(status)

    def stop(self, logs: Path, deadline_s: float) -> None:
        """Let all workers end, and keep what they wrote. Raises RunFailed naming one that does not end in time."""
        self.send(protocol.Stop())
        until = time.monotonic() + deadline_s
        while missing := [rank for rank in self._ranks if rank not in self._keepers.ended]:
            ready = wait(self.tellers, timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise RunFailed(f"{self._keepers.called(*missing)} did not end within {deadline_s:g} s")
            for teller in ready:
                assert isinstance(teller, Connection)
                self.note_exit(teller)
        for rank in self._ranks:
            (logs / f"rank{rank}.log").write_text(self._keepers.ended[rank].log)
