"""How well jobs fit on the links that they share: CASSINI's compatibility score, and the shifts that make it largest.

The score is that of Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters" (NSDI'24,
arXiv:2308.00852), as a re-implementation of it has it; we know the paper's abstract, not its body. Every job's demand
on a link is laid around a circle as long as its iteration (for iterations of several lengths: a common multiple of
them), a shift turns it, and

    score = 1 - mean over the circle of max(0, sum of the demands - rate of the link) / rate of the link

so that 1 says that the link never has more to carry than it can. Ours: the circle is cut into steps; a demand is the
mean over a step; the shifts of all jobs are searched for all shared links at once, by the mean of their scores. The
paper finds shifts link by link and joins them along a graph of jobs and links, which must have no loops: two jobs that
share both directions of a link already make one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats

MOST_CIRCLE = 128
"""Shortest iterations in a circle at most: behind them a common multiple counts as reached."""

_EXHAUSTIVE = 10_000
"""Combinations of shifts that are all tried; of more, one job after the other is moved, from several beginnings."""

_BEGINNINGS = 8
_DIGITS = 9
"""Of a score: what differs by less is the same."""


class DemandSpan(NamedTuple):
    """A job sends at `rate_bps` from one time to another, in seconds from its own start."""

    begin_s: float
    end_s: float
    rate_bps: float


class SharedLink(NamedTuple):
    """A direction, and what each job wants of it."""

    rate_bps: float
    demands_bps: tuple[Floats, ...]
    """Per job, the mean demand in every step of its iteration."""


def demand_of(spans: Sequence[DemandSpan], step_s: float, steps: int) -> Floats:
    """The mean demand in each of `steps` of an iteration; what comes later goes on at its beginning."""
    found = np.zeros(steps)
    for span in spans:
        first, last = math.floor(span.begin_s / step_s), math.ceil(span.end_s / step_s)
        edges = np.clip(np.arange(first, last + 1) * step_s, span.begin_s, span.end_s)
        np.add.at(found, np.arange(first, last) % steps, np.diff(edges) * span.rate_bps / step_s)
    return found


def circle_of(steps: Sequence[int]) -> int:
    """Steps of the circle for iterations of so many: their least common multiple, or MOST_CIRCLE of the shortest."""
    return min(math.lcm(*steps), MOST_CIRCLE * min(steps))


def score(link: SharedLink, shifts: Sequence[int]) -> float:
    """The compatibility score of a link with every job so many steps later; at most 1."""
    around = np.arange(circle_of([len(demand) for demand in link.demands_bps]))
    wanted = np.zeros(len(around))
    for demand, shift in zip(link.demands_bps, shifts, strict=True):
        wanted += demand[(around - shift) % len(demand)]
    return float(1 - np.mean(np.maximum(0.0, wanted - link.rate_bps)) / link.rate_bps)


def mean_score(links: Sequence[SharedLink], shifts: Sequence[int]) -> float:
    """Over all links; 1 without any."""
    return sum(score(link, shifts) for link in links) / len(links) if links else 1.0


def best_shifts(links: Sequence[SharedLink], steps: Sequence[int]) -> tuple[int, ...]:
    """Per job, by how many steps it begins later, the first one not at all: with the largest mean score.

    `steps` are those of the iterations. Shifts are from minus to plus half an iteration; of equal scores those that are
    least apart. All are tried where there are few; the same links give the same shifts.
    """
    choices = [range(1), *(range(-((count - 1) // 2), count // 2 + 1) for count in steps[1:])]
    if math.prod(map(len, choices)) <= _EXHAUSTIVE:
        return max(product(*choices), key=lambda shifts: _worth(links, shifts))
    draw, found = np.random.default_rng(1), []
    for number in range(_BEGINNINGS):
        begin = [0 if number == 0 else int(draw.choice(np.array(mine))) for mine in choices]
        found.append(_one_by_one(links, choices, tuple(begin)))
    return max(found, key=lambda shifts: _worth(links, shifts))


def _one_by_one(links: Sequence[SharedLink], choices: Sequence[range], shifts: tuple[int, ...]) -> tuple[int, ...]:
    """The best shift of one job after the other, until none is better."""
    while True:
        before = shifts
        for job, mine in enumerate(choices):
            moved = [(*shifts[:job], shift, *shifts[job + 1 :]) for shift in mine]
            shifts = max((shifts, *moved), key=lambda each: _worth(links, each))
        if shifts == before:
            return shifts


def _worth(links: Sequence[SharedLink], shifts: Sequence[int]) -> tuple[float, int, int]:
    apart = max(shifts) - min(shifts)
    return round(mean_score(links, shifts), _DIGITS), -apart, -sum(map(abs, shifts))
