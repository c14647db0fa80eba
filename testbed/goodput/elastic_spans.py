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
    going = Going([])
    coming = [failure for failure in reversed(failures) if lost_with(failure)]
    there, back, iteration = tuple(range(replicas)), list[tuple[float, int]](), 0
    """`back`: when replicas that are away can be back, a heap."""
    kept, kept_by = 0, there
    """The iteration ahead of which states were kept last, and by whom."""

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
        if iteration == iterations:
            continue
        if times.copy_s is None:
            kept, kept_by = iteration, there
        elif not lost and iteration % elastic.every == 0:
            copying = Span(Spending.SAVE, iteration, 0.0, times.copy_s(there), held=(KeptIn.MEMORY,), replicas=there)
            if not (lost := spend(copying, there)):
                kept, kept_by = iteration, there
        returning = kept == iteration and back and back[0][0] <= going.now_s
        if not (lost or returning):
            continue
        iteration = kept
        have = tuple(replica for replica in there if replica not in lost)
        joining: Replicas = ()
        restarting = True
        while restarting:
            if not have or (iteration and times.copy_s is not None and not all_held(kept_by, have)):
                return going.spans
            while back and back[0][0] <= going.now_s:
                joining = tuple(sorted({*joining, heapq.heappop(back)[1]}))
            there = tuple(sorted((*have, *joining)))
            lack = iteration and (joining or times.copy_s is not None)
            send_s = times.send_s(there, joining, kept_by) if lack else 0.0
            restart = Span(Spending.RESTART, iteration, 0.0, elastic.restart_s + send_s, ahead_s=elastic.restart_s)
            lost = spend(restart._replace(replicas=there, joining=joining), there)
            have, joining = (tuple(replica for replica in each if replica not in lost) for each in (have, joining))
            restarting = bool(lost)
        kept_by = there
    return going.spans


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
