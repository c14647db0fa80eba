"""The one poll loop of a session: waits for workers, and for the end of whatever must live meanwhile.

Every wait has a deadline. What ends a wait early (a worker that died, a relay or border process that ended) is noticed
at once: they are watched by file descriptors, not by asking from time to time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import compress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TypeVar

from testbed.errors import RunFailed
from testbed.plan.plan import Case, Plan
from testbed.plan.traffic import notices_s
from testbed.session.deadlines import Deadline
from testbed.train.job import IterationRecord, Job
from testbed.train.launcher import Launcher
from testbed.train.protocol import Done, Go, PostReceives, Prepare, Ready, WorldSpec

START_MARGIN_S = 5e-3
"""The common start of an iteration lies this far ahead, so that every worker has heard of it."""


def start_margin_s(plan: Plan, case: Case) -> float:
    """The same where receives have to be posted over slow links: their notices, those of two iterations before the
    first one, have left when it begins."""
    return START_MARGIN_S + 2 * notices_s(plan, case)


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

    def of(self, jobs: Sequence[int]) -> Loop:
        """The same for these jobs, while the others rest; it lives as long as this one does."""
        found = copy(self)
        found.launchers = [self.launchers[job] for job in jobs]
        return found

    def start(self, worlds: Sequence[WorldSpec], deadline: Deadline) -> None:
        """Fork the workers of every job and wait until their connections are up and warm. Raises RunFailed."""
        for launcher, world in zip(self.launchers, worlds, strict=True):
            launcher.fork_workers(world)
        self.gather(Ready, deadline, "connect")

    def run(
        self, jobs: Sequence[Job], deadline: Deadline, margin_s: float = START_MARGIN_S
    ) -> Iterator[list[list[IterationRecord]]]:
        """Train; yields after every round, for every job, the records of its ranks in order; [] where it has no part.

        A round is an iteration of every job that has joined and is not done, from one common start; iterations are
        called by its number. A job is prepared in the round that it joins. `deadline` is for one iteration. Raises
        RunFailed when it passes, or when somebody is gone.
        """
        for number in range(max(job.joins + job.iterations for job in jobs)):
            at_work = [job.joins <= number < job.joins + job.iterations for job in jobs]
            new = [job.joins == number and working for job, working in zip(jobs, at_work, strict=True)]
            if any(new):
                for launcher, job in compress(zip(self.launchers, jobs, strict=True), new):
                    self._tell(launcher, Prepare(job), "prepare")
                self.gather(Ready, deadline, "prepare", new)
            names = ", ".join(dict.fromkeys(job.schedule.name for job in compress(jobs, at_work)))
            # not by each rank as it ends: its notices would cross slow links ahead of others' last messages
            going_on = [job.joins < number and working for job, working in zip(jobs, at_work, strict=True)]
            if any(going_on):
                what = f"post the receives of iteration {number + 1} of {names}"
                for launcher, job in compress(zip(self.launchers, jobs, strict=True), going_on):
                    self._tell(launcher, PostReceives(number - job.joins + 1), what)
                self.gather(Ready, deadline, what, going_on)
            start_s = time.monotonic_ns() * 1e-9 + margin_s
            what = f"finish iteration {number} of {names}"
            for launcher, job in compress(zip(self.launchers, jobs, strict=True), at_work):
                self._tell(launcher, Go(number - job.joins, start_s + job.start_s), what)
            done = self.gather(Done, deadline, what, at_work)
            yield [[reply.record.called(number) for reply in replies] for replies in done]

    def _tell(self, launcher: Launcher, message: object, what: str) -> None:
        """Tell every worker of a job to do `what`. Raises RunFailed when one has ended."""
        ended = launcher.send(message)
        if ended is not None:
            self._require_alive(what)
            launcher.fail(ended, launcher.reply(ended), what)

    def gather(
        self, expected: type[Reply], deadline: Deadline, what: str, of: Sequence[bool] | None = None
    ) -> list[list[Reply]]:
        """One `expected` reply from every worker: job by job, in rank order; `of` some jobs only. Raises RunFailed."""
        replies: list[dict[int, Reply]] = [{} for _ in self.launchers]
        until = time.monotonic() + deadline.seconds
        left = {
            connection: (number, rank)
            for number, launcher in enumerate(self.launchers)
            if of is None or of[number]
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
        missing: dict[int, list[int]] = {}
        for number, rank in left.values():
            missing.setdefault(number, []).append(rank)
        who = " and ".join(self.launchers[number].called(*ranks) for number, ranks in missing.items())
        number, rank = min(left.values())
        raise RunFailed(f"{who} did not {what} within {deadline}{self.launchers[number].log(rank)}")
