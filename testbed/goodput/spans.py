"""How a training with checkpoints and failures goes, span by span, from what its iterations take.

A session plays what is foretold here: it has workers fail where failures fall, and waits out the slots of saving and
restarting. So what is measured differs from it only by what iterations really take, and by what does not fit its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from testbed.plan.recovery import Failure, Recovery


class Spending(Enum):
    """What a job does with its time. The words are those of comparison.json."""

    TRAIN = "train"
    SAVE = "save"
    RESTART = "restart"


class Span(NamedTuple):
    """A stretch of a job's time."""

    what: Spending
    iteration: int
    """That is trained, or, of saving and restarting, that comes next."""
    begin_s: float
    end_s: float
    failure: Failure | None = None
    """What ends it before its time."""

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end_s - self.begin_s


class Shares(NamedTuple):
    """What a job's time went into, in seconds."""

    kept_s: float
    """Iterations as the finished training has them."""
    lost_s: float
    """Iterations that no checkpoint had, and those that a failure broke off."""
    saving_s: float
    restarting_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(self)

    @property
    def goodput(self) -> float:
        """The share of a job's time that trained what is kept: effective training time over wall time."""
        return self.kept_s / self.total_s


def foretold(iteration_s: Callable[[int], float], iterations: int, recovery: Recovery) -> list[Span]:
    """All spans of a training of so many iterations, each of which takes `iteration_s` of its number.

    A failure at the very end of a span comes in the next one. The beginning is a checkpoint that costs nothing; behind
    the last iteration there is none.
    """
    checkpoints, left = recovery.checkpoints, list(reversed(recovery.failures))
    spans: list[Span] = []
    now_s, iteration, saved = 0.0, 0, 0

    def spend(what: Spending, seconds: float) -> bool:
        """Whether it comes to its end."""
        nonlocal now_s
        failure = left.pop() if left and left[-1].at_s < now_s + seconds else None
        end_s = now_s + seconds if failure is None else max(now_s, failure.at_s)
        spans.append(Span(what, iteration, now_s, end_s, failure))
        now_s = end_s
        return failure is None

    while iteration < iterations:
        going = spend(Spending.TRAIN, iteration_s(iteration))
        if going:
            iteration += 1
            if iteration % checkpoints.every == 0 and iteration < iterations:
                going = spend(Spending.SAVE, checkpoints.save_s)
                saved = iteration if going else saved
        if not going:
            iteration = saved
            while not spend(Spending.RESTART, checkpoints.restart_s):
                pass
    return spans


def shares_of(spans: Sequence[Span]) -> Shares:
    """What the time of a finished training went into."""
    last = {span.iteration: place for place, span in enumerate(spans) if span.what is Spending.TRAIN}
    seconds = dict.fromkeys(Spending, 0.0)
    for span in spans:
        seconds[span.what] += span.seconds
    kept_s = sum(spans[place].seconds for place in last.values())
    return Shares(kept_s, seconds[Spending.TRAIN] - kept_s, seconds[Spending.SAVE], seconds[Spending.RESTART])
