"""`search`: better than the greedy in seconds, by steering the greedy with costs that are not quite true.

CrossUDSub's order depends on what it believes durations, delays and wire times to be. Its memory accounting does not:
whatever it believes, the order it makes is valid. So an evolution strategy over believed costs (one factor per rank and
kind, one per link, the number of sub-blocks) searches among valid schedules, each judged by the event model on the true
costs. The first candidate is the greedy itself: the result is never worse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from testbed.schedule.greedy import DEFAULT_SUB_BLOCKS
from testbed.schedule.ir import Schedule
from testbed.schedule.problem import LinkCost, Problem

SUB_BLOCKS = (1, 2, 3, 4, 6, 8)
MOST_EVALUATIONS = 600
EVALUATED_ACTIONS = 3_000_000
"""Evaluations are cut so that about this many actions are scheduled in all: a few seconds."""

_SIGMA = 0.35
_WIDER, _NARROWER = 1.15, 0.97


@dataclass(frozen=True)
class _Beliefs:
    """Factors on the true costs (natural logarithms), and the number of sub-blocks."""

    ranks: NDArray[np.float64]
    """(P, 3): F, I, W"""
    links: NDArray[np.float64]
    """(links, 2): delay, wire time"""
    n_sub: int

    def applied(self, problem: Problem) -> Problem:
        rank_factors, link_factors = np.exp(self.ranks), np.exp(self.links)
        stages = problem.stage_to_rank
        return replace(
            problem,
            forward_s=tuple(t * rank_factors[r, 0] for t, r in zip(problem.forward_s, stages, strict=True)),
            input_s=tuple(t * rank_factors[r, 1] for t, r in zip(problem.input_s, stages, strict=True)),
            weight_s=tuple(t * rank_factors[r, 2] for t, r in zip(problem.weight_s, stages, strict=True)),
            links=tuple(
                LinkCost(link.delay_s * delay, link.seconds_per_byte * wire)
                for link, (delay, wire) in zip(problem.links, link_factors, strict=True)
            ),
        )

    def mutated(self, generator: np.random.Generator, sigma: float) -> _Beliefs:
        def moved(values: NDArray[np.float64]) -> NDArray[np.float64]:
            chosen = generator.random(values.shape) < 0.4
            return values + chosen * generator.normal(0.0, sigma, values.shape)

        n_sub = int(generator.choice(SUB_BLOCKS)) if generator.random() < 0.25 else self.n_sub
        return _Beliefs(moved(self.ranks), moved(self.links), n_sub)


def search(problem: Problem, evaluations: int | None = None, seed: int = 1) -> Schedule:
    """The best schedule found for one stage per rank; the same seed gives the same schedule.

    `evaluations` defaults to 600, fewer for large plans. Raises BadInput where the greedy does.
    """
    from testbed.model.compiled import makespan
    from testbed.schedule.greedy import crosspipe_greedy
    from testbed.schedule.greedy_compiled import greedy_rows

    actions = 3 * problem.n_ranks * problem.n_microbatches
    budget = evaluations or min(MOST_EVALUATIONS, max(12, EVALUATED_ACTIONS // actions))
    best = crosspipe_greedy(problem).renamed("search")
    best_s = makespan(problem, best)
    parent = _Beliefs(np.zeros((problem.n_ranks, 3)), np.zeros((len(problem.links), 2)), DEFAULT_SUB_BLOCKS)
    generator = np.random.default_rng(seed)
    sigma = _SIGMA
    for trial in range(budget):
        # every number of sub-blocks is tried with the true costs before beliefs are
        beliefs = (
            replace(parent, n_sub=SUB_BLOCKS[trial]) if trial < len(SUB_BLOCKS) else parent.mutated(generator, sigma)
        )
        rows = greedy_rows(beliefs.applied(problem), beliefs.n_sub)
        schedule = Schedule("search", rows, problem.stage_to_rank, problem.n_microbatches)
        seconds = makespan(problem, schedule)
        if seconds <= best_s:
            sigma = min(1.0, sigma * _WIDER) if seconds < best_s else sigma
            parent, best, best_s = beliefs, schedule, seconds
        else:
            sigma = max(0.05, sigma * _NARROWER)
    return best
