"""Rounds of a job whose workers fail as its plan says, and which goes on from what it has saved, with new workers.

A failed worker is really gone: the kernel ends its process inside an iteration, the others lose their connections, and
all of them are started anew in the containers that are there, connect, and load what was saved.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from testbed.errors import RunFailed
from testbed.goodput.spans import Span, Spending
from testbed.lab.confinement import let_workers_write
from testbed.plan.recovery import Failure
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop, Resumed
from testbed.session.rounds import Round, WitnessedRounds
from testbed.session.standing_lab import StandingLab
from testbed.train.protocol import FailAt, SaveState, WorldSpec


class ReplacedWorkers(Protocol):
    """The workers of the only job, of which one has failed."""

    @property
    def directory(self) -> Path:
        """That all of them see."""

    def await_failure(self, rank: int) -> None:
        """Return when a worker has failed as it was to. Raises RunFailed when it does not, or another one did."""

    def replace(self) -> None:
        """End those that are left, and have new ones connect in their places. Raises RunFailed."""

    def out_of_memory(self) -> str | None:
        """The node of which the kernel has ended a worker for want of memory, and its limit; None: there is none, or
        nobody could be replaced."""


class LabWorkers:
    """Those of a lab that stands: its containers and links stay as they are."""

    def __init__(self, standing: StandingLab, loop: Loop, world: WorldSpec, deadline: Deadline) -> None:
        """`world` is what the first workers have joined, and `deadline` for joining it."""
        self._standing, self._loop, self._world, self._deadline = standing, loop, world, deadline
        self._replaced = 0

    @property
    def directory(self) -> Path:
        """See ReplacedWorkers."""
        return self._standing.scratch

    def await_failure(self, rank: int) -> None:
        """See ReplacedWorkers."""
        self._standing.launchers[0].await_failure(rank)

    def replace(self) -> None:
        """See ReplacedWorkers."""
        self._replaced += 1
        world = replace(self._world, store=f"{self._world.store}-{self._replaced}")
        self._standing.replace_workers(self._loop, world, self._deadline)

    def out_of_memory(self) -> str | None:
        """See ReplacedWorkers."""
        return self._standing.out_of_memory() if len(self._standing.launchers) == 1 else None


class SegmentAccounts(Protocol):
    """Counts of a network of which a part may be left out."""

    def mark(self) -> None:
        """What is counted until now stays."""

    def leave_out(self) -> None:
        """What was counted since the last mark does not count; go on from here."""


@dataclass(frozen=True)
class RecoveringJob:
    """What its rounds need."""

    foretold: Sequence[Span]
    begin: Callable[[Resumed | None, Callable[[int, float], None]], WitnessedRounds]
    """Rounds from the first one or from where training is resumed; what is told of every round that begins."""
    loop: Loop
    workers: ReplacedWorkers
    network: SegmentAccounts
    deadline: Deadline
    """Of saving, for one."""


class _Begun(NamedTuple):
    """A round, and when it began."""

    number: int
    start_s: float


class RecoveringRounds:
    """Yields the rounds of the training as it is when it is finished, once nothing can be lost of them any more.

    `spans` then has what really happened, in seconds of the job's own time. Iterating over it raises RunFailed, also
    for a failure that was not planned.
    """

    def __init__(self, job: RecoveringJob) -> None:
        self.spans: list[Span] = []
        self._job, self._directory = job, job.workers.directory
        self._begun = _Begun(-1, 0.0)
        self._saved = Resumed(0, None)
        self._failed_at_s = 0.0
        """Instant of the monotonic clock, of the last failure."""

    def __iter__(self) -> Iterator[Round]:
        with tempfile.TemporaryDirectory(prefix="saved-", dir=self._job.workers.directory) as directory:
            self._directory = Path(directory)
            let_workers_write(self._directory)
            yield from self._trained()

    def _trained(self) -> Iterator[Round]:
        self._job.network.mark()
        going = self._job.begin(None, self._note)
        pending: list[Round] = []
        restart_s = 0.0
        for span in self._job.foretold:
            if span.what is Spending.TRAIN:
                ended = self._train(going, span)
                pending += [] if ended is None else [ended]
            elif span.what is Spending.SAVE:
                if self._save(span):
                    yield from pending
                    pending = []
            else:
                # nobody is there who could fail: the restart only begins anew
                restart_s += span.seconds
                if span.failure is None:
                    pending = []
                    going, restart_s = self._restart(restart_s), 0.0
        yield from pending

    def _note(self, number: int, start_s: float) -> None:
        self._begun = _Begun(number, start_s)

    def _spend(self, what: Spending, iteration: int, seconds: float, failure: Failure | None = None) -> None:
        now_s = self.spans[-1].end_s if self.spans else 0.0
        self.spans.append(Span(what, iteration, now_s, now_s + seconds, failure))

    def _train(self, going: WitnessedRounds, span: Span) -> Round | None:
        """An iteration; None where a worker fails in it."""
        if span.failure is None:
            ended = next(going)
            self._spend(Spending.TRAIN, span.iteration, ended.row(0).makespan_s)
            return ended
        going.fail(replace(span.failure, at_s=span.seconds))
        try:
            next(going)
        except RunFailed:
            if self._begun.number != span.iteration:
                raise
        self._failed(span, self._begun.start_s)
        return None

    def _failed(self, span: Span, began_s: float) -> None:
        """A worker fails in a span, which began at this instant. Raises RunFailed when it does not."""
        assert span.failure is not None
        self._job.workers.await_failure(span.failure.rank)
        self._failed_at_s = began_s + span.seconds
        self._spend(span.what, span.iteration, span.seconds, span.failure)

    def _save(self, span: Span) -> bool:
        """Whether the state is saved: a worker may fail meanwhile."""
        began_s = time.monotonic()
        directory = self._directory / f"before-{span.iteration}"
        directory.mkdir()
        let_workers_write(directory)
        fails = None if span.failure is None else FailAt(span.failure.rank, began_s + span.seconds)
        try:
            self._job.loop.ask({0: SaveState(str(directory), fails)}, self._job.deadline, "save its state")
        except RunFailed:
            if fails is None:
                raise
        if fails is not None:
            self._failed(span, began_s)
            shutil.rmtree(directory)
            return False
        time.sleep(max(0.0, began_s + span.seconds - time.monotonic()))
        self._spend(span.what, span.iteration, time.monotonic() - began_s)
        if self._saved.directory is not None:
            shutil.rmtree(self._saved.directory)
        self._saved = Resumed(span.iteration, str(directory))
        self._job.network.mark()
        return True

    def _restart(self, slot_s: float) -> WitnessedRounds:
        """New workers, that go on from what is saved."""
        self._job.workers.replace()
        time.sleep(max(0.0, self._failed_at_s + slot_s - time.monotonic()))
        self._spend(Spending.RESTART, self._saved.round, time.monotonic() - self._failed_at_s)
        self._job.network.leave_out()
        return self._job.begin(self._saved, self._note)
