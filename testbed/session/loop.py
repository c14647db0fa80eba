"""The one poll loop of a session: waits for workers, and for the end of whatever must live meanwhile.

Every wait has a deadline. What ends a wait early (a worker that died, a relay or border process that ended) is noticed
at once: they are watched by file descriptors, not by asking from time to time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TypeVar

from testbed.errors import RunFailed
from testbed.session.deadlines import Deadline
from testbed.train.job import IterationRecord, Job
from testbed.train.launcher import Launcher
from testbed.train.protocol import Done, Go, Prepare, Ready, WorldSpec

START_MARGIN_S = 5e-3
"""The common start of an iteration lies this far ahead, so that every worker has heard of it."""

Reply = TypeVar("Reply")


class Loop:
    """Waits for the workers of all jobs at once. A context manager: leaving it ends the watching, not the watched.

    `processes` are what must live meanwhile: what it is, in words, and its process id.
    """

    def __init__(self, launchers: Sequence[Launcher], processes: Mapping[str, int] | None = None) -> None:
        self.launchers = launchers
        self._guards: dict[int, str] = {}
        """Descriptor, readable when the process has ended -> what it is."""
        for what, pid in (processes or {}).items():
            try:
                self._guards[os.pidfd_open(pid)] = what
            except ProcessLookupError as error:
                self.__exit__(None, None, None)
                raise RunFailed(f"{what} has ended") from error

    def __enter__(self) -> Loop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._guards:
            os.close(descriptor)

    def start(self, worlds: Sequence[WorldSpec], deadline: Deadline) -> None:
        """Fork the workers of every job and wait until their connections are up and warm. Raises RunFailed."""
        for launcher, world in zip(self.launchers, worlds, strict=True):
            launcher.fork_workers(world)
        self.gather(Ready, deadline, "connect")

    def run(
        self, jobs: Sequence[Job], deadline: Deadline, margin_s: float = START_MARGIN_S
    ) -> Iterator[list[list[IterationRecord]]]:
        """Train; yields after every iteration, for every job, the records of its ranks in order.

        `deadline` is for one iteration. Raises RunFailed when it passes, or when somebody is gone.
        """
        for launcher, job in zip(self.launchers, jobs, strict=True):
            launcher.send(Prepare(job))
        self.gather(Ready, deadline, "prepare")
        names = ", ".join(dict.fromkeys(job.schedule.name for job in jobs))
        for iteration in range(jobs[0].iterations):
            start_s = time.monotonic_ns() * 1e-9 + margin_s
            for launcher in self.launchers:
                launcher.send(Go(iteration, start_s))
            done = self.gather(Done, deadline, f"finish iteration {iteration} of {names}")
            yield [[reply.record for reply in replies] for replies in done]

    def gather(self, expected: type[Reply], deadline: Deadline, what: str) -> list[list[Reply]]:
        """One `expected` reply from every worker: job by job, in rank order. Raises RunFailed."""
        replies: list[dict[int, Reply]] = [{} for _ in self.launchers]
        until = time.monotonic() + deadline.seconds
        left = {
            connection: (number, rank)
            for number, launcher in enumerate(self.launchers)
            for rank, connection in enumerate(launcher.workers)
        }
        zygotes = {launcher.zygote: launcher for launcher in self.launchers}
        while left:
            ready = wait([*left, *zygotes, *self._guards], timeout=max(0.0, until - time.monotonic()))
            if not ready:
                self._late(left, deadline, what)
            self._require_alive(what)
            for one in ready:
                if not isinstance(one, Connection):
                    continue
                if one in zygotes:
                    zygotes[one].note_exit()
                    continue
                number, rank = left.pop(one)
                reply = self.launchers[number].reply(rank)
                if not isinstance(reply, expected):
                    self._require_alive(what)
                    self.launchers[number].fail(rank, reply, what)
                replies[number][rank] = reply
        return [[found[rank] for rank in sorted(found)] for found in replies]

    def _require_alive(self, what: str) -> None:
        """Blame what carries the links before the workers that only complain of it."""
        for descriptor in wait(list(self._guards), timeout=0):
            raise RunFailed(f"{self._guards[descriptor]} ended while workers were to {what}")  # type: ignore[index]

    def _late(self, left: Mapping[Connection, tuple[int, int]], deadline: Deadline, what: str) -> None:
        missing = ", ".join(str(rank) for _, rank in left.values())
        number, rank = min(left.values())
        raise RunFailed(f"rank {missing} did not {what} within {deadline}{self.launchers[number].log(rank)}")
