"""Lower bounds from how a pipeline fills and drains: what a rank can have done by a time, through its memory.

Before the first gradients are back a rank can do no more than the forwards that fit into its memory; before the end,
seen backwards, no more than the backwards whose microbatches fit. Both idle times come on top of a rank's work. Amounts
are counted in microbatches per stage and kind, fractions allowed, as the most that any schedule has reached at each
point of a grid of time: by rate, by what has arrived from the neighbouring stage, and by memory. Each count limits
others at later times, so they are tightened in turn; every turn leaves true limits. Sub-blocks, fused backwards and
microbatches in any order are covered: of a fused backward as much of I, of W and of the freed memory is counted as is
done of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.model.grid import time_step_s
from testbed.model.microbatch_path import EarliestStarts
from testbed.model.network import Floats
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem

MOST_POINTS = 2048
MOST_VALUES = 1 << 17
"""Points of the grid over all stages: fewer points where there are many stages."""

MOST_TURNS = 12
"""Enough for memory to go round so many times; a bound of fewer turns is a bound."""


def filling_bounds(problem: Problem, earliest: EarliestStarts, known_s: float) -> tuple[float, ...]:
    """Per rank, seconds that no schedule is faster than; `known_s` is a bound that is known already, above 0."""
    points = max(256, min(MOST_POINTS, MOST_VALUES // problem.n_stages))
    horizon_s = 2 * known_s
    step_s = time_step_s(problem, horizon_s / points)
    counts = _Grid(problem, earliest, step_s, int(horizon_s / step_s) + 1)
    filled, drained = _filled(counts), _drained(counts)
    return tuple(
        _with_idle_times(counts.work_s(rank), filled[rank], drained[rank], step_s, known_s)
        for rank in range(problem.n_ranks)
    )


def _with_idle_times(work_s: float, filled: Floats, drained: Floats, step_s: float, known_s: float) -> float:
    """The least makespan that holds a rank's work, and its idle times at both ends as far as they do not overlap.

    `filled` and `drained` are the most work that is done by each time after the begin, and before the end.
    """
    times = np.arange(len(filled)) * step_s
    front, back = np.maximum.accumulate(times - filled), np.maximum.accumulate(times - drained)
    makespan = max(known_s, work_s)
    while True:
        last = min(int(makespan / step_s + 1e-9), len(times) - 1)  # no schedule ends before: the two are apart
        longer = work_s + float(np.max(front[: last + 1] + back[last::-1]))
        if longer <= makespan * (1 + 1e-12):
            return makespan
        makespan = longer


class _Grid:
    """What both directions share: the grid, limits by rate, shifts in time, and memory."""

    def __init__(self, problem: Problem, earliest: EarliestStarts, step_s: float, points: int) -> None:
        self.problem, self.earliest, self.step_s = problem, earliest, step_s
        self.times = np.arange(points) * step_s
        self.most = float(problem.n_microbatches)
        extra = problem.input_memory or (0.0,) * problem.n_stages
        self.shares = [max(0.0, a + min(0.0, more)) for a, more in zip(problem.activation, extra, strict=True)]
        """Per stage, what is held until W ends: an I may free some of it."""
        self.limits = [limit + TOLERANCE for limit in problem.memory_limit]
        self.stages = [[s for s, r in enumerate(problem.stage_to_rank) if r == rank] for rank in range(problem.n_ranks)]

    def work_s(self, rank: int) -> float:
        """All work of a rank, in the cheaper form of backward."""
        p = self.problem
        return sum(self.most * (p.forward_s[s] + p.least_input_s[s] + p.least_weight_s[s]) for s in self.stages[rank])

    def by_rate(self, begin_s: float, each_s: float) -> Floats:
        """At most so many are done by each time, if each takes `each_s` and none begins before `begin_s`."""
        since = self.times - begin_s
        if each_s <= 1e-9 * self.step_s:
            return np.where(since >= -1e-9 * self.step_s, self.most, 0.0)
        return np.clip(since / each_s, 0.0, self.most)

    def whole(self, amounts: Floats, lag_s: float) -> Floats:
        """How many were complete `lag_s` ago (or will be, below 0)."""
        complete, back = np.floor(amounts + 1e-6), int(np.floor(lag_s / self.step_s + 1e-6))
        if back == 0:
            return complete
        if back > 0:
            return np.concatenate((np.zeros(min(back, len(complete))), complete[:-back]))
        ahead = min(-back, len(complete))
        return np.concatenate((complete[ahead:], np.full(ahead, self.most)))

    def by_memory(self, rank: int, freed: Sequence[Floats], shares: Sequence[float]) -> Floats:
        """The most that each of some stages can have taken, if all take as many, and `freed` of them are freed."""
        order = np.argsort(freed, axis=0)
        given_back, share = np.take_along_axis(np.array(freed), order, 0), np.array(shares)[order]
        shares_so_far, freed_so_far = np.cumsum(share, axis=0), np.cumsum(share * given_back, axis=0)
        most = np.full(len(self.times), self.most)
        for k in range(len(freed)):
            with np.errstate(divide="ignore", invalid="ignore"):
                taken = (self.limits[rank] + freed_so_far[k]) / shares_so_far[k]
            fits = (shares_so_far[k] > 0) & (taken >= given_back[k])
            most = np.where(fits, np.minimum(most, taken), most)
        return most

    def through_memory(self, rank: int, offers: Sequence[tuple[int, float, Floats]]) -> Floats:
        """The most work that goes through memory at once, of offers (stage, seconds of work each, how many)."""
        left, work = np.full(len(self.times), self.limits[rank]), np.zeros(len(self.times))
        for stage, each_s, many in sorted(offers, key=lambda o: self.shares[o[0]] / o[1] if o[1] > 0 else np.inf):
            more = np.maximum(many, 0.0)
            if self.shares[stage] > 0:
                more = np.minimum(more, left / self.shares[stage])
                left = left - more * self.shares[stage]
            work += each_s * more
        return work

    def start(self, begin_s: Sequence[float], each_s: Sequence[float]) -> list[Floats]:
        """Per stage, what is done by rate alone."""
        return [self.by_rate(*pair) for pair in zip(begin_s, each_s, strict=True)]


def _filled(counts: _Grid) -> list[Floats]:
    """Per rank, the most work done by each time after the common start."""
    problem, earliest = counts.problem, counts.earliest
    n, f, i, w = problem.n_stages, problem.forward_s, problem.least_input_s, problem.least_weight_s
    forwards = counts.start(earliest.forward_s, f)
    inputs = counts.start(earliest.input_s, i)
    weights = counts.start(earliest.input_s, [a + b for a, b in zip(i, w, strict=True)])  # each behind its own I
    for _ in range(MOST_TURNS):
        before = sum(float(np.sum(amounts)) for amounts in forwards)
        for s in reversed(range(n)):
            inputs[s] = np.minimum(inputs[s], counts.whole(forwards[s], earliest.away_s[s]))
            if s < n - 1:
                inputs[s] = np.minimum(inputs[s], counts.whole(inputs[s + 1], earliest.up_s[s]))
            weights[s] = np.minimum(weights[s], inputs[s])
        for s in range(n):
            rank = problem.stage_to_rank[s]
            earlier = [u for u in counts.stages[rank] if u <= s]  # have forwarded at least as many
            room = counts.by_memory(rank, [weights[u] for u in earlier], [counts.shares[u] for u in earlier])
            forwards[s] = np.minimum(forwards[s], room)
            if s > 0:
                forwards[s] = np.minimum(forwards[s], counts.whole(forwards[s - 1], earliest.down_s[s - 1]))
        if sum(float(np.sum(amounts)) for amounts in forwards) == before:
            break
    work = []
    for rank, stages in enumerate(counts.stages):
        total = counts.through_memory(rank, [(s, f[s], forwards[s] - weights[s]) for s in stages])
        for s in stages:
            total += i[s] * inputs[s] + w[s] * weights[s] + f[s] * np.minimum(forwards[s], weights[s])
        work.append(np.minimum(total, counts.times))
    return work


def _drained(counts: _Grid) -> list[Floats]:
    """Per rank, the most work done within each time before the end: W first, and memory is taken by it, freed by F."""
    problem, earliest = counts.problem, counts.earliest
    n, f, i, w = problem.n_stages, problem.forward_s, problem.least_input_s, problem.least_weight_s
    weights = counts.start(earliest.reduced_s, w)
    inputs = counts.start(earliest.after_input_s, i)
    forwards = counts.start(earliest.after_forward_s, f)
    for _ in range(MOST_TURNS):
        before = sum(float(np.sum(amounts)) for amounts in weights)
        for s in range(n):
            inputs[s] = np.minimum(inputs[s], weights[s])
            if s > 0:
                inputs[s] = np.minimum(inputs[s], counts.whole(inputs[s - 1], earliest.up_s[s - 1]))
        for s in reversed(range(n)):
            forwards[s] = np.minimum(forwards[s], counts.whole(inputs[s], earliest.away_s[s]))
            if s < n - 1:
                forwards[s] = np.minimum(forwards[s], counts.whole(forwards[s + 1], earliest.down_s[s]))
        for s in range(n):
            room = counts.by_memory(problem.stage_to_rank[s], [forwards[s]], [counts.shares[s]])
            weights[s] = np.minimum(weights[s], room)
        if sum(float(np.sum(amounts)) for amounts in weights) == before:
            break
    work = []
    for rank, stages in enumerate(counts.stages):
        total, offers = np.zeros(len(counts.times)), []
        for s in stages:
            freed, with_input = np.minimum(weights[s], forwards[s]), np.minimum(weights[s], inputs[s])
            total += f[s] * forwards[s] + w[s] * freed + i[s] * np.minimum(freed, inputs[s])
            offers.append((s, w[s] + i[s], with_input - freed))
            offers.append((s, w[s], weights[s] - np.maximum(with_input, freed)))
        total += counts.through_memory(rank, offers)
        work.append(np.minimum(total, counts.times))
    return work
