"""How a training with checkpoints and failures goes, span by span, from what its iterations take.

A session plays what is foretold here: it has workers fail where failures fall, and waits out the slots of saving and
restarting. So what is measured differs from it only by what iterations and states on the links really take, and by what
does not fit its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from testbed.plan.recovery import Checkpoints, Failure, Recovery


class Spending(Enum):
    """What a job does with its time. The words are those of comparison.json."""

    TRAIN = "train"
    SAVE = "save"
    RESTART = "restart"


class KeptIn(Enum):
    """What a checkpoint is kept in; the beginning is as one on disk. The words are those of comparison.json."""

    MEMORY = "memory"
    DISK = "disk"


class Span(NamedTuple):
    """A stretch of a job's time."""

    what: Spending
    iteration: int
    """That is trained, or, of saving and restarting, that comes next."""
    begin_s: float
    end_s: float
    failure: Failure | None = None
    """What ends it before its time."""
    held: tuple[KeptIn, ...] = ()
    """Of saving, what the state goes into; of a restart, the one that it comes from."""
    ahead_s: float = 0.0
    """Of a restart, and of saving in memory, the slot ahead of what goes over links."""
    disk_s: float = 0.0
    """Of saving on disk, the slot of that."""
    lost: frozenset[int] = frozenset()
    """Of a restart, the ranks that have lost what they held in memory."""
    replicas: tuple[int, ...] = ()
    """Those that train, or that go on behind a restart; () where they are always all."""
    joining: tuple[int, ...] = ()
    """Of a restart, those of them that are back, and have no state yet."""

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end_s - self.begin_s


class Shares(NamedTuple):
    """What a job's time went into, in seconds."""

    kept_s: float
    """Iterations as the finished training has them; where replicas were away, for the share that took part."""
    lost_s: float
    """Iterations that no checkpoint had, and those that a failure broke off."""
    saving_s: float
    restarting_s: float
    away_s: float = 0.0
    """The rest of iterations as the finished training has them, for the share of replicas that were away."""

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(self)

    @property
    def goodput(self) -> float:
        """The share of a job's time that trained what is kept: effective training time over wall time."""
        return self.kept_s / self.total_s


class Keeping(NamedTuple):
    """Where ranks keep their state, and what it takes beside the slots."""

    ranks_of: Callable[[Failure], frozenset[int]]
    """The ranks that fail with a failure; one of none is none."""
    send_s: float = 0.0
    """For every rank's state to come to its neighbour."""
    send_again_s: Callable[[frozenset[int]], float | None] = lambda lost: 0.0
    """For every state to be on two nodes again where the memory of these ranks is lost; None where some state is on
    none."""


ON_DISK = Keeping(lambda failure: frozenset(() if failure.rank is None else (failure.rank,)))
"""Where nobody keeps another one's state, and failures are of ranks."""


def foretold(
    iteration_s: Callable[[int], float], iterations: int, recovery: Recovery, keeping: Keeping = ON_DISK
) -> list[Span]:
    """All spans of a training of so many iterations, each of which takes `iteration_s` of its number.

    A failure at the very end of a span comes in the next one. The beginning is a checkpoint that costs nothing; behind
    the last iteration there is none. A failure while workers restart has the restart begin anew. A restart waits until
    nobody is cut off any more, and where somebody was until that was noticed.
    """
    assert recovery.checkpoints is not None
    coming = [failure for failure in recovery.failures if keeping.ranks_of(failure)]
    going = Going(list(reversed(coming)))
    checkpoints, memory, iteration = recovery.checkpoints, recovery.checkpoints.memory, 0
    last = {KeptIn.DISK: 0}
    """What each checkpoint that is there begins with."""
    while iteration < iterations:
        failure = going.spend(Span(Spending.TRAIN, iteration, 0.0, iteration_s(iteration)))
        if failure is None:
            iteration += 1
            if iteration % checkpoints.every or iteration == iterations:
                continue
            save = _saving(iteration, checkpoints, keeping)
            failure = going.spend(save)
            if failure is None:
                last |= dict.fromkeys(save.held, iteration)
        lost: frozenset[int] = frozenset()
        waits_until_s = 0.0
        while failure is not None:
            if failure.cut_s is None:
                lost |= keeping.ranks_of(failure)
            else:
                waits_until_s = max(waits_until_s, failure.at_s + max(failure.cut_s, checkpoints.notice_s))
            again_s = keeping.send_again_s(lost) if KeptIn.MEMORY in last else None
            if again_s is None:
                last.pop(KeptIn.MEMORY, None)
            held_in = KeptIn.DISK if again_s is None else KeptIn.MEMORY
            iteration = last[held_in]
            ahead_s = max(0.0, waits_until_s - going.now_s) + checkpoints.restart_s
            span = Span(Spending.RESTART, iteration, 0.0, ahead_s + (again_s or 0.0), None, (held_in,), ahead_s)
            failure = going.spend(span if memory is None else span._replace(lost=lost))
    return going.spans


def _saving(iteration: int, checkpoints: Checkpoints, keeping: Keeping) -> Span:
    """The next checkpoint, ahead of an iteration, from 0 on."""
    slot_s, memory = checkpoints.save_s, checkpoints.memory
    if memory is None:
        return Span(Spending.SAVE, iteration, 0.0, slot_s, None, (KeptIn.DISK,), 0.0, slot_s)
    disk = memory.disk_every is not None and iteration % memory.disk_every == 0
    disk_s, held = (memory.disk_save_s, (KeptIn.MEMORY, KeptIn.DISK)) if disk else (0.0, (KeptIn.MEMORY,))
    return Span(Spending.SAVE, iteration, 0.0, slot_s + keeping.send_s + disk_s, None, held, slot_s, disk_s)


@dataclass
class Going:
    """How far a training has come."""

    left: list[Failure]
    """Failures to come, the next one last."""
    spans: list[Span] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """Of the job's own time."""
        return self.spans[-1].end_s if self.spans else 0.0

    def spend(self, span: Span) -> Failure | None:
        """Go through a span, which has its length; returns what ends it before its time."""
        now_s = self.now_s
        seconds, left = span.seconds, self.left
        failure = left.pop() if left and left[-1].at_s < now_s + seconds else None
        end_s = now_s + seconds if failure is None else max(now_s, failure.at_s)
        self.spans.append(span._replace(begin_s=now_s, end_s=end_s, failure=failure))
        return failure


def shares_of(spans: Sequence[Span], replicas: int = 1) -> Shares:
    """What the time of a finished training went into; `replicas` are those of the whole job."""
    last = {span.iteration: place for place, span in enumerate(spans) if span.what is Spending.TRAIN}
    seconds = dict.fromkeys(Spending, 0.0)
    for span in spans:
        seconds[span.what] += span.seconds
    kept = [spans[place] for place in last.values()]
    whole_s = sum(span.seconds for span in kept)
    away_s = sum(span.seconds * (1 - len(span.replicas) / replicas) for span in kept if span.replicas)
    lost_s = seconds[Spending.TRAIN] - whole_s
    return Shares(whole_s - away_s, lost_s, seconds[Spending.SAVE], seconds[Spending.RESTART], away_s)
