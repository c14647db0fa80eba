"""The solver-free lower bound: never above what any schedule reaches, and tight where the best is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import QUICK, fitting, quick, with_collectives
from oracles import closed_form

from testbed.model.bounds import lower_bound
from testbed.model.simulate import simulate
from testbed.pipeline.link import LinkCost
from testbed.pipeline.memory import peaks
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import PipelineRoutes, Problem, uniform
from testbed.pipeline.validate import validate
from testbed.schedule.registry import generate
from testbed.search.list_scheduler import list_schedule

small = st.integers(0, 6)


def makespan(name: str, problem: Problem) -> float:
    return float(simulate(problem, generate(name, problem)).makespans()[0])


@given(st.data())
@settings(max_examples=60)
def test_no_family_is_below_the_bound(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(QUICK))
    p, m = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 8))
    problem = fitting(name, p, m)
    stages = problem.n_stages
    pairs = [(a, b) for a in range(p) for b in range(p) if a != b]
    links = tuple(LinkCost(data.draw(small), data.draw(small) / 2) for _ in range(3))
    routes = {pair: tuple(data.draw(st.permutations(range(3)))[: data.draw(st.integers(1, 3))]) for pair in pairs}
    times = [tuple(float(data.draw(st.integers(low, 6))) for _ in range(stages)) for low in (1, 0, 0)]
    problem = replace(problem, forward_s=times[0], input_s=times[1], weight_s=times[2], links=links)
    problem = replace(problem, pipelines=(PipelineRoutes(routes),))
    if data.draw(st.booleans()):  # a fused backward that has been measured may take less than I and W
        problem = replace(problem, backward_s=tuple(float(data.draw(small)) for _ in range(stages)))
    problem = data.draw(with_collectives(problem))
    schedule = quick(name, problem)
    tight = problem.with_memory(tuple(max(peak, 1e-6) for peak in peaks(schedule, problem)))
    validate(schedule, tight)
    assert lower_bound(tight).seconds <= simulate(problem, schedule).makespans()[0] + 1e-9


@given(st.data(), st.sampled_from(Placement), small, small, small, small)
@settings(max_examples=40)
def test_list_schedules_are_valid_and_above_the_bound(
    data: st.DataObject, placement: Placement, delay: int, wire: int, weight: int, extra: int
) -> None:
    p, m, memory = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 8))
    stages = stage_to_rank(placement, p)
    problem = uniform(
        p, m, weight_s=weight, delay_s=delay, wire_s=wire, memory=memory + extra / 8, stage_to_rank=stages
    )
    problem = data.draw(with_collectives(replace(problem, input_memory=(extra / 16,) * len(stages))))
    schedule = list_schedule(problem)
    validate(schedule, problem)
    assert lower_bound(problem).seconds <= simulate(problem, schedule).makespans()[0] + 1e-9


def test_one_rank_has_nothing_but_its_work() -> None:
    problem = uniform(1, 7, forward_s=2, input_s=3, weight_s=4, memory=7)
    assert lower_bound(problem).seconds == makespan("gpipe", problem) == closed_form.gpipe(1, 7, 2, 3, 4) == 63


@pytest.mark.parametrize("m", [4, 8, 12])
def test_zero_bubble_without_delay_meets_the_load_of_the_last_rank(m: int) -> None:
    problem = uniform(4, m)
    bound = lower_bound(problem)
    assert bound.seconds == closed_form.zb_h1(4, m, 1, 1, 1) == makespan("zb-h1", problem)
    assert bound.cause.startswith("rank")


def test_greedy_with_enough_memory_meets_the_load_of_the_last_rank() -> None:
    problem = uniform(4, 8, forward_s=10, input_s=10, weight_s=10, memory=8, delay_s=20, cuts=(1,))
    assert lower_bound(problem).seconds == makespan("crosspipe-greedy", problem) == 290


def test_a_slow_link_binds_and_is_met() -> None:
    problem = uniform(2, 8, memory=8, wire_s=5)
    bound = lower_bound(problem)
    # F, 8 messages down, F and I of the last, its message up, I and W
    assert bound.seconds == 1 + 8 * 5 + 2 + 5 + 2 == makespan("crosspipe-greedy", problem)
    assert bound.cause == "link 0 (0 -> 1)"


def test_one_microbatch_is_the_critical_path() -> None:
    problem = uniform(3, 1, forward_s=2, delay_s=4, wire_s=1)
    bound = lower_bound(problem)
    assert bound.cause == "critical path"
    assert bound.seconds == 3 * 2 + 3 + 1 + 4 * 5 == makespan("zb-h1", problem)


def test_memory_for_one_microbatch_binds() -> None:
    problem = uniform(2, 20, memory=1, delay_s=10)
    bound = lower_bound(problem)
    assert bound.cause == "memory of rank 0"
    assert 0.9 * makespan("crosspipe-greedy", problem) < bound.seconds <= makespan("crosspipe-greedy", problem)


def test_a_wait_that_is_not_noticed_bounds_nothing() -> None:
    """The gradient is back 0.15 ms after the forward, and the first rank is not delayed by waits of 0.2 ms."""
    problem = replace(uniform(2, 1, delay_s=5e-5), forward_s=(1e-3, 5e-5), input_s=(1e-3, 0.0), weight_s=(0.0, 0.0))
    assert lower_bound(problem).seconds == pytest.approx(2.15e-3) == makespan("zb-h1", problem)
    early = replace(problem, unnoticed_wait_s=2e-4)
    assert makespan("zb-h1", early) == pytest.approx(2e-3)
    assert lower_bound(early).seconds <= 2e-3 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("placement", "delay", "memory", "best"),
    [
        (Placement.UD, 2.0, 8.0, 64.0),
        (Placement.UD, 0.25, 8.0, 57.0),
        (Placement.WAVE, 2.0, 8.0, 61.0),
        (Placement.WAVE, 2.0, 12.0, 54.25),
        (Placement.WAVE, 0.25, 8.0, 53.0),
        (Placement.LOOP, 0.25, 8.0, 53.5),
    ],
)
def test_fill_and_drain_meet_the_best_that_is_known(
    placement: Placement, delay: float, memory: float, best: float
) -> None:
    """P = 8, M = 16 in two datacenters: makespans that the solver and steered list schedules have reached."""
    stages = stage_to_rank(placement, 8)
    problem = uniform(8, 16, delay_s=delay, wire_s=0.25, cuts=(3,), memory=memory, stage_to_rank=stages)
    bound = lower_bound(problem)
    assert bound.seconds == pytest.approx(best, rel=1e-6)
