"""PipeMorph (Adaptra): its published iterations, its law, and what memory takes from its warm-ups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput, DoesNotFit
from testbed.model.simulate import makespan
from testbed.pipeline.ir import Kind
from testbed.pipeline.memory import TOLERANCE, peaks
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.validate import validate
from testbed.schedule.pipemorph import limited, pipemorph, slacks, warmups
from testbed.schedule.registry import generate_proven

SLOT_S = 0.01
FIRST_LINK, LAST_LINK = 0, 2


def slow_link(delay_ms: int, link: int = FIRST_LINK, *, memory: float = 12.0) -> Problem:
    """The paper's example: 4 stages, 12 microbatches, slots of 10 ms, one link with a delay."""
    return made(delay_ms / 1e3, 0.0, link, memory)


def made(delay_s: float, wire_s: float, link: int, memory: float) -> Problem:
    return uniform(
        4,
        12,
        forward_s=SLOT_S,
        input_s=SLOT_S,
        weight_s=SLOT_S,
        memory=memory,
        delay_s=delay_s,
        wire_s=wire_s,
        cuts=(link,),
    )


def iteration_ms(problem: Problem, warmup: int | None = None) -> float:
    return 1e3 * makespan(problem, pipemorph(problem, warmup))


@pytest.mark.parametrize(("delay_ms", "published_ms"), [(0, 390), (10, 400), (20, 440)])
def test_a_plan_for_links_that_take_no_time_absorbs_what_the_law_says(delay_ms: int, published_ms: int) -> None:
    """x = (7, 5, 3, 1), as published: its slack of 2 absorbs 10 ms, and no more."""
    problem = slow_link(delay_ms)
    assert warmups(problem, 7) == [7, 5, 3, 1]
    assert iteration_ms(problem, 7) == pytest.approx(published_ms, abs=1e-9)


def test_the_plan_that_is_not_adapted_holds_weight_gradients_back() -> None:
    """It needs memory for more microbatches than its first stage has warm-ups."""
    assert iteration_ms(slow_link(20, memory=10.0), 7) == pytest.approx(440, abs=1e-9)
    assert iteration_ms(slow_link(20, memory=9.0), 7) > 440


@pytest.mark.parametrize(("delay_ms", "published_ms", "adapted"), [(20, 410, [8, 5, 3, 1]), (30, 420, [9, 5, 3, 1])])
def test_adapted_warm_ups_leave_only_the_delay_itself(delay_ms: int, published_ms: int, adapted: list[int]) -> None:
    """As published, and with memory for no more microbatches than its first stage has warm-ups."""
    problem = slow_link(delay_ms, memory=float(adapted[0]))
    assert warmups(problem) == adapted
    assert iteration_ms(problem) == pytest.approx(published_ms, abs=1e-9)
    assert limited(problem) is None


def test_a_late_link_without_slack_costs_more_than_an_early_one() -> None:
    for delay_ms in (20, 30):
        assert iteration_ms(slow_link(delay_ms, LAST_LINK), 7) > iteration_ms(slow_link(delay_ms), 7)
        assert iteration_ms(slow_link(delay_ms, LAST_LINK)) == iteration_ms(slow_link(delay_ms))


@pytest.mark.parametrize("delay_ms", [0, 10, 20, 30])
def test_less_slack_pays_the_delay_again_for_every_microbatch(delay_ms: int) -> None:
    assert iteration_ms(slow_link(delay_ms), 4) >= 390 + 9 * delay_ms


def test_slack_is_what_the_law_asks_for_at_least_two_and_at_most_what_the_microbatches_allow() -> None:
    assert slacks(slow_link(0)) == [2, 2, 2]
    assert [slacks(slow_link(delay_ms))[0] for delay_ms in (9, 10, 11, 20, 21, 30, 31)] == [2, 2, 3, 3, 4, 4, 4]
    assert slacks(replace(slow_link(500), n_microbatches=6)) == [2, 2, 2]
    # a stage behind that takes twice as long makes the same link take half the slack
    slow_behind = replace(slow_link(20), forward_s=(SLOT_S, 2 * SLOT_S, SLOT_S, SLOT_S))
    assert slacks(replace(slow_behind, input_s=slow_behind.forward_s))[0] == 2


def test_the_time_on_the_wire_counts_as_the_delay_does() -> None:
    assert slacks(made(0.012, 0.008, FIRST_LINK, 12.0)) == slacks(slow_link(20))


def test_what_memory_takes_from_the_warm_up_is_said() -> None:
    short = generate_proven("pipemorph", slow_link(30, memory=7.0))
    assert warmups(slow_link(30, memory=7.0)) == [7, 5, 3, 1]
    assert short.remarks == (
        "memory allows 7, 5, 3, 1 of 9, 5, 3, 1 warm-up forwards (all of them take memory for 9 microbatches)",
    )
    assert generate_proven("pipemorph", slow_link(30, memory=9.0)).remarks == ()
    assert limited(slow_link(30, memory=4.0), 7) is not None


def test_recomputation_leaves_room_for_one_input_gradient() -> None:
    problem = replace(slow_link(30, memory=7.5), input_memory=(1.0,) * 4)
    assert warmups(problem)[0] == 6
    validate(pipemorph(problem), problem)


def test_several_stages_on_a_rank_are_refused() -> None:
    with pytest.raises(BadInput, match="pipemorph: stages per rank: got 2"):
        pipemorph(uniform(2, 4, stage_to_rank=stage_to_rank(Placement.LOOP, 2)))


def test_a_rank_without_room_for_a_microbatch_is_refused() -> None:
    with pytest.raises(DoesNotFit):
        pipemorph(slow_link(0, memory=0.5))


@given(
    ranks=st.integers(1, 5),
    microbatches=st.integers(1, 12),
    delay_s=st.sampled_from([0.0, 0.7, 4.0]),
    memory=st.sampled_from([1.0, 2.5, 5.0, 12.0]),
    warmup=st.sampled_from([None, 1, 4, 30]),
)
@settings(max_examples=60, deadline=None)
def test_every_order_fits_and_no_rank_is_further_ahead_than_its_warm_ups(
    ranks: int, microbatches: int, delay_s: float, memory: float, warmup: int | None
) -> None:
    problem = uniform(ranks, microbatches, memory=memory, delay_s=delay_s, wire_s=0.1)
    schedule = pipemorph(problem, warmup)
    validate(schedule, problem)
    assert max(peaks(schedule, problem)) <= memory + TOLERANCE
    for row, most in zip(schedule.rows, warmups(problem, warmup), strict=True):
        ahead = 0
        for action in row:
            ahead += {Kind.F: 1, Kind.I: -1}.get(action.kind, 0)
            assert 0 <= ahead <= most
