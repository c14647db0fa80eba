"""Simulated annealing on finished schedules of whole blocks: actions move within their rank's row.

Kirkpatrick, Gelatt and Vecchi (1983). An order is judged by what the list scheduler plans with (course.py), and only
from the last checkpoint before a move on: ten to thirty times as many moves a second as with the event model
(local_search.py), which judges the result and goes on from there. Most moves are drawn from the critical path, where
alone a change can make it shorter (Balas, 1969), the others from everywhere: what makes room for these. Where several
cores are free, each searches from its own seed: how good one becomes hangs on chance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event
from typing import NamedTuple

import numpy as np

from testbed.model.compile import compiled_modules
from testbed.model.gather import idle_reduction_s
from testbed.model.network import Ints
from testbed.pipeline.depend import consumed, produced
from testbed.pipeline.ir import Action, Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.search import course, order_annealing
from testbed.search.blocks import SPLIT_KINDS, F, W, block_number, block_of
from testbed.search.course import NONE, Now, Work
from testbed.search.list_scheduler import Lister
from testbed.search.order_annealing import BEST, ActionMemory, Search
from testbed.search.order_evaluator import coded

ANNEALING = compiled_modules([order_annealing, course], announced="annealing: about 10 s")
"""Its loop, compiled."""

MOVES_AT_ONCE = 30_000
"""Between two looks at the clock: a fraction of a second."""

MOST_ACTIONS = 3_000
"""Of larger problems a round takes too long to be worth it."""

SHORTEST_ROUND = 0.25
"""A round for which the time is short makes as many moves as it allows, but no smaller share than this."""

VAIN = 3
"""Rounds in succession that gain nothing, after which no other one follows."""

_SEEDS_APART, _SEEDS = 1_000_000_007, 2**32


class Heat(NamedTuple):
    """How an annealing begins and ends; temperatures in mean lengths of an action, falling by one factor per move."""

    warmest: float
    coldest: float
    weight_of_ends: float
    """What the mean of the stages' own ends counts beside the makespan."""


class AnnealingRound(NamedTuple):
    """One annealing of several."""

    moves_per_action: int
    heat: Heat


COOL = Heat(1.0, 0.1, 0.05)
"""Polishes what it begins with."""

_WARM, _HOT, _HOT_ENOUGH = Heat(3.0, 0.1, 0.05), Heat(6.0, 0.02, 0.1), Heat(2.0, 0.02, 0.1)
"""A hot one forgets what it begins with, and ends in what no move makes better; others leave a part of it as it is."""

SHORT_ROUNDS = AnnealingRound(250, COOL), AnnealingRound(500, _WARM), AnnealingRound(1_000, COOL)
"""Where moves that the event model judges follow."""

LONG_ROUNDS = (
    AnnealingRound(250, COOL),
    *(AnnealingRound(moves, heat) for moves in (3_700, 7_400) for heat in (_HOT, _HOT_ENOUGH)),
)
"""Where it is worth half a minute: drawn loops of seven and eight ranks come out up to 2 % faster than after as long in
short rounds, each twice as long as the one before (benchmarks/solver_gap.py draws them)."""


def anneal_in_rounds(
    problem: Problem,
    start: Schedule,
    offer: Callable[[Schedule], float],
    rounds: Sequence[AnnealingRound],
    seed: int = 1,
    until: float = math.inf,
    good_enough_s: float = 0.0,
    side_by_side: int = 1,
) -> Schedule:
    """The best schedule of some rounds, each from the best so far; `offer` judges them, in the problem's unit of time.

    As `anneal`; the rounds' lengths follow from the problem's size. Never worse than `start`.
    """
    actions = sum(map(len, start.rows))
    best, best_s, vain, affordable = start, offer(start), 0, math.inf
    for number, (moves_per_action, heat) in enumerate(rounds if actions <= MOST_ACTIONS else ()):
        moves, begin = moves_per_action * actions, time.monotonic()
        if vain == VAIN or best_s <= good_enough_s or begin >= until:
            break
        if affordable * (until - begin) < SHORTEST_ROUND * moves:
            break
        limits = seed + number * moves, until, good_enough_s
        made = anneal(problem, best, moves, *limits, offer, heat, side_by_side)
        affordable = moves / max(1e-9, time.monotonic() - begin)
        made_s, vain = offer(made), vain + 1
        if made_s < best_s:
            best, best_s, vain = made, made_s, 0
    return best


def anneal(
    problem: Problem,
    schedule: Schedule,
    moves: int,
    seed: int = 1,
    until: float = math.inf,
    good_enough_s: float = 0.0,
    interrupted: Callable[[Schedule], object] | None = None,
    heat: Heat = COOL,
    side_by_side: int = 1,
) -> Schedule:
    """The best schedule met in `moves` moves, or until then on the monotonic clock; valid when `schedule` is.

    `schedule` is of whole F, I and W blocks. What is best goes by the times that the list scheduler plans with; the
    event model may see it otherwise. `side_by_side` so many search in threads, each from its own seed. Repeatable by
    `seed` where the time suffices for the moves, as measured while they are made; else they are fewer, and the
    temperature falls faster. One as fast as `good_enough_s` ends it. Ctrl-C is passed on when the best so far has been
    given to `interrupted`.
    """
    seeds = [(seed + number * _SEEDS_APART) % _SEEDS for number in range(side_by_side)]
    searches = [_Annealing(problem, schedule, moves, own, heat) for own in seeds]
    try:
        _run(searches, until, good_enough_s)
    except KeyboardInterrupt:
        if interrupted is not None:
            interrupted(_best(searches))
        raise
    return _best(searches)


def _run(searches: Sequence[_Annealing], until: float, good_enough_s: float) -> None:
    """All at the same time; one that is good enough, or Ctrl-C, ends them."""
    over, (first, *others) = Event(), searches
    with ThreadPoolExecutor(len(searches)) as pool:
        try:
            running = [pool.submit(one.run, until, good_enough_s, over) for one in others]
            first.run(until, good_enough_s, over)
            for one in running:
                one.result()
        finally:
            over.set()


def _best(searches: Sequence[_Annealing]) -> Schedule:
    return min(searches, key=lambda one: one.search.numbers[BEST]).best()


class _Annealing:
    """The arrays that the compiled loop works on; actions are blocks by number (blocks.py)."""

    def __init__(self, problem: Problem, schedule: Schedule, moves: int, seed: int, heat: Heat = COOL) -> None:
        self.lister, self.name, self.moves, self.seed = Lister(problem), schedule.name, moves, seed
        self.heat = heat
        rows = coded(schedule)
        order = np.concatenate(rows)
        row_start = np.cumsum([0, *map(len, rows)])
        self.work, self.held = _work(self.lister, row_start), _held(self.lister)
        n, links = len(order), len(self.work.delay)
        self.search = Search(
            order,
            np.empty(n, np.int64),
            np.empty(n),
            np.full(n, np.inf),
            np.empty(n, np.int64),
            order.copy(),
            order.copy(),
            np.full(n, NONE),
            np.full(6, np.inf),
        )
        self.search.numbers[order_annealing.MOVES_MADE] = 0
        self.search.numbers[order_annealing.WEIGHT_OF_ENDS] = heat.weight_of_ends
        self.courses = course.idle_course(self.work, order), course.idle_course(self.work, order)
        ranks = problem.n_ranks
        self.now = Now(np.zeros(ranks, np.int64), np.zeros(ranks), np.zeros(ranks, np.int64), np.zeros(links))

    def run(self, until: float, good_enough_s: float, over: Event | None = None) -> None:
        """All moves; where the time does not suffice for those left, each cools as much as several would."""
        warmest, coldest, _ = self.heat
        warmest, cooling = warmest * float(np.mean(self.work.length)), (coldest / warmest) ** (1 / self.moves)
        arrays = (self.work, self.held, self.search, *self.courses, self.now)
        made, turn, pace, begin = 0.0, 0, 1.0, time.monotonic()
        while made < self.moves and begin <= until and not (over and over.is_set()):
            count = min(MOVES_AT_ONCE, math.ceil((self.moves - made) / pace))
            ANNEALING.anneal(*arrays, count, self.seed + turn, warmest * cooling**made, cooling**pace)
            made, turn, now = made + count * pace, turn + 1, time.monotonic()
            left = 1 - made / self.moves
            affordable = (1 + left) * count / max(1e-9, now - begin) * (until - now)
            pace, begin = max(1.0, left * self.moves / max(1.0, affordable)), now
            if self.search.numbers[BEST] * self.lister.tick_s <= good_enough_s:
                if over:
                    over.set()
                return

    def best(self) -> Schedule:
        rows = [self.search.best[begin:end] for begin, end in pairwise(self.work.row_start.tolist())]
        return self.lister.schedule(rows, self.name)


def _work(lister: Lister, row_start: Ints) -> Work:
    """What the list scheduler plans with, action by action."""
    problem, costs = lister.problem, lister.costs
    stages, m = problem.n_stages, problem.n_microbatches
    stage, kind, _ = block_of(np.arange(3 * stages * m), m)
    n, hops = len(stage), costs.route_links.shape[2]
    producer, consumer = np.full(n, NONE), np.full(n, NONE)
    route, wire, handover = np.full((n, hops), NONE), np.zeros((n, hops)), np.zeros(n)
    makers = {produced(action, stages): number for number, action in enumerate(_actions(problem))}
    for number, action in enumerate(_actions(problem)):
        message = consumed(action, stages)
        if message is None:
            continue
        maker = makers[message]
        producer[number], consumer[maker] = maker, number
        source, target = stage[maker], stage[number]
        if costs.stage_to_rank[source] != costs.stage_to_rank[target]:
            there = (0 if target > source else 1, min(source, target))
            route[maker], wire[maker], handover[maker] = costs.route_links[there], costs.wire[there], problem.handover_s
    last = np.array([block_number(s, W, m - 1, m) for s in range(stages)])
    after = np.zeros(n)
    after[last] = [idle_reduction_s(problem, s) for s in range(stages)]
    return Work(
        row_start,
        costs.stage_to_rank[stage],
        costs.length[stage, kind],
        producer,
        consumer,
        route,
        wire,
        np.array([float(link.delay_s) for link in lister.links]),
        np.rint(lister.free.link_free_s),
        handover,
        np.where(kind == F, costs.ready[stage], 0.0),
        float(problem.unnoticed_wait_s),
        last,
        after,
    )


def _actions(problem: Problem) -> list[Action]:
    """By their numbers."""
    microbatches = range(problem.n_microbatches)
    return [Action(s, kind, m) for s in range(problem.n_stages) for kind in SPLIT_KINDS for m in microbatches]


def _held(lister: Lister) -> ActionMemory:
    problem, m = lister.problem, lister.problem.n_microbatches
    stage, kind, microbatch = block_of(np.arange(3 * problem.n_stages * m), m)
    actions = _actions(problem)
    return ActionMemory(
        stage,
        kind,
        microbatch,
        np.array([problem.memory_needed(action) for action in actions]),
        np.array([problem.memory_delta(action) for action in actions]),
        np.array(problem.memory_limit) + TOLERANCE,
    )
