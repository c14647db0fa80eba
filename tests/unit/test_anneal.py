"""Annealing judges as the event model does, forgets nothing between moves, and comes to proven optima."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from solver_gap import drawn as drawn_loop

from testbed.model.bounds import lower_bound
from testbed.model.compiled import makespan
from testbed.pipeline.ir import Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.ticks import in_ticks
from testbed.pipeline.validate import validate
from testbed.schedule.optimal import solve
from testbed.search import rank_bound
from testbed.search.anneal import ANNEALING, LONG_ROUNDS, SHORT_ROUNDS, Heat, _Annealing, anneal, anneal_in_rounds
from testbed.search.list_scheduler import list_schedule, oldest_first
from testbed.search.order_annealing import BEST, MAKESPAN
from testbed.search.rank_bound import RankBound


def drawn(seed: int, placement: Placement = Placement.LOOP) -> Problem:
    """Unequal stages, one slow boundary whose directions differ; ticks, so that equal times are equal."""
    draw = random.Random(seed)
    ranks = draw.randint(2, 5)
    even = uniform(
        ranks,
        draw.randint(3, 9),
        memory=ranks * draw.uniform(0.8, 1.3),
        delay_s=1,
        wire_s=0.5,
        cuts=(draw.randrange(ranks - 1),),
        stage_to_rank=stage_to_rank(placement, ranks),
    )

    def unequal(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(one * draw.choice((0.5, 1.0, 1.25, 2.0)) for one in seconds)

    return in_ticks(
        replace(
            even,
            forward_s=unequal(even.forward_s),
            input_s=unequal(even.input_s),
            weight_s=unequal(even.weight_s),
            links=tuple(LinkCost(*unequal(link)) for link in even.links),
            handover_s=draw.choice((0.0, 0.25)),
            unnoticed_wait_s=draw.choice((0.0, 0.125)),
        )
    )


def at_hand(search: _Annealing) -> Schedule:
    """The order that a search is at, which need not be its best."""
    rows = [search.search.order[begin:end] for begin, end in pairwise(search.work.row_start.tolist())]
    return search.lister.schedule(rows, "at hand")


@pytest.mark.parametrize("placement", [Placement.LOOP, Placement.WAVE, Placement.UD])
@pytest.mark.parametrize("seed", range(6))
def test_after_many_moves_times_are_those_of_the_event_model(seed: int, placement: Placement) -> None:
    """Moves are judged from checkpoints on; what that has come to is what a run of the whole order comes to."""
    problem = drawn(seed, placement)
    search = _Annealing(problem, list_schedule(problem), 3_000, seed)
    search.run(np.inf, 0.0)
    order = at_hand(search)
    validate(order, problem)
    anew = _Annealing(problem, order, 1, seed)
    anew.run(np.inf, 0.0)
    kept = search.courses[0]
    assert kept.end.tolist() == anew.courses[0].end.tolist()
    assert kept.arrived.tolist() == anew.courses[0].arrived.tolist()
    assert kept.step.tolist() == anew.courses[0].step.tolist()
    numbers = search.search.numbers
    assert search.search.latest.tolist() == anew.search.latest.tolist()
    assert search.search.held.tolist() == anew.search.held.tolist()
    assert numbers[MAKESPAN] == anew.search.numbers[MAKESPAN] == makespan(problem, order)
    assert numbers[BEST] == makespan(problem, search.best()) <= makespan(problem, list_schedule(problem))


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_proven_optima_are_found(seed: int) -> None:
    """Those that CP-SAT proves, which begins elsewhere; from a poor order."""
    problem = drawn(40 + seed)
    problem = replace(problem, n_microbatches=4, memory_limit=(max(3.0, problem.n_ranks * 0.8),) * problem.n_ranks)
    poor = list_schedule(problem, priority=oldest_first)
    solution = solve(problem, poor, time_limit_s=60, relative_gap=0.0)
    assert solution.proof.status == "optimal"
    found = anneal(problem, poor, 150_000)
    validate(found, problem)
    assert makespan(problem, found) == pytest.approx(solution.proof.makespan_s, rel=1e-9)


def test_little_memory_in_a_loop() -> None:
    """What the list scheduler makes of it is a third above the optimum, 43, which takes CP-SAT half a minute."""
    loop = stage_to_rank(Placement.LOOP, 4)
    problem = uniform(4, 9, memory=3, delay_s=1, wire_s=0.25, cuts=(1,), stage_to_rank=loop)
    start = list_schedule(problem)
    assert makespan(problem, start) > 1.3 * 43
    found = anneal_in_rounds(problem, start, lambda one: makespan(problem, one), LONG_ROUNDS[:2])
    validate(found, problem)
    assert 43 <= makespan(problem, found) < 1.1 * 43


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_bound_of_one_rank_is_one(seed: int) -> None:
    """No proven optimum is below it, and where memory binds it is above what the other bounds know."""
    problem = drawn(40 + seed)
    problem = replace(problem, n_microbatches=3, memory_limit=(max(1.5, problem.n_ranks * 0.5),) * problem.n_ranks)
    known_s = lower_bound(problem).seconds
    solution = solve(problem, list_schedule(problem), time_limit_s=60, relative_gap=0.0)
    assert solution.proof.status == "optimal"
    best_s = solution.proof.makespan_s
    bound_s = RankBound(problem, known_s, 2 * best_s, 0).find(np.inf)
    assert known_s <= bound_s <= best_s * (1 + 1e-9)


def test_one_rank_alone_proves_more_than_idle_times_at_both_ends() -> None:
    problem = drawn_loop("loop", 36).problem
    known_s = lower_bound(problem).seconds
    assert RankBound(problem, known_s, 2 * known_s, 0).find(np.inf) > 1.03 * known_s


@pytest.mark.parametrize(
    ("seed", "least"),
    [
        pytest.param(194, 1.045, id="as the solver searches by itself"),
        pytest.param(2, 1.05, id="searching for the bound alone"),
        pytest.param(910, 1.025, id="of the next rank"),
    ],
)
def test_a_rank_proves_more_in_one_way_or_another(monkeypatch: pytest.MonkeyPatch, seed: int, least: float) -> None:
    """Of loops drawn by benchmarks/solver_gap.py: each is proven in one way only."""
    monkeypatch.setattr(rank_bound, "EFFORTS", ((False, 0.4), (True, 0.8)))
    problem = drawn_loop("loop", seed).problem
    known_s = lower_bound(problem).seconds
    assert least * known_s < RankBound(problem, known_s, 2 * known_s, 0).find(np.inf) < 2 * known_s


def test_the_same_seed_finds_the_same_and_no_time_finds_nothing() -> None:
    problem = drawn(3)
    start = list_schedule(problem)
    assert anneal(problem, start, 40_000, seed=5) == anneal(problem, start, 40_000, seed=5)
    over = time.monotonic() - 1
    assert anneal_in_rounds(problem, start, lambda one: makespan(problem, one), SHORT_ROUNDS, until=over) == start


def test_side_by_side_the_best_is_kept_and_found_again() -> None:
    problem = drawn(0)
    start = list_schedule(problem)
    alone = [anneal(problem, start, 500, seed) for seed in (1, 1 + 1_000_000_007)]
    assert makespan(problem, alone[1]) < makespan(problem, alone[0])
    both = [anneal(problem, start, 500, 1, side_by_side=2) for _ in range(2)]
    assert both[0] == both[1] == min(alone, key=lambda one: makespan(problem, one))


@pytest.mark.parametrize(("speed", "short"), [(40_000, True), (80_000, True), (200_000, False)])
def test_where_the_time_is_short_it_cools_faster(monkeypatch: pytest.MonkeyPatch, speed: float, short: bool) -> None:
    """A million moves in 5 s, four times as fast when it is cold: all of them, or fewer that end as cold in time."""
    problem, planned = drawn(3), 1_000_000
    search = _Annealing(problem, list_schedule(problem), planned, 1, heat := Heat(6.0, 0.02, 0.1))
    now, made, mean = 100.0, [], float(np.mean(search.work.length))

    def annealed(*asked: Any) -> None:
        nonlocal now
        moves, _, temperature, cooling = asked[-4:]
        begin, end = temperature / mean, temperature / mean * cooling**moves
        hot = math.log(begin / heat.coldest) / math.log(heat.warmest / heat.coldest)
        now += moves / (speed * (4 - 3 * hot))
        made.append((moves, begin, end))

    monkeypatch.setattr(ANNEALING, "anneal", annealed)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    search.run(105.0, -math.inf)
    monkeypatch.undo()
    assert made[0][1] == pytest.approx(heat.warmest)
    assert all(before[2] == pytest.approx(after[1]) for before, after in pairwise(made))
    moves = sum(each[0] for each in made)
    if not short:
        assert moves == planned
        rates = [math.log(begin / end) / count for count, begin, end in made]
        assert rates == pytest.approx([math.log(300) / planned] * len(made))
    else:
        assert moves < planned
        assert now == pytest.approx(105.0, abs=0.5)
        assert made[-1][2] < 2 * heat.coldest
