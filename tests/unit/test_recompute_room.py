"""Under recomputation a generator leaves free what the backward needs: no rank jams, or one line says what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.ticks import in_ticks
from testbed.pipeline.validate import validate
from testbed.plan.costs import KEPT_WHEN_RECOMPUTING
from testbed.schedule.greedy import crosspipe_greedy, greedy_rows
from testbed.schedule.registry import FAMILIES, generate

GENERATORS: dict[str, dict[str, Any]] = {"crosspipe-greedy": {}, "search": {"evaluations": 2}, "wave-greedy": {}}
kept_shares = st.sampled_from([0.0, KEPT_WHEN_RECOMPUTING, 1 / 3, 0.5, 1.0])
lengths = st.sampled_from([0.0, 50e-6, 1e-3, 7.3e-3, 20e-3])


def recomputing(problem: Problem, kept: float) -> Problem:
    """A microbatch keeps this share of its memory until its backward."""
    shares = problem.activation
    return replace(
        problem, activation=tuple(a * kept for a in shares), input_memory=tuple(a * (1 - kept) for a in shares)
    )


@st.composite
def odd_problems(draw: st.DrawFn, placement: Callable[[int], tuple[int, ...]]) -> Problem:
    """Zero and sub-millisecond lengths, fractional memory, single ranks and microbatches; one microbatch fits."""
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    stages = placement(p)
    problem = uniform(p, m, delay_s=draw(lengths), wire_s=draw(lengths), stage_to_rank=stages)
    times = [tuple(draw(lengths) for _ in stages) for _ in range(3)]
    problem = replace(problem, forward_s=times[0], input_s=times[1], weight_s=times[2])
    limits = st.sampled_from([1.0, 1 + 1 / 3, 1.5, 2.7, 2.0 * p])
    return recomputing(problem, draw(kept_shares)).with_memory(tuple(draw(limits) for _ in range(p)))


@pytest.mark.parametrize("name", list(GENERATORS))
@given(data=st.data())
@settings(max_examples=40)
def test_what_holds_one_microbatch_is_never_jammed(name: str, data: st.DataObject) -> None:
    problem = data.draw(odd_problems(FAMILIES[name].stage_to_rank))
    generate(name, problem, **GENERATORS[name])  # validates


@given(odd_problems(partial(stage_to_rank, Placement.UD)), st.integers(1, 5))
@settings(max_examples=60)
def test_compiled_and_plain_agree_where_memory_is_short(problem: Problem, n_sub: int) -> None:
    ticked = in_ticks(problem)
    rows = greedy_rows(ticked, n_sub, compiled=False)
    assert greedy_rows(ticked, n_sub) == rows
    validate(Schedule("greedy", rows, problem.stage_to_rank, problem.n_microbatches), problem)


@pytest.mark.parametrize("microbatches", [8, 300])
def test_forwards_do_not_fill_the_memory(microbatches: int) -> None:
    """One whole microbatch fits: 17 of their inputs do too, and then no input gradient would."""
    problem = recomputing(uniform(4, microbatches, memory=1), KEPT_WHEN_RECOMPUTING)
    validate(crosspipe_greedy(problem), problem)


def test_without_recomputation_nothing_is_set_aside() -> None:
    problem = uniform(4, 16, memory=4)
    assert crosspipe_greedy(problem) == crosspipe_greedy(replace(problem, input_memory=(0.0,) * 4))


@pytest.mark.parametrize("name", list(GENERATORS))
def test_less_than_one_microbatch_is_refused(name: str) -> None:
    stages = FAMILIES[name].stage_to_rank(3)
    problem = recomputing(uniform(3, 4, stage_to_rank=stages), 0.5).with_memory((1.0, 0.7, 1.0))
    with pytest.raises(BadInput, match=r"memory limit of rank 1: got 0\.7, expected at least .*one microbatch needs"):
        generate(name, problem, **GENERATORS[name])
