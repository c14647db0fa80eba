"""Rounds of training: an iteration of every job from one common start, with what the machine did meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from testbed.judge import iterations
from testbed.lab.machine_witness import MachineCounts, Witness
from testbed.model.lower import Load
from testbed.pipeline.ir import Schedule
from testbed.pipeline.receive_buffers import come_in_order, shared_buffers
from testbed.plan.drawn_slots import SlowerRank
from testbed.plan.exchange import sites_of
from testbed.plan.plan import Job
from testbed.planning.drawn_iterations import is_uniform
from testbed.session.deadlines import Deadline
from testbed.session.free_loop import FreeIterations
from testbed.session.loop import START_MARGIN_S, Loop, Resumed
from testbed.session.timers import TimedAction
from testbed.thresholds import COMPARED_ITERATIONS
from testbed.trace.tables import Trace
from testbed.train.assignment import IterationRecord, TimedSchedule, TrainingTask
from testbed.train.protocol import FailAt
from testbed.units import show_time


class Round(NamedTuple):
    """What the ranks of every job wrote down in one iteration."""

    records: Mapping[int, Sequence[IterationRecord]]
    """By number of the job, of its ranks in order; () for one that had no part in it."""
    machine: MachineCounts
    """While it was trained; what went on since the one before (an event, a controller at work) is not in it."""
    begin_s: float = math.nan
    """Where jobs run freely, when the only job that has a part in it began, in seconds since the common start."""
    n_ranks: int | None = None
    """Of the only job, where some of its ranks had no part in it."""

    def row(self, job: int, warmup: int = 0) -> iterations.IterationRow:
        """The iteration of a job as a whole; the first `warmup` ones are marked as such."""
        return iterations.iteration_row(self.records[job], warmup, self.machine, self.begin_s, self.n_ranks)

    def trace(self, job: int) -> Trace:
        """The iteration of a job, its ranks counted from 0."""
        return iterations.trace(self.records[job], self.n_ranks)


def timed_schedule(job: Job, load: Load, *, drawn: bool = False, slower: tuple[SlowerRank, ...] = ()) -> TimedSchedule:
    """The schedule of a job as its workers run it: with the slots and beginnings that the model has; `drawn`: with
    those of each iteration, where they are not the same on all replicas and in all iterations, and with ranks that
    become `slower`."""
    problem, durations = load.problem, None
    if job.workload.pacing:
        durations = tuple(tuple(problem.duration(action) for action in row) for row in load.schedule.rows)
    return TimedSchedule(
        load.schedule, durations, problem.begins_s, drawn and (bool(slower) or not is_uniform(job)), slower
    )


def task_of(
    job: Job,
    load: Load,
    count: int,
    *,
    joins: int = 0,
    evidence: bool = False,
    swaps: bool = False,
    slower: tuple[SlowerRank, ...] = (),
    also_compared: tuple[int, ...] = (),
) -> TrainingTask:
    """What the workers of a job train for `count` iterations, warm-up included: what the model has as its load.

    It `joins` the others in the round of that number. With `evidence` ranks take the slots that are drawn for each
    iteration, count their memory, and tell of their gradients and weights; some become `slower`. One that `swaps` to
    other schedules needs a buffer for every message. Weights are `also_compared` in these iterations.
    """
    return TrainingTask(
        timed_schedule(job, load, drawn=evidence, slower=slower),
        job.workload,
        count,
        sites=sites_of(job),
        count_memory=evidence,
        compared=COMPARED_ITERATIONS if evidence else 0,
        start_s=load.start_s,
        joins=joins,
        also_compared=also_compared,
        receive_buffers=() if swaps else shared_buffers(load.schedule),
        in_order=() if swaps else come_in_order(load.schedule),
    )


def unknown_task(job: Job, schedule: Schedule, count: int) -> TrainingTask:
    """The same of an unpaced job of which no time is known yet."""
    return TrainingTask(
        TimedSchedule(schedule, None),
        job.workload,
        count,
        sites=sites_of(job),
        receive_buffers=shared_buffers(schedule),
        in_order=come_in_order(schedule),
    )


class WitnessedIterations:
    """Iterations of jobs that run freely, by their numbers, as each ends. Iterating over it raises RunFailed."""

    def __init__(self, free: FreeIterations, jobs: Sequence[int], witness: Witness, say: Callable[[str], None]) -> None:
        """`jobs` have the numbers of those that are trained; what is late is said."""
        self._free, self._jobs, self._witness, self._say = free, jobs, witness, say

    def __iter__(self) -> Iterator[Round]:
        before = self._witness.read()
        for ended in self._free:
            if ended.late_s > 0:
                name = f"iteration {ended.records[0].iteration + 1} of job {self._jobs[ended.job]}"
                self._say(f"{name} begins {show_time(ended.late_s)} later than it should: this machine was late")
            now = self._witness.read()
            yield Round({self._jobs[ended.job]: ended.records}, now.since(before), ended.begin_s)
            before = now


class WitnessedRounds:
    """Rounds of the jobs that have tasks, by their numbers, while others rest. Iterating over it raises RunFailed."""

    def __init__(
        self,
        loop: Loop,
        tasks: Mapping[int, TrainingTask],
        deadline: Deadline,
        witness: Witness,
        margin_s: Callable[[int], float] = lambda number: START_MARGIN_S,
        timed: Callable[[int], Sequence[TimedAction]] = lambda number: (),
        announce: Callable[[int, float], None] = lambda number, start_s: None,
        resumed: Resumed | None = None,
    ) -> None:
        """See Loop.run."""
        self._jobs, self._witness = list(tasks), witness
        self._rounds = loop.of(self._jobs).run(list(tasks.values()), deadline, margin_s, timed, announce, resumed)

    def __iter__(self) -> WitnessedRounds:
        return self

    def __next__(self) -> Round:
        before = self._witness.read()
        records = next(self._rounds)
        return Round(dict(zip(self._jobs, records, strict=True)), self._witness.read().since(before))

    def fail(self, failure: FailAt) -> None:
        """Have workers fail in the next round, so long after its beginning."""
        self._rounds.fails = failure

    def shift(self, starts_s: Mapping[int, float]) -> None:
        """Have jobs, by their numbers, begin so long after the common start from the next round on."""
        self._rounds.shift({self._jobs.index(number): start_s for number, start_s in starts_s.items()})

    def swap(self, schedules: Mapping[int, TimedSchedule]) -> None:
        """Have jobs, by their numbers, go on with another schedule from the next round on; see Rounds.swap."""
        self._rounds.swap({self._jobs.index(number): run for number, run in schedules.items()})
