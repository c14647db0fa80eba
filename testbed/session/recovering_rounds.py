"""Rounds of a job whose workers fail as its plan says, and which goes on from what it has saved, with new workers.

A failed worker is really gone: the kernel ends its process inside an iteration, the others lose their connections, and
all of them are started anew in the containers that are there, connect, and load what was saved: on disk, or in each
other's memory (neighbour_memory.py).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from testbed.errors import RunFailed
from testbed.goodput.spans import KeptIn, Span, Spending
from testbed.lab.confinement import let_workers_write
from testbed.lab.shaping import TimedChange
from testbed.plan.plan import Plan
from testbed.plan.recovery import Failure
from testbed.plan.state_exchange import StateTraffic, cut_directions, failed_ranks
from testbed.session import deadlines
from testbed.session.deadlines import Deadline
from testbed.session.event_player import ChangingLinks
from testbed.session.loop import Loop, Resumed
from testbed.session.neighbour_memory import NeighbourMemory
from testbed.session.network_accounts import Mark
from testbed.session.rounds import Round, WitnessedRounds
from testbed.session.standing_lab import StandingLab
from testbed.session.state_exchanges import StateExchange
from testbed.train.protocol import FailAt, SaveState, Stop, WorldSpec


class ReplacedWorkers(Protocol):
    """The workers of the only job, of which one has failed."""

    @property
    def directory(self) -> Path:
        """That all of them see."""

    def await_failure(self, ranks: Collection[int]) -> None:
        """Return when these have failed as they were to. Raises RunFailed when they do not, or another one did."""

    def remember(self, files: Sequence[int]) -> None:
        """Have the launcher hand these descriptors over, one to each rank, when they are told Remember."""

    def replace(self) -> None:
        """End those that are left, and have new ones connect in their places. Raises RunFailed."""

    def regroup(self, ranks: Sequence[int], neighbours: Sequence[tuple[int, int]]) -> None:
        """The same in these places of the whole job alone, with connections between these pairs of them, which count
        from 0. Raises RunFailed."""

    def out_of_memory(self) -> str | None:
        """The nodes of which the kernel has ended a worker for want of memory, and their limits; None: there are none,
        or nobody could be replaced."""


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

    def await_failure(self, ranks: Collection[int]) -> None:
        """See ReplacedWorkers."""
        self._standing.launchers[0].await_failure(ranks)

    def remember(self, files: Sequence[int]) -> None:
        """See ReplacedWorkers."""
        self._standing.launchers[0].memories = files

    def replace(self) -> None:
        """See ReplacedWorkers."""
        self._replaced += 1
        world = replace(self._world, store=f"{self._world.store}-{self._replaced}")
        self._standing.replace_workers(self._loop, world, self._deadline)

    def regroup(self, ranks: Sequence[int], neighbours: Sequence[tuple[int, int]]) -> None:
        """See ReplacedWorkers."""
        self._replaced += 1
        world = self._world
        self._standing.launchers[0].send(Stop())  # to those that train nothing now; others lose their connections
        among = replace(
            world,
            store=f"{world.store}-{self._replaced}",
            places=tuple(world.places[rank] for rank in ranks),
            cores=tuple(world.cores[rank] for rank in ranks) if world.cores else (),
            neighbours=tuple(neighbours),
            among=tuple(ranks),
        )
        self._standing.replace_workers(self._loop, among, self._deadline)

    def out_of_memory(self) -> str | None:
        """See ReplacedWorkers."""
        return self._standing.out_of_memory() if len(self._standing.launchers) == 1 else None


class SegmentAccounts(Protocol):
    """Counts of a network of which a part may be left out."""

    def mark(self) -> Mark:
        """See NetworkAccounts."""

    def leave_out(self, since: Mark) -> Mark:
        """See NetworkAccounts."""


@dataclass(frozen=True)
class RecoveringJob:
    """What its rounds need."""

    foretold: Sequence[Span]
    failing: Failing
    begin: Callable[[Resumed | None, Callable[[int, float], None]], WitnessedRounds]
    """Rounds from the first one or from where training is resumed; what is told of every round that begins."""
    loop: Loop
    workers: ReplacedWorkers
    network: SegmentAccounts
    deadline: Deadline
    """Of saving on disk, for one."""
    memory: NeighbourMemory | None
    """None where checkpoints are on disk alone."""


class Failing:
    """What failures do in a lab: whose workers end, and which links carry nothing for some time."""

    def __init__(self, plan: Plan, links: ChangingLinks | None) -> None:
        """`links` can change where a datacenter is cut off."""
        assert plan.recovery is not None
        assert plan.recovery.checkpoints is not None
        self._plan, self._links, self._notice_s = plan, links, plan.recovery.checkpoints.notice_s
        self._asked_s: list[float] = []
        """Instants of the monotonic clock at which links are to carry nothing, and to carry again."""
        self.late_s: list[float] = []
        """How much later each of these came than it was to."""

    def ends(self, failure: Failure, after_s: float) -> FailAt:
        """Whose workers end, and when, for a failure that comes so long after something has begun: of a datacenter that
        is cut off all of them, when they have waited in vain."""
        job = self._plan.jobs[0]
        if failure.cut_s is None:
            return FailAt(failed_ranks(job, failure), after_s)
        return FailAt(frozenset(range(job.mesh.size)), after_s + self._notice_s)

    def cut(self, failure: Failure, at_s: float) -> None:
        """Have links carry nothing from an instant on, where a failure does that. Raises RunFailed."""
        if failure.cut_s is not None:
            assert self._links is not None
            directions = cut_directions(self._plan.network, failure)
            for when_s, sends in ((at_s, False), (at_s + failure.cut_s, True)):
                self._links.schedule_changes([TimedChange(when_s, index, sends=sends) for index in directions])
                self._asked_s += [when_s] * len(directions)

    def await_links(self) -> None:
        """Return when nobody is cut off, and what links kept is where it was sent to. Raises RunFailed."""
        if self._links is not None and self._asked_s:
            back_s = max(self._asked_s) + deadlines.longest_round_trip_s(self._plan)
            time.sleep(max(0.0, back_s - time.monotonic()))
            pairs = zip(self._links.changes_happened(), self._asked_s, strict=True)
            self.late_s += [happened_s - asked_s for happened_s, asked_s in pairs]
            self._asked_s = []


class _Begun(NamedTuple):
    """A round, and when it began."""

    number: int
    start_s: float


class _Checkpoint(NamedTuple):
    """A checkpoint."""

    resumed: Resumed
    counts: Mark
    """Of the network, when it was whole."""
    saves: int
    """Into memory until then, of those that the finished training has."""


class RecoveringRounds:
    """Yields the rounds of the training as it is when it is finished, once nothing can be lost of them any more.

    `spans` then has what really happened, in seconds of the job's own time, and `saves` how many checkpoints of the
    finished training went into memory. Iterating over it raises RunFailed, also for a failure that was not planned.
    """

    def __init__(self, job: RecoveringJob) -> None:
        self.spans: list[Span] = []
        self.restarts_late_s: list[float] = []
        self.saves_late_s: list[float] = []
        self.saves = 0
        self.memory = job.memory
        self._job, self._directory = job, job.workers.directory
        self._begun = _Begun(-1, 0.0)
        self._failed_at_s = 0.0
        """Instant of the monotonic clock, of the last failure."""
        self._failing: tuple[float, Failure] | None = None
        """What is to come in the next round, and how long after its beginning."""
        self._last: dict[KeptIn, _Checkpoint] = {}
        """Checkpoints, by what they are in; the beginning is as one on disk."""

    @property
    def states(self) -> Sequence[StateTraffic]:
        """Per direction, what checkpoints brought that the finished training has; () where they are on disk alone."""
        return () if self.memory is None else self.memory.traffic_of(self.saves)

    @property
    def cuts_late_s(self) -> Sequence[float]:
        """How much later than asked for links carried nothing, and carried again, as datacenters were cut off."""
        return self._job.failing.late_s

    @property
    def exchanged(self) -> Sequence[StateExchange]:
        """What ranks sent each other of their states."""
        return () if self.memory is None else self.memory.exchanged

    def __iter__(self) -> Iterator[Round]:
        with tempfile.TemporaryDirectory(prefix="saved-", dir=self._directory) as directory, ExitStack() as stack:
            self._directory = Path(directory)
            let_workers_write(self._directory)
            if self.memory is not None:
                stack.enter_context(self.memory).hand_over()
            yield from self._trained()

    def _trained(self) -> Iterator[Round]:
        self._last[KeptIn.DISK] = _Checkpoint(Resumed(0, None), self._job.network.mark(), 0)
        going = self._job.begin(None, self._note)
        pending: list[Round] = []
        """Those that are not on disk: what is in memory may be lost as well."""
        broken_off_s = 0.0
        """What the restart under way has lost to failures in it."""
        for span in self._job.foretold:
            if span.what is Spending.TRAIN:
                ended = self._train(going, span)
                pending += [] if ended is None else [ended]
            elif span.what is Spending.SAVE:
                if self._save(span) and KeptIn.DISK in span.held:
                    yield from pending
                    pending = []
            elif span.failure is not None:
                # nobody is there who could fail: the restart only begins anew
                broken_off_s += span.seconds
            else:
                going, broken_off_s = self._restart(span, broken_off_s), 0.0
                del pending[span.iteration - self._last[KeptIn.DISK].resumed.round :]
        yield from pending

    def _note(self, number: int, start_s: float) -> None:
        self._begun = _Begun(number, start_s)
        if self._failing is not None:
            after_s, failure = self._failing
            self._job.failing.cut(failure, start_s + after_s)
            self._failing = None

    def _spend(self, span: Span, seconds: float) -> None:
        """It has taken so long."""
        now_s = self.spans[-1].end_s if self.spans else 0.0
        self.spans.append(span._replace(begin_s=now_s, end_s=now_s + seconds))

    def _train(self, going: WitnessedRounds, span: Span) -> Round | None:
        """An iteration; None where workers fail in it."""
        if span.failure is None:
            ended = next(going)
            self._spend(span, ended.row(0).makespan_s)
            return ended
        self._failing = span.seconds, span.failure
        going.fail(self._job.failing.ends(span.failure, span.seconds))
        try:
            next(going)
        except RunFailed:
            if self._begun.number != span.iteration:
                raise
        self._failed(span, span.failure, self._begun.start_s)
        return None

    def _failed(self, span: Span, failure: Failure, began_s: float) -> None:
        """Workers fail in a span, which began at this instant. Raises RunFailed when they do not."""
        self._job.workers.await_failure(self._job.failing.ends(failure, span.seconds).ranks)
        self._failed_at_s = began_s + span.seconds
        self._spend(span, span.seconds)

    def _save(self, span: Span) -> bool:
        """Whether the state is saved: workers may fail meanwhile."""
        directory, began_s = self._directory / f"before-{span.iteration}", time.monotonic()
        fails = None if span.failure is None else self._job.failing.ends(span.failure, span.seconds)
        try:
            if self.memory is None:
                self._cutting(span)(began_s)
                failing = fails and replace(fails, at_s=began_s + fails.at_s)
                took_s = self._save_on_disk(directory, span, failing)
            else:
                took_s = self.memory.save(span.ahead_s, fails, self._cutting(span))
                if KeptIn.DISK in span.held:
                    took_s += self._save_on_disk(directory, span, None)
        except RunFailed:
            if span.failure is None:
                raise
        if span.failure is not None:
            self._failed(span, span.failure, began_s if self.memory is None else self.memory.began_s)
            shutil.rmtree(directory, ignore_errors=True)  # what there may be of it
            return False
        self._spend(span, took_s)
        self._keep(span, directory)
        return True

    def _cutting(self, span: Span) -> Callable[[float], None]:
        """What is done when a span begins at an instant, for links that will carry nothing in it."""
        failure = span.failure
        return lambda began_s: None if failure is None else self._job.failing.cut(failure, began_s + span.seconds)

    def _save_on_disk(self, directory: Path, span: Span, fails: FailAt | None) -> float:
        """Have all workers do so; returns what it took. The slot is not waited for where workers fail in it, before or
        behind what is written. Raises RunFailed."""
        began_s = time.monotonic()
        directory.mkdir()
        let_workers_write(directory)
        self._job.loop.ask({0: SaveState(str(directory), fails)}, self._job.deadline, "save its state")
        left_s = began_s + span.disk_s - time.monotonic()
        self.saves_late_s.append(max(0.0, -left_s))
        if span.failure is None:
            time.sleep(max(0.0, left_s))
        return time.monotonic() - began_s

    def _keep(self, span: Span, directory: Path) -> None:
        """What is saved takes the place of what was before."""
        counts, before = self._job.network.mark(), self._last[KeptIn.DISK].resumed.saved
        if self.memory is not None:
            self.memory.saved()
            self.saves += 1
            resumed = Resumed(span.iteration, self.memory.version)
            self._last[KeptIn.MEMORY] = _Checkpoint(resumed, counts, self.saves)
        if KeptIn.DISK in span.held:
            self._last[KeptIn.DISK] = _Checkpoint(Resumed(span.iteration, str(directory)), counts, self.saves)
            if isinstance(before, str):
                shutil.rmtree(before)

    def _restart(self, span: Span, broken_off_s: float) -> WitnessedRounds:
        """New workers, that go on from what is saved."""
        self._job.failing.await_links()
        self._job.workers.replace()
        if self.memory is not None:
            self.memory.hand_over(span.lost)
        (held,) = span.held
        begins_s = self._failed_at_s + broken_off_s + span.ahead_s
        late_s = max(0.0, time.monotonic() - begins_s)
        if held is KeptIn.MEMORY:
            assert self.memory is not None
            ended_s = self.memory.restore(begins_s, span.lost)
            late_s = self.memory.late_s
        else:
            time.sleep(max(0.0, begins_s - time.monotonic()))
            ended_s = time.monotonic()
        self.restarts_late_s.append(late_s)
        self._spend(span, ended_s - self._failed_at_s)
        kept = self._last[held]
        kept = self._last[held] = kept._replace(counts=self._job.network.leave_out(kept.counts))
        self.saves = kept.saves
        return self._job.begin(kept.resumed, self._note)
