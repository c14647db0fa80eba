"""Rounds of a job that goes on with the replicas that are left, as its plan says, and takes in those that are back.

A failed worker is really gone, as in recovering_rounds.py. Workers of the replicas that are left are started anew in
their containers, connect as a smaller job whose ranks count from 0, and load what their own memory has: the state of
the last boundary between iterations. Where replicas share an optimizer each shard and its copy are cut anew among those
that are there (shards_memory.py). What workers write down has the numbers of the whole job again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from testbed.errors import RunFailed
from testbed.goodput.elastic_training import lost_replicas
from testbed.goodput.spans import Span, Spending
from testbed.plan.connecting import neighbours_of
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.shard_copies import Replicas
from testbed.plan.state_exchange import failed_ranks
from testbed.planning.fewer_replicas import ranks_of, with_replicas
from testbed.session.loop import Resumed, acknowledged_s
from testbed.session.network_accounts import Mark
from testbed.session.recovering_rounds import ReplacedWorkers, SegmentAccounts
from testbed.session.rounds import Round, WitnessedRounds
from testbed.session.shards_memory import ShardsMemory
from testbed.session.state_exchanges import StateExchange
from testbed.session.survivors_memory import SurvivorsMemory
from testbed.train.protocol import FailAt


@dataclass(frozen=True)
class ElasticJob:
    """What its rounds need."""

    plan: Plan
    case: Case
    foretold: Sequence[Span]
    begin: Callable[[Replicas, Resumed | None, Callable[[int, float], None]], WitnessedRounds]
    """Rounds of these replicas, from the first one or from where training is resumed; what is told of every round that
    begins."""
    workers: ReplacedWorkers
    network: SegmentAccounts
    memory: SurvivorsMemory

    @property
    def job(self) -> Job:
        """The whole one."""
        return self.plan.jobs[0]


class ElasticRounds:
    """Yields the rounds of the training as it is when it is finished, once nothing can be lost of them any more, their
    ranks by their numbers in the whole job.

    `spans` then has what really happened, in seconds of the job's own time. Iterating over it raises RunFailed, also
    for a failure that was not planned.
    """

    cuts_late_s: Sequence[float] = ()
    """Nobody is cut off."""
    saves_late_s: Sequence[float] = ()
    """Nothing is written to disk."""

    def __init__(self, job: ElasticJob) -> None:
        self.spans: list[Span] = []
        self.restarts_late_s: list[float] = []
        self._job = job
        self._begun = -1, 0.0
        """The number of the last round, and the instant of the monotonic clock at which it began."""
        self._stands_s = 0.0
        """Since this instant the job stands still."""
        self._mark: Mark | None = None
        """What was counted of the network until then is the finished training's."""
        self._kept = 0
        """The iteration that states in memory are at the beginning of; at that of the first there are none."""

    @property
    def exchanged(self) -> Sequence[StateExchange]:
        """What ranks sent each other of their states."""
        return self._job.memory.exchanged

    def __iter__(self) -> Iterator[Round]:
        with self._job.memory as memory:
            there = self._job.foretold[0].replicas
            memory.hand_over(there)
            self._mark = self._job.network.mark()
            going = self._job.begin(there, None, self._note)
            broken_off_s = 0.0
            """What the restart under way has lost to failures in it."""
            copying = isinstance(memory, ShardsMemory)
            """Whether states are kept where shards are copied, and nowhere else."""
            pending: list[Round] = []
            """Behind the last copies."""
            for span in self._job.foretold:
                if span.what is Spending.TRAIN:
                    if span.failure is not None:
                        self._keep(span.iteration)
                        self._fail(going, span)
                    elif copying:
                        pending.append(self._train(going, span))
                    else:
                        yield self._train(going, span)
                    continue
                if span.what is Spending.SAVE:
                    self._copy(span)
                    if span.failure is None:
                        yield from pending
                        pending = []
                    continue
                pending = []  # it goes on from where shards were copied last
                self._keep(span.iteration)
                if span.failure is not None:
                    # nobody is there who could fail: the restart only begins anew, with fewer
                    memory.lose(self._lost(span))
                    broken_off_s += span.seconds
                else:
                    going, broken_off_s = self._restart(span, broken_off_s), 0.0
            yield from pending

    def _note(self, number: int, start_s: float) -> None:
        self._begun = number, start_s

    def _spend(self, span: Span, seconds: float) -> None:
        """It has taken so long."""
        now_s = self.spans[-1].end_s if self.spans else 0.0
        self.spans.append(span._replace(begin_s=now_s, end_s=now_s + seconds))

    def _lost(self, span: Span) -> list[int]:
        """Of the replicas of a span, those that its failure takes."""
        assert span.failure is not None
        return sorted(lost_replicas(self._job.job, span.failure).intersection(span.replicas))

    def _train(self, going: WitnessedRounds, span: Span) -> Round:
        ended = next(going)
        took_s = ended.row(0).makespan_s
        self._spend(span, took_s)
        self._stands_s = self._begun[1] + took_s
        ranks = ranks_of(self._job.job, span.replicas)
        records = [record.numbered_as(ranks, span.replicas) for record in ended.records[0]]
        return ended._replace(records={0: records}, n_ranks=self._job.job.mesh.size)

    def _fail(self, going: WitnessedRounds, span: Span) -> None:
        """An iteration in which workers fail, and with them their replicas. Raises RunFailed when they do not."""
        fails = self._failing(span)
        going.fail(fails)
        try:
            next(going)
        except RunFailed:
            if self._begun[0] != span.iteration:
                raise
        self._failed(span, fails, self._begun[1])

    def _failing(self, span: Span) -> FailAt:
        """Who fails in a span, as ranks count in it, and how long after its beginning."""
        assert span.failure is not None
        ranks = ranks_of(self._job.job, span.replicas)
        failed = failed_ranks(self._job.job, span.failure).intersection(ranks)
        return FailAt(frozenset(map(ranks.index, failed)), span.seconds)

    def _failed(self, span: Span, fails: FailAt, began_s: float) -> None:
        """They fail in a span, which began at this instant. Raises RunFailed when they do not."""
        self._job.workers.await_failure(fails.ranks)
        self._job.memory.lose(self._lost(span))
        self._stands_s = began_s + span.seconds
        self._spend(span, span.seconds)

    def _copy(self, span: Span) -> None:
        """Shards are copied to the next replicas; workers may fail meanwhile. Raises RunFailed."""
        memory = self._job.memory
        assert isinstance(memory, ShardsMemory)  # others have nothing to copy
        fails = None if span.failure is None else self._failing(span)
        try:
            took_s = memory.copy(span.replicas, fails, span.seconds)
        except RunFailed:
            if fails is None:
                raise
        if fails is not None:
            self._failed(span, fails, memory.began_s)
            return
        self._spend(span, took_s)
        self._stands_s = memory.began_s + took_s
        self._kept, self._mark = span.iteration, self._job.network.mark()

    def _keep(self, iteration: int) -> None:
        """Before an iteration that will be broken off, or that others begin: that all ranks have in their memory what
        they had as it began. They would write it at every boundary; what nobody will read is left out. Shards are
        kept where they are copied, and nowhere else."""
        if self._kept != iteration and not isinstance(self._job.memory, ShardsMemory):
            time.sleep(acknowledged_s(self._job.plan, self._job.case))
            self._job.memory.keep()
            self._kept, self._mark = iteration, self._job.network.mark()

    def _restart(self, span: Span, broken_off_s: float) -> WitnessedRounds:
        """New workers of the replicas that are there, which go on from their own memory, or are sent it."""
        assert self._mark is not None
        plan, _ = with_replicas(self._job.plan, self._job.case, span.replicas)
        self._job.workers.regroup(ranks_of(self._job.job, span.replicas), neighbours_of(plan, plan.jobs[0]))
        self._job.memory.hand_over(span.replicas)
        begins_s = self._stands_s + broken_off_s + span.ahead_s
        late_s = max(0.0, time.monotonic() - begins_s)
        if span.iteration:
            expected_s = span.seconds - span.ahead_s
            ended_s = self._job.memory.send(span.replicas, span.joining, begins_s, expected_s)
            late_s = self._job.memory.late_s
        else:
            time.sleep(max(0.0, begins_s - time.monotonic()))
            ended_s = time.monotonic()
        self.restarts_late_s.append(late_s)
        self._spend(span, ended_s - self._stands_s)
        self._mark = self._job.network.leave_out(self._mark)
        saved = self._job.memory.version if span.iteration else None
        return self._job.begin(span.replicas, Resumed(span.iteration, saved), self._note)
