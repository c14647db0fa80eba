"""How a training goes on with the replicas that are left, span by span, from what its iterations take with each set.

As in spans.py a session plays what is foretold here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from testbed.goodput.spans import Going, Span, Spending
from testbed.plan.recovery import Elastic, Failure

Replicas = tuple[int, ...]
"""Their numbers in the whole job, ascending."""


class ElasticTimes(NamedTuple):
    """What a training takes."""

    iteration_s: Callable[[Replicas, int], float]
    """With these replicas, the iteration of a number."""
    send_s: Callable[[Replicas, Replicas], float]
    """With all of the first replicas, for the states of the second to come from others of them."""


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
    """
    going = Going([])
    coming = [failure for failure in reversed(failures) if lost_with(failure)]
    there, back, iteration = tuple(range(replicas)), list[tuple[float, int]](), 0
    """`back`: when replicas that are away can be back, a heap."""

    def spend(span: Span, with_them: Collection[int]) -> set[int]:
        """Go through a span; returns the replicas that are lost in it, of these."""
        while coming and going.now_s + span.seconds > coming[-1].at_s:
            going.left = [failure := coming.pop()]
            if gone := set(lost_with(failure)).intersection(with_them):
                going.spend(span)
                for replica in gone if elastic.repair_s is not None else ():
                    heapq.heappush(back, (going.now_s + (elastic.repair_s or 0.0), replica))
                return gone
        going.left = []
        going.spend(span)
        return set()

    while iteration < iterations:
        train_s = times.iteration_s(there, iteration)
        lost = spend(Span(Spending.TRAIN, iteration, 0.0, train_s, replicas=there), there)
        iteration += not lost
        if iteration == iterations or not (lost or (back and back[0][0] <= going.now_s)):
            continue
        have = tuple(replica for replica in there if replica not in lost)
        joining: Replicas = ()
        restarting = True
        while restarting:
            if not have:
                return going.spans
            while back and back[0][0] <= going.now_s:
                joining = tuple(sorted({*joining, heapq.heappop(back)[1]}))
            there = tuple(sorted((*have, *joining)))
            send_s = times.send_s(there, joining) if joining and iteration else 0.0
            restart = Span(Spending.RESTART, iteration, 0.0, elastic.restart_s + send_s, ahead_s=elastic.restart_s)
            lost = spend(restart._replace(replicas=there, joining=joining), there)
            have, joining = (tuple(replica for replica in each if replica not in lost) for each in (have, joining))
            restarting = bool(lost)
    return going.spans


def ends_early(spans: Sequence[Span], iterations: int) -> Failure | None:
    """The failure behind which no replica is left; None where all iterations are trained."""
    last = spans[-1]
    return None if last.what is Spending.TRAIN and last.iteration == iterations - 1 else last.failure


def sets_of_rounds(spans: Sequence[Span]) -> list[Replicas]:
    """Of every iteration of the finished training, the replicas that took part."""
    last = {span.iteration: span.replicas for span in spans if span.what is Spending.TRAIN and span.failure is None}
    return [last[iteration] for iteration in range(len(last))]


def continued(spans: Sequence[Span]) -> list[int]:
    """The iterations that are the first of others than before."""
    return sorted({span.iteration for span in spans if span.what is Spending.RESTART})
