"""The one poll loop of a session: waits for workers, and for the end of whatever must live meanwhile.

Every wait has a deadline. What ends a wait early (a worker that died, a relay or border process that ended) is noticed
at once: they are watched by file descriptors, not by asking from time to time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, TypeVar

from testbed.errors import RunFailed
from testbed.grouping import grouped
from testbed.plan.moved_weights import require_movable
from testbed.plan.network_state import NetworkState, network_at, planned
from testbed.plan.plan import Case, Plan
from testbed.plan.timeline import LinkEvent
from testbed.plan.traffic import acknowledgements_s, notices_round_trip_s, notices_s
from testbed.session.deadlines import Deadline
from testbed.session.timers import TimedAction, Timers
from testbed.train.assignment import IterationRecord, TimedSchedule, TrainingTask
from testbed.train.connected_workers import ConnectedWorkers
from testbed.train.protocol import Done, FailAt, Go, Leave, PostReceives, Prepare, Ready, SwapSchedule, WorldSpec

START_MARGIN_S = 5e-3
"""The common start of an iteration lies this far ahead, so that every worker has heard of it."""


def start_margin_s(plan: Plan, case: Case, events: Sequence[LinkEvent] = ()) -> float:
    """The same where links are slow or long: when an iteration begins, all messages of the one before it have been
    acknowledged, and so have the notices of receives, before the first one those of two iterations. Acknowledgements
    that come later cross the first messages.

    `events` are those that links have had by then, in order of time.
    """
    network = _network_then(plan, case, events)
    on_links_s = 2 * notices_s(plan, case, network) + acknowledgements_s(plan, case, network)
    return START_MARGIN_S + on_links_s + notices_round_trip_s(plan, case, network)


def acknowledged_s(plan: Plan, case: Case, events: Sequence[LinkEvent] = ()) -> float:
    """How long after the end of an iteration all of its messages have been acknowledged, at most: what is sent or
    counted earlier meets acknowledgements. `events` as in `start_margin_s`."""
    network = _network_then(plan, case, events)
    return acknowledgements_s(plan, case, network) + notices_round_trip_s(plan, case, network)


def _network_then(plan: Plan, case: Case, events: Sequence[LinkEvent]) -> NetworkState | None:
    """The network of a case when links have had these events; None where there are none: as planned."""
    if not events:
        return None
    links = list(planned(plan.network).links)
    for event in events:
        was = links[event.direction]
        delay_s = was.delay_s if event.delay_s is None else event.delay_s
        links[event.direction] = was._replace(
            delay_s=delay_s, rate_bps=was.rate_bps if event.rate_bps is None else event.rate_bps
        )
    return replace(network_at(plan, case), links=tuple(links))


Reply = TypeVar("Reply")


class Loop:
    """Waits for the workers of all jobs at once. A context manager: leaving it ends the watching, not the watched.

    `processes` are what must live meanwhile: what it is, in words, and its process id.
    """

    def __init__(self, launchers: Sequence[ConnectedWorkers], processes: Mapping[str, int] | None = None) -> None:
        self.launchers = launchers
        self._guards: dict[int, str] = {}
        """Descriptor, readable when the process has ended -> what it is."""
        for what, pid in (processes or {}).items():
            try:
                self._guards[os.pidfd_open(pid)] = what
            except ProcessLookupError as error:
                self.__exit__()
                raise RunFailed(f"{what} has ended") from error

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
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

    def restart(self, worlds: Sequence[WorldSpec], deadline: Deadline) -> None:
        """The same with the workers that are there, once they have left what they were in. Raises RunFailed."""
        pairs = zip(self.launchers, worlds, strict=True)
        self.ask({job: launcher.join(world) for job, (launcher, world) in enumerate(pairs)}, deadline, "connect")

    def leave(self, deadline: Deadline) -> None:
        """Have all workers end their connections, for `restart`. Raises RunFailed."""
        self.ask(dict.fromkeys(range(len(self.launchers)), Leave()), deadline, "leave their process group")

    def run(
        self,
        tasks: Sequence[TrainingTask],
        deadline: Deadline,
        margin_s: Callable[[int], float] = lambda number: START_MARGIN_S,
        timed: Callable[[int], Sequence[TimedAction]] = lambda number: (),
        announce: Callable[[int, float], None] = lambda number, start_s: None,
        resumed: Resumed | None = None,
    ) -> Rounds:
        """Training, to be iterated over: `deadline` is for one iteration, which is announced `margin_s` of its number
        ahead.

        `timed` says what is done during the round of a number, unless that ends before; `announce` is told of every
        round that is about to begin, and of the instant of the monotonic clock. Workers that have not trained yet go on
        from what is `resumed`.
        """
        return Rounds(self, tasks, deadline, margin_s, timed, announce, resumed)

    def ask(self, messages: Mapping[int, object], deadline: Deadline, what: str) -> None:
        """Tell every worker of some jobs to do `what`, and wait until all of these are Ready. Raises RunFailed."""
        for job, message in messages.items():
            self.tell(job, message, what)
        self.gather(Ready, deadline, what, [job in messages for job in range(len(self.launchers))])

    def tell(self, job: int, message: object, what: str) -> None:
        """Tell every worker of a job to do `what`. Raises RunFailed when one has ended."""
        launcher = self.launchers[job]
        ended = launcher.send(message)
        if ended is not None:
            self._require_alive(what)
            launcher.fail(ended, launcher.reply(ended), what)

    def gather(
        self,
        expected: type[Reply],
        deadline: Deadline,
        what: str,
        of: Sequence[bool] | None = None,
        timers: Timers | None = None,
    ) -> list[list[Reply]]:
        """One `expected` reply from every worker: job by job, in rank order; `of` some jobs only. Raises RunFailed.

        What `timers` have due is done meanwhile; what is not due by the last reply stays undone.
        """
        replies: list[dict[int, Reply]] = [{} for _ in self.launchers]
        left = {
            connection: (number, rank)
            for number, launcher in enumerate(self.launchers)
            if of is None or of[number]
            for rank, connection in enumerate(launcher.workers)
        }
        timers = Timers() if timers is None else timers
        timers.at(time.monotonic() + deadline.seconds, partial(self.late, left, deadline, what))
        while left:
            for number, rank in self.heard(left, timers, what):
                replies[number][rank] = self.reply(expected, number, rank, what)
            if left:
                timers.act()
        return [[found[rank] for rank in sorted(found)] for found in replies]

    def heard(self, left: dict[Connection, tuple[int, int]], timers: Timers, what: str) -> list[tuple[int, int]]:
        """Wait until a worker of `left` has something to say, or a timer is due; returns (job, rank) of those that
        have, and takes them out of `left`. Raises RunFailed where what has to live has ended."""
        tellers = {teller: launcher for launcher in self.launchers for teller in launcher.tellers}
        ready = wait([*left, *tellers, *self._guards], timeout=timers.left_s())
        self._require_alive(what)
        found = []
        for awaited in ready:
            if not isinstance(awaited, Connection):
                continue
            if awaited in tellers:
                tellers[awaited].note_exit(awaited)
            else:
                found.append(left.pop(awaited))
        return found

    def reply(self, expected: type[Reply], job: int, rank: int, what: str) -> Reply:
        """What a worker that was heard of has to say. Raises RunFailed where it is nothing `expected`."""
        reply = self.launchers[job].reply(rank)
        if not isinstance(reply, expected):
            self._require_alive(what)
            self.launchers[job].fail(rank, reply, what)
        return reply

    def _require_alive(self, what: str) -> None:
        """Blame what carries the links before the workers that only complain of it."""
        for descriptor in wait(list(self._guards), timeout=0):
            raise RunFailed(f"{self._guards[descriptor]} ended while workers were to {what}")  # type: ignore[index]

    def late(self, left: Mapping[Connection, tuple[int, int]], deadline: Deadline, what: str) -> None:
        """Raises RunFailed for those that are `left`."""
        who = " and ".join(self.launchers[number].called(*ranks) for number, ranks in grouped(left.values()).items())
        halted = "".join(launcher.halted() for launcher in self.launchers)
        number, rank = min(left.values())
        raise RunFailed(f"{who} did not {what} within {deadline}{halted}{self.launchers[number].log(rank)}")


class Resumed(NamedTuple):
    """What workers that are new to a training of one job go on from."""

    round: int
    """The next one."""
    saved: str | int | None
    """Directory of SaveState, or version of a state in memory; None: from the beginning."""


class Rounds:
    """Training, round by round: yields, for every job, the records of its ranks in order; [] where it has no part.

    A round is an iteration of every job that has joined and is not done, from one common start; iterations are called
    by its number. A job is prepared in the round that it joins. Each raises RunFailed when its deadline passes, or when
    somebody is gone.
    """

    def __init__(
        self,
        loop: Loop,
        tasks: Sequence[TrainingTask],
        deadline: Deadline,
        margin_s: Callable[[int], float],
        timed: Callable[[int], Sequence[TimedAction]],
        announce: Callable[[int, float], None],
        resumed: Resumed | None,
    ) -> None:
        """See Loop.run."""
        self._announce = announce
        self._loop, self._deadline, self._margin_s, self._timed = loop, deadline, margin_s, timed
        self._tasks = list(tasks)
        self._schedules = [task.begins_with for task in tasks]
        self._resumed = resumed
        self._next = 0 if resumed is None else resumed.round
        self.fails: FailAt | None = None
        """Workers that are to fail in the next round, so long after its beginning."""

    def __iter__(self) -> Rounds:
        return self

    def __next__(self) -> list[list[IterationRecord]]:
        number = self._next
        if number >= max(_rounds_of(task).stop for task in self._tasks):
            raise StopIteration
        tasks = {job: task for job, task in enumerate(self._tasks) if number in _rounds_of(task)}
        goes_on = self._resumed is not None and number == self._resumed.round
        new = {job: task for job, task in tasks.items() if task.joins == number or goes_on}
        if new:
            saved = self._resumed.saved if self._resumed is not None and goes_on else None
            prepare = {
                job: Prepare(replace(task, begins_with=self._schedules[job]), saved) for job, task in new.items()
            }
            self._loop.ask(prepare, self._deadline, "prepare")
        names = ", ".join(dict.fromkeys(self._schedules[job].schedule.name for job in tasks))
        # not by each rank as it ends: its notices would cross slow links ahead of others' last messages
        posts = {job: PostReceives(number - task.joins + 1) for job, task in tasks.items() if job not in new}
        if posts:
            self._loop.ask(posts, self._deadline, f"post the receives of iteration {number + 1} of {names}")
        reach_s = max(launcher.reach_s for launcher in self._loop.launchers)
        start_s = time.monotonic_ns() * 1e-9 + self._margin_s(number) + reach_s
        self._announce(number, start_s)
        what = f"finish iteration {number} of {names}"
        fails = None if self.fails is None else replace(self.fails, at_s=start_s + self.fails.at_s)
        self.fails = None
        for job, task in tasks.items():
            self._loop.tell(job, Go(number - task.joins, start_s + task.start_s, fails), what)
        at_work, timers = [job in tasks for job in range(len(self._tasks))], Timers(self._timed(number), start_s)
        done = self._loop.gather(Done, self._deadline, what, at_work, timers)
        self._next += 1
        return [[reply.record.called(number) for reply in replies] for replies in done]

    def shift(self, starts_s: Mapping[int, float]) -> None:
        """Have jobs, by their place, begin so long after the common start from the next round on."""
        for job, start_s in starts_s.items():
            self._tasks[job] = replace(self._tasks[job], start_s=start_s)

    def swap(self, schedules: Mapping[int, TimedSchedule]) -> None:
        """Have jobs, by their place, go on with another schedule from the next round on, with the weights that they
        have trained; of one that has not joined, begin with it.

        Raises BadInput where stages would have to move and cannot, RunFailed as a round does.
        """
        going_on = {job: schedule for job, schedule in schedules.items() if self._tasks[job].joins < self._next}
        for job, schedule in going_on.items():
            was, now = self._schedules[job].schedule, schedule.schedule
            require_movable(self._tasks[job].workload, was.stage_to_rank, now.stage_to_rank, now.name, "stages")
        for job, schedule in schedules.items():
            self._schedules[job] = schedule
        if going_on:
            names = ", ".join(dict.fromkeys(schedule.schedule.name for schedule in going_on.values()))
            messages = {job: SwapSchedule(schedule) for job, schedule in going_on.items()}
            self._loop.ask(messages, self._deadline, f"go on with {names}")


def _rounds_of(task: TrainingTask) -> range:
    return range(task.joins, task.joins + task.iterations)
