"""When jobs that share links should begin: the search for their starts, whoever judges them.

No two jobs are moved against each other by more than a bound. Every job is tried at as many places to either side of
the others, then closer around the best of these; which of them begins later is searched, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Starts = tuple[float, ...]
"""Per job, seconds from the common start."""

_ROUNDS = 4
"""One job after the other, so many times at most."""

_FINER = 5
"""How often the steps are halved around the best offsets."""

_FOLLOWED = 8
"""So many of the best places of the steps that are no worse than their neighbours are looked at more closely: what lies
between two steps is up to a step shorter, and the fourth best has been the way to the best."""

_DRAWN = 4
"""With more than two jobs, so many beginnings by chance beside all at once."""


class StartSearch(NamedTuple):
    """What a search goes by."""

    offer: Callable[[Starts], tuple[float, ...]]
    """What starts are worth, which have been normalised; the smaller the better."""
    over: Callable[[], bool]
    """Whether nothing more should be tried."""
    order: Sequence[int]
    """Of the jobs, in which they are moved: the same, however they were listed."""
    bound_s: float
    """By which two jobs are apart at most."""
    steps: int
    """Places to either side."""


def normalised(starts_s: Sequence[float]) -> Starts:
    """As only differences count, the first of them begins at 0."""
    first = min(starts_s)
    return tuple(begin_s - first for begin_s in starts_s)


def best_starts(search: StartSearch, begin: Starts) -> Starts:
    """The best found, one job after the other while the others are where they are; `begin` if none is better.

    With more than two jobs also from offsets drawn at random (always the same): one job at a time may find nothing.
    """
    jobs = search.order
    if len(jobs) < 2:
        return begin
    draw, found = np.random.default_rng(1), [_one_by_one(search, begin)]
    for _ in range(_DRAWN if len(jobs) > 2 else 0):
        offsets = dict(zip(jobs, (draw.random(len(jobs)) * search.bound_s).tolist(), strict=True))
        drawn = normalised([offsets[job] for job in range(len(jobs))])
        if not search.over():
            found.append(_one_by_one(search, drawn))
    return min((begin, *found), key=search.offer)


def _one_by_one(search: StartSearch, starts_s: Starts) -> Starts:
    """The best offset of one job after the other, until none is better."""
    key, order = search.offer(starts_s), search.order
    # of two jobs, moving either one is the same
    for _ in range(_ROUNDS if len(order) > 2 else 1):
        for job in order[1:]:
            starts_s = _moved(search, starts_s, job)
        if len(order) > 2:
            starts_s = _moved(search, starts_s, order[0])
        if search.offer(starts_s) >= key:
            break
        key = search.offer(starts_s)
    return starts_s


def _moved(search: StartSearch, starts_s: Starts, job: int) -> Starts:
    """The best offset of one job: at every step, then closer around the best of them."""
    now_s, others_s = starts_s[job], starts_s[:job] + starts_s[job + 1 :]
    # a job that begins further from the others by itself may stay where it is, and come nearer
    least = min(max(others_s) - search.bound_s, now_s)
    most = max(min(others_s) + search.bound_s, now_s)

    def at(begin_s: float) -> Starts:
        return normalised([*starts_s[:job], begin_s, *starts_s[job + 1 :]])

    def worth(begin_s: float) -> tuple[tuple[float, ...], float]:
        # nothing new is judged when it is over
        return (search.offer(at(begin_s)) if not search.over() else (math.inf,)), abs(begin_s - now_s)

    count = 2 * search.steps
    grid = sorted({now_s, *(least + (most - least) * step / count for step in range(count + 1))})
    found = [(worth(begin_s), begin_s) for begin_s in grid]
    valleys = [
        tried
        for place, tried in enumerate(found)
        if all(tried[0][0] <= beside[0][0] for beside in found[max(0, place - 1) : place + 2])
    ]
    for _, near in sorted(valleys)[:_FOLLOWED]:
        step_s, best = (most - least) / count, (worth(near), near)
        for _ in range(_FINER):
            step_s /= 2
            around = (begin_s for begin_s in (best[1] - step_s, best[1] + step_s) if least <= begin_s <= most)
            best = min(best, *((worth(begin_s), begin_s) for begin_s in around))
        found.append(best)
    return min((starts_s, at(min(found)[1])), key=search.offer)
