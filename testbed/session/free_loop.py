"""Training of jobs that run freely: each begins its next iteration when its own ranks have ended the one before.

The end is the latest that ranks report on their logical clocks, and the beginning lies a constant gap behind it, so
that neither the loop nor its messages decide when it is. In the gap all ranks of the job post the receives of the
iteration after the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

from testbed.plan.free_rounds import GAP_S
from testbed.session.deadlines import Deadline
from testbed.session.loop import START_MARGIN_S, Loop
from testbed.session.timers import Timers
from testbed.train.assignment import IterationRecord, TrainingTask
from testbed.train.protocol import Done, Go, PostReceives, Prepare, Ready


class EndedIteration(NamedTuple):
    """An iteration of one job."""

    job: int
    """Its place among those that are trained."""
    records: Sequence[IterationRecord]
    """Of its ranks in order."""
    begin_s: float
    """When it began, in seconds since the common start of all jobs."""
    late_s: float
    """By how much the next one begins later than a gap behind it, for a machine that was late; else 0."""


class _JobAtWork:
    """Where one job is."""

    def __init__(self, task: TrainingTask, start_s: float) -> None:
        self.task, self.start_s = task, start_s
        """When the iteration at hand begins, on the monotonic clock."""
        self.iteration = 0
        self.posting = False
        """Whether its ranks post receives for one, or train it."""
        self.heard: dict[int, IterationRecord] = {}
        self.ready = 0


class FreeIterations:
    """Training, iteration by iteration, as they end. Iterating over it raises RunFailed when the deadline of one
    passes, or when somebody is gone."""

    def __init__(
        self,
        loop: Loop,
        tasks: Sequence[TrainingTask],
        deadline: Deadline,
        margin_s: float,
        halfway: Callable[[int, int], None],
        begins: Callable[[float], None] = lambda start_s: None,
    ) -> None:
        """`deadline` is for each iteration of each job; the first ones are announced `margin_s` ahead. `halfway` is
        told of an iteration that is under way when half of that is over: the job's place, and its number; `begins` of
        the instant of the monotonic clock that is the common start.

        Every task has a job of `loop`, in its order.
        """
        self._loop, self._tasks, self._deadline, self._margin_s = loop, tasks, deadline, margin_s
        self._halfway, self._begins, self._timers = halfway, begins, Timers()
        self._left: dict[Connection, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[EndedIteration]:
        prepare = {job: Prepare(task) for job, task in enumerate(self._tasks)}
        self._loop.ask(prepare, self._deadline, "prepare")
        begin_s = time.monotonic_ns() * 1e-9 + self._margin_s
        jobs = [_JobAtWork(task, begin_s + task.start_s) for task in self._tasks]
        self._begins(begin_s)
        for number, job in enumerate(jobs):
            self._go(number, job)
        while self._left:
            for number, rank in self._loop.heard(self._left, self._timers, "train"):
                job = jobs[number]
                if job.posting:
                    self._ready(number, rank, job)
                elif (ended := self._done(number, rank, job)) is not None:
                    yield ended._replace(begin_s=ended.begin_s - begin_s)
            if self._left:
                self._timers.act()

    def _done(self, number: int, rank: int, job: _JobAtWork) -> EndedIteration | None:
        """A rank has ended an iteration: the iteration, where it was the last one."""
        job.heard[rank] = self._loop.reply(Done, number, rank, self._what(job)).record
        if len(job.heard) < job.task.mesh.size:
            return None
        records, begun_s, late_s = [job.heard[rank] for rank in sorted(job.heard)], job.start_s, 0.0
        job.iteration, job.heard = job.iteration + 1, {}
        if job.iteration < job.task.iterations:
            due_s = job.start_s + max(record.ended_s for record in records) + GAP_S
            job.start_s = max(due_s, time.monotonic_ns() * 1e-9 + START_MARGIN_S)
            late_s = job.start_s - due_s
            job.posting, job.ready = True, 0
            self._tell(number, job, PostReceives(job.iteration + 1))
        return EndedIteration(number, records, begun_s, late_s)

    def _ready(self, number: int, rank: int, job: _JobAtWork) -> None:
        """A rank has posted its receives; when all have, the next iteration begins."""
        self._loop.reply(Ready, number, rank, self._what(job))
        job.ready += 1
        if job.ready == job.task.mesh.size:
            job.posting = False
            self._go(number, job)

    def _go(self, number: int, job: _JobAtWork) -> None:
        self._tell(number, job, Go(job.iteration, job.start_s))

    def _tell(self, number: int, job: _JobAtWork, message: object) -> None:
        """Tell the ranks of a job something, and wait for what each of them says to it."""
        self._loop.tell(number, message, self._what(job))
        workers = self._loop.launchers[number].workers
        self._left |= {connection: (number, rank) for rank, connection in enumerate(workers)}
        at = job.iteration, job.posting
        now_s = time.monotonic()
        self._timers.at(now_s + self._deadline.seconds / 2, partial(self._say_late, number, job, at))
        self._timers.at(now_s + self._deadline.seconds, partial(self._fail_late, number, job, at))

    def _say_late(self, number: int, job: _JobAtWork, at: tuple[int, bool]) -> None:
        if (job.iteration, job.posting) == at and self._waits_for(number):
            self._halfway(number, job.iteration)

    def _fail_late(self, number: int, job: _JobAtWork, at: tuple[int, bool]) -> None:
        if (job.iteration, job.posting) == at and (left := self._waits_for(number)):
            self._loop.late(left, self._deadline, self._what(job))

    def _waits_for(self, number: int) -> dict[Connection, tuple[int, int]]:
        return {connection: who for connection, who in self._left.items() if who[0] == number}

    def _what(self, job: _JobAtWork) -> str:
        name = job.task.begins_with.schedule.name
        if job.posting:
            return f"post the receives of iteration {job.iteration + 1} of {name}"
        return f"finish iteration {job.iteration} of {name}"
