"""How a training goes on with the replicas that are left, span by span, from what its iterations take with each set.

As in spans.py a session plays what is foretold here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from testbed.goodput.spans import Going, KeptIn, Span, Spending
from testbed.plan.recovery import Elastic, Failure
from testbed.plan.shard_copies import Replicas, all_held


class ElasticTimes(NamedTuple):
    """What a training takes."""

    iteration_s: Callable[[Replicas, int], float]
    """With these replicas, the iteration of a number."""
    send_s: Callable[[Replicas, Replicas, Replicas], float]
    """With all of the first replicas, for what they lack to come: the second have no state, and where they share an
    optimizer the third had its shards."""
    copy_s: Callable[[Replicas], float] | None = None
    """With these replicas, for a copy of each shard to come to the next one; None where every replica has all."""


def foretold_elastic(
    times: ElasticTimes,
    iterations: int,
    replicas: int,
    elastic: Elastic,
    failures: Sequence[Failure],
    lost_with: Callable[[Failure], Collection[int]],
) -> list[Span]:
    """All spans of a training of so many iterations, which begins with so many replicas; `lost_with` a failure are
    these of them.

    A failure ends the iteration under way, which those that are left begin again behind a restart; a failure of
    replicas that are away does nothing. One while workers restart has the restart begin anew. Replicas that are back
    are taken in by the next restart, or at the next boundary between iterations, which is one for them. They are sent
    states unless nothing is trained yet: weights are drawn then, alike everywhere. Where no replica is left that has a
    state, the last span has the failure that was one too many.

    Where they share an optimizer every `elastic.every` iterations each shard is copied, and training goes on from the
    last boundary at which all were: shards are cut anew among those that are there, and replicas that are back are
    taken in at such a boundary alone. The last failure is the one that takes a shard and its copy, if one does.
    """
    course = _Course(times, elastic, lost_with, [one for one in reversed(failures) if lost_with(one)], replicas)
    iteration = 0
    while iteration < iterations:
        train_s = times.iteration_s(course.there, iteration)
        lost = course.spend(Span(Spending.TRAIN, iteration, 0.0, train_s))
        iteration += not lost
        if iteration == iterations:
            break
        if not lost:
            lost = course.keep(iteration)
        if not (lost or course.returning(iteration)):
            continue
        if not course.restart(lost):
            break
        iteration = course.kept
    return course.going.spans


class _Course:
    """How far a training has come."""

    def __init__(
        self,
        times: ElasticTimes,
        elastic: Elastic,
        lost_with: Callable[[Failure], Collection[int]],
        coming: list[Failure],
        replicas: int,
    ) -> None:
        """`coming` are the failures, the next one last."""
        self._times, self._elastic, self._lost_with, self._coming = times, elastic, lost_with, coming
        self.going = Going([])
        self.there: Replicas = tuple(range(replicas))
        self.kept = 0
        """The iteration ahead of which states were kept last."""
        self._kept_by = self.there
        self._back: list[tuple[float, int]] = []
        """When replicas that are away can be back, a heap."""

    def spend(self, span: Span) -> set[int]:
        """Go through a span with the replicas that are there; returns those that are lost in it."""
        going, repair_s = self.going, self._elastic.repair_s
        span = span._replace(replicas=self.there)
        while self._coming and going.now_s + span.seconds > self._coming[-1].at_s:
            going.left = [failure := self._coming.pop()]
            if gone := set(self._lost_with(failure)).intersection(self.there):
                going.spend(span)
                for replica in gone if repair_s is not None else ():
                    heapq.heappush(self._back, (going.now_s + (repair_s or 0.0), replica))
                return gone
        going.left = []
        going.spend(span)
        return set()

    def keep(self, iteration: int) -> set[int]:
        """States are kept ahead of an iteration, where they are to be; returns the replicas that are lost meanwhile."""
        copy_s, lost = self._times.copy_s, set[int]()
        if copy_s is not None:
            if iteration % self._elastic.every:
                return lost
            lost = self.spend(Span(Spending.SAVE, iteration, 0.0, copy_s(self.there), held=(KeptIn.MEMORY,)))
        if not lost:
            self.kept, self._kept_by = iteration, self.there
        return lost

    def returning(self, iteration: int) -> bool:
        """Whether some replica is taken in ahead of an iteration."""
        return self.kept == iteration and self._is_back()

    def _is_back(self) -> bool:
        return bool(self._back) and self._back[0][0] <= self.going.now_s

    def restart(self, lost: Collection[int]) -> bool:
        """Go on without those that are lost, and with those that are back; whether anybody can."""
        have, joining = self._without(lost, self.there), Replicas()
        while self._can_go_on(have):
            while self._is_back():
                joining = tuple(sorted({*joining, heapq.heappop(self._back)[1]}))
            self.there = tuple(sorted((*have, *joining)))
            lack = self.kept and (joining or self._times.copy_s is not None)
            send_s = self._times.send_s(self.there, joining, self._kept_by) if lack else 0.0
            slot_s = self._elastic.restart_s
            span = Span(Spending.RESTART, self.kept, 0.0, slot_s + send_s, ahead_s=slot_s, joining=joining)
            lost = self.spend(span)
            have, joining = self._without(lost, have), self._without(lost, joining)
            if not lost:
                self._kept_by = self.there
                return True
        return False

    def _can_go_on(self, have: Replicas) -> bool:
        """Whether replicas have all that is needed, of which these have what they kept."""
        shared = self.kept and self._times.copy_s is not None
        return bool(have) and (not shared or all_held(self._kept_by, have))

    def _without(self, lost: Collection[int], replicas: Replicas) -> Replicas:
        return tuple(replica for replica in replicas if replica not in lost)


def ends_early(spans: Sequence[Span]) -> Failure | None:
    """The failure behind which nobody can go on; None where all iterations are trained."""
    return spans[-1].failure


def sets_of_rounds(spans: Sequence[Span]) -> list[Replicas]:
    """Of every iteration of the finished training, the replicas that took part."""
    last = {span.iteration: span.replicas for span in spans if span.what is Spending.TRAIN and span.failure is None}
    return [last[iteration] for iteration in range(len(last))]


def continued(spans: Sequence[Span]) -> list[int]:
    """The iterations that are the first of others than before."""
    return sorted({span.iteration for span in spans if span.what is Spending.RESTART})
