"""`search`: better than the greedy in seconds: steer the greedy with costs that are not quite true, then move actions.

CrossUDSub's order depends on what it believes durations, delays and wire times to be. Its memory accounting does not:
whatever it believes, the order it makes is valid. So an evolution strategy over believed costs (one factor per rank and
kind, one per link, the number of sub-blocks) searches among valid schedules, each judged by the event model on the true
costs. The first candidates are the greedy itself and the static schedules that fit: the result is never worse. What it
found is then improved action by action (local_search.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.model.bounds import lower_bound
from testbed.pipeline.ir import Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.memory import peaks
from testbed.pipeline.problem import Problem
from testbed.pipeline.ticks import in_ticks
from testbed.schedule.family import Family
from testbed.schedule.greedy import DEFAULT_SUB_BLOCKS, crosspipe_greedy
from testbed.schedule.zb_h1 import zb_h1
from testbed.schedule.zb_h2 import zb_h2

SUB_BLOCKS = (1, 2, 3, 4, 6, 8)
MOST_EVALUATIONS = 600
EVALUATED_ACTIONS = 3_000_000
"""Evaluations are cut so that about this many actions are scheduled in all: a few seconds."""

MOVES_PER_EVALUATION = 20

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
            backward_s=(),  # a belief, like the others: what is made with it is timed with the true costs
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


def search(
    problem: Problem,
    evaluations: Annotated[int | None, Field(ge=1, le=10**6)] = None,
    seed: Annotated[int, Field(ge=0)] = 1,
) -> Schedule:
    """The best schedule found for one stage per rank; the same seed gives the same schedule.

    `evaluations` of steered greedies (default 600, fewer for large plans) are followed by MOVES_PER_EVALUATION times as
    many moves of single actions. A schedule that meets the lower bound ends the search. Raises BadInput where the
    greedy does.
    """
    # compiled code, slow to import: only where it is used
    from testbed.model.compiled import makespan
    from testbed.schedule.greedy_compiled import greedy_rows
    from testbed.schedule.local_search import improve

    problem = in_ticks(problem)  # whatever is compared below comes out the same in every unit
    actions = 3 * problem.n_ranks * problem.n_microbatches
    budget = evaluations or min(MOST_EVALUATIONS, max(12, EVALUATED_ACTIONS // actions))
    good_enough_s = lower_bound(problem).seconds * (1 + 1e-9)
    starts = [crosspipe_greedy(problem), *(s for s in (zb_h1(problem), zb_h2(problem)) if _fits(s, problem))]
    best = min(starts, key=lambda schedule: makespan(problem, schedule))
    best_s = makespan(problem, best)
    parent = _Beliefs(np.zeros((problem.n_ranks, 3)), np.zeros((len(problem.links), 2)), DEFAULT_SUB_BLOCKS)
    parent_s = makespan(problem, starts[0])
    generator = np.random.default_rng(seed)
    sigma = _SIGMA
    for trial in range(budget):
        if best_s <= good_enough_s:
            return best.renamed("search")
        # every number of sub-blocks is tried with the true costs before beliefs are
        if trial < len(SUB_BLOCKS):
            beliefs = replace(parent, n_sub=SUB_BLOCKS[trial])
        else:
            beliefs = parent.mutated(generator, sigma)
        rows = greedy_rows(beliefs.applied(problem), beliefs.n_sub)
        schedule = Schedule("search", rows, problem.stage_to_rank, problem.n_microbatches)
        seconds = makespan(problem, schedule)
        if seconds <= parent_s:
            sigma = min(1.0, sigma * _WIDER) if seconds < parent_s else sigma
            parent, parent_s = beliefs, seconds
        else:
            sigma = max(0.05, sigma * _NARROWER)
        if seconds < best_s:
            best, best_s = schedule, seconds
    moved = (improve(problem, start, MOVES_PER_EVALUATION * budget, seed) for start in (best, *starts))
    return min([best, *moved], key=lambda schedule: makespan(problem, schedule)).renamed("search")


def _fits(schedule: Schedule, problem: Problem) -> bool:
    return all(peak <= limit for peak, limit in zip(peaks(schedule, problem), problem.memory_limit, strict=True))


FAMILY = Family(
    search, "ours: the greedy steered by an evolution strategy, judged by the event model", uses_spare_memory=True
)
