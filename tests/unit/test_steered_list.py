"""The steered list scheduler: valid in any placement and under recomputation, never worse than the plain one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.errors import BadInput
from testbed.model.simulate import simulate
from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.validate import validate
from testbed.schedule.hints import check_order, whole_blocks
from testbed.search.list_scheduler import list_schedule
from testbed.search.steered_list import steered_list


def delayed(placement: Placement, memory: float = 4) -> Problem:
    return uniform(4, 8, delay_s=2, wire_s=0.5, cuts=(1,), memory=memory, stage_to_rank=stage_to_rank(placement, 4))


def makespan(problem: Problem, schedule: Schedule) -> float:
    return float(simulate(problem, schedule).makespans()[0])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("placement", list(Placement))
def test_it_makes_what_the_solver_can_begin_from(placement: Placement, recompute: bool) -> None:
    problem = delayed(placement)
    if recompute:
        shares = problem.activation
        problem = replace(
            problem, activation=tuple(a / 8 for a in shares), input_memory=tuple(a * 7 / 8 for a in shares)
        )
    schedule = steered_list(problem, evaluations=90)
    validate(schedule, problem)
    check_order(schedule)
    assert whole_blocks(schedule) == schedule
    assert makespan(problem, schedule) <= makespan(problem, list_schedule(problem))


def test_steering_pays_where_memory_is_tight_and_links_are_long() -> None:
    problem = uniform(8, 16, delay_s=2, wire_s=0.25, cuts=(3,), stage_to_rank=stage_to_rank(Placement.WAVE, 8))
    found = makespan(problem, steered_list(problem, evaluations=120))
    assert found < 0.9 * makespan(problem, list_schedule(problem))


def test_one_seed_gives_one_schedule() -> None:
    problem = delayed(Placement.LOOP)
    assert steered_list(problem, evaluations=80, seed=3) == steered_list(problem, evaluations=80, seed=3)


def test_a_microbatch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match="memory limit of rank 0"):
        steered_list(delayed(Placement.WAVE, memory=0.5))
