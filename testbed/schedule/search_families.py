"""`search`: better than the greedy in seconds: steer the greedy with costs that are not quite true, then move actions.

CrossUDSub's order depends on what it believes durations, delays and wire times to be. Its memory accounting does not:
whatever it believes, the order it makes is valid. So an evolution strategy over believed costs (one factor per rank and
kind, one per link, the number of sub-blocks) searches among valid schedules, each judged by the event model on the true
costs. The first candidates are the greedy itself and the static schedules that fit: the result is never worse. What it
found is then improved action by action (local_search.py). With several stages per rank the list scheduler is steered
in the greedy's place (steered_list.py), and its best schedule is annealed before that (anneal.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.model.bounds import lower_bound
from testbed.model.schedule_model import ScheduleModel
from testbed.pipeline.action_columns import ActionColumns, rows_of
from testbed.pipeline.ir import Kind, Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.pipeline.ticks import in_ticks, tick_s
from testbed.schedule.family import Family
from testbed.schedule.greedy import DEFAULT_SUB_BLOCKS, crosspipe_greedy, greedy_actions
from testbed.schedule.hints import best_hint
from testbed.schedule.known import fixed_schedules
from testbed.search.incumbent import Incumbent, Progress, TimeLimit
from testbed.search.steered_list import steered_list

SUB_BLOCKS = (1, 2, 3, 4, 6, 8)
MOST_EVALUATIONS = 600
EVALUATED_ACTIONS = 3_000_000
"""Evaluations are cut so that about this many actions are scheduled in all: a few seconds."""

MOVES_PER_EVALUATION = 100
MOVED_ACTIONS = 60_000_000
"""Moves are cut so that about this many actions are judged for each schedule that is improved: a few seconds.

Where that is less than a move per action `search` makes none: of five drawn problems of 25,000 actions one gained,
0.02 %."""

DEFAULT_TIME_LIMIT_S = 60.0
"""Far more than the evaluations take on an ordinary machine, so that they end the search and it can be repeated."""

STEERED_SHARE = 0.5
"""Share of the time limit that steering the list scheduler may take."""

EvaluationsOption = Annotated[int | None, Field(ge=1, le=10**6)]
Seed = Annotated[int, Field(ge=0)]

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
    evaluations: EvaluationsOption = None,
    seed: Seed = 1,
    time_limit_s: TimeLimit = DEFAULT_TIME_LIMIT_S,
    progress: Progress | None = None,
) -> Schedule:
    """The best schedule found for one stage per rank.

    `evaluations` of steered greedies (default 600, fewer for large plans) are followed by MOVES_PER_EVALUATION times as
    many moves of single actions (fewer for large plans, none for the largest). A schedule that meets the lower bound
    ends the search, and so do `time_limit_s` wall seconds and Ctrl-C, with the best so far. The same seed gives the
    same schedule unless one of these two ended it. Raises BadInput where the greedy does.
    """
    running = _FamilySearch(problem, time_limit_s, progress)
    problem, incumbent = running.problem, running.incumbent
    budget = evaluations or _affordable(problem)
    starts = [*map(crosspipe_greedy, problem.with_each_first()), *fixed_schedules(problem)]
    for start in starts:
        running.offer(start)
    with incumbent.until_interrupted():
        _steer(running, budget, seed)
        worth_moving = _actions(problem) ** 2 <= MOVED_ACTIONS
        for start in (incumbent.best, *filter(_splits, starts)) if worth_moving else ():
            running.improve(start, _moves(problem, budget), seed)
    return incumbent.best.renamed("search")


def search_chunks(
    problem: Problem,
    evaluations: EvaluationsOption = None,
    seed: Seed = 1,
    time_limit_s: TimeLimit = DEFAULT_TIME_LIMIT_S,
    progress: Progress | None = None,
) -> Schedule:
    """The best schedule of whole blocks found for a placement of several stages per rank; otherwise as `search`.

    `evaluations` are of the steered list scheduler, beside the placement's known schedules (known.py, hints.py). The
    best one of whole blocks is annealed (anneal.py) before actions are moved.
    """
    running = _FamilySearch(problem, time_limit_s, progress)
    problem, incumbent = running.problem, running.incumbent
    budget = evaluations or _affordable(problem)
    hint = best_hint(problem, time_limit_s=0.0)
    for start in (*fixed_schedules(problem), hint):
        running.offer(start)
    with incumbent.until_interrupted():
        steered = steered_list(problem, budget, STEERED_SHARE * time_limit_s, seed, offer=running.offer)
        blocks = running.anneal(min((hint, steered), key=running.offer), seed)
        running.improve(incumbent.best, _moves(problem, budget), seed)
        if not _splits(incumbent.best):  # moves do not split a whole backward
            running.improve(blocks, _moves(problem, budget), seed)
    return incumbent.best.renamed("search")


def _affordable(problem: Problem) -> int:
    """How many evaluations, fewer for a problem with many actions."""
    return min(MOST_EVALUATIONS, max(12, EVALUATED_ACTIONS // _actions(problem)))


def _moves(problem: Problem, evaluations: int) -> int:
    return min(MOVES_PER_EVALUATION * evaluations, MOVED_ACTIONS // _actions(problem))


def _actions(problem: Problem) -> int:
    return 3 * problem.n_stages * problem.n_microbatches


class _FamilySearch:
    """What the steps of a search share: its problem, and the incumbent."""

    def __init__(self, problem: Problem, time_limit_s: float, progress: Progress | None) -> None:
        self.problem = in_ticks(problem)  # whatever is compared comes out the same in every unit
        bound_ticks = lower_bound(self.problem).seconds
        self.incumbent: Incumbent[Schedule] = Incumbent(time_limit_s, bound_ticks, progress, unit_s=tick_s(problem))
        self.incumbent.report()
        self._model: ScheduleModel | None = None
        """Lowered with the first schedule that is offered."""

    def offer(self, schedule: Schedule) -> float:
        """Keep a schedule if it is better; returns what it takes, in ticks."""
        ticks = self._model_of(schedule).makespan(schedule)
        self.incumbent.offer(schedule, ticks)
        return ticks

    def offer_actions(self, actions: ActionColumns) -> float:
        """The same of a schedule's actions, when a schedule has been offered: it is written down only if it is kept."""
        ticks = self._model_of(self.incumbent.best).makespan_of(actions, "search")
        if ticks < self.incumbent.best_s:
            made = Schedule("search", rows_of(actions), self.problem.stage_to_rank, self.problem.n_microbatches)
            self.incumbent.offer(made, ticks)
        return ticks

    def _model_of(self, schedule: Schedule) -> ScheduleModel:
        if self._model is None:
            import testbed.model.compiled  # noqa: F401 - from now on the event model runs compiled; slow to import

            self._model = ScheduleModel(self.problem, schedule)
        return self._model

    def anneal(self, start: Schedule, seed: int) -> Schedule:
        """Move actions of a schedule of whole blocks, far and fast, and keep what comes of it if it is better."""
        from testbed.search.anneal import SHORT_ROUNDS, anneal_in_rounds

        limits = self.incumbent.until, self.incumbent.good_enough_s
        return anneal_in_rounds(self.problem, start, self.offer, SHORT_ROUNDS, seed, *limits)

    def improve(self, start: Schedule, moves: int, seed: int) -> None:
        """Move actions of a schedule, and keep what comes of it if it is better."""
        from testbed.search.local_search import improve

        limits = self.incumbent.until, self.incumbent.good_enough_s
        if not self.incumbent.over():
            self.offer(improve(self.problem, start, moves, seed, *limits, interrupted=self.offer))


def _steer(running: _FamilySearch, budget: int, seed: int) -> None:
    """Greedies on believed costs, an evolution strategy over the beliefs."""
    problem = running.problem
    parent = _Beliefs(np.zeros((problem.n_ranks, 3)), np.zeros((len(problem.links), 2)), DEFAULT_SUB_BLOCKS)
    parent_ticks = math.inf
    generator = np.random.default_rng(seed)
    sigma = _SIGMA
    for trial in range(budget):
        if running.incumbent.over():
            return
        # every number of sub-blocks is tried with the true costs before beliefs are
        if trial < len(SUB_BLOCKS):
            beliefs = replace(parent, n_sub=SUB_BLOCKS[trial])
        else:
            beliefs = parent.mutated(generator, sigma)
        ticks = running.offer_actions(greedy_actions(beliefs.applied(problem), beliefs.n_sub))
        if ticks <= parent_ticks:
            sigma = min(1.0, sigma * _WIDER) if ticks < parent_ticks else sigma
            parent, parent_ticks = beliefs, ticks
        else:
            sigma = max(0.05, sigma * _NARROWER)


def _splits(schedule: Schedule) -> bool:
    """Whether weight gradients are actions of their own: moves of single actions have little to do without."""
    return any(action.kind is Kind.W for _, action in schedule.actions())


FAMILY = Family(
    search, "ours: the greedy steered by an evolution strategy, judged by the event model", uses_spare_memory=True
)
WAVE_FAMILY = Family(
    search_chunks,
    "ours: list schedules in a V, steered and improved",
    Placement.WAVE,
    solver=True,
    uses_spare_memory=True,
)
LOOP_FAMILY = Family(search_chunks, "ours: the same in a loop", Placement.LOOP, solver=True, uses_spare_memory=True)
