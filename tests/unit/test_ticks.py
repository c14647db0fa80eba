"""Times in ticks: one problem whatever its unit, exact sums, nothing lost that a schedule could notice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.ticks import MOST_TICKS, in_ticks, ticks_of_longest

UNITS_S = (1.0, 20e-3, 1e-3, 3.7e-3, 1 / 3, 1.1e-7, 86_400.0)
lengths = st.integers(0, 12).map(lambda n: n / 4) | st.floats(1e-3, 100)


def timed(unit_s: float, lengths: tuple[float, ...], size: float = 1.0) -> Problem:
    """Two ranks and a link of these lengths, in a unit."""
    f, i, w, delay, wire = (length * unit_s for length in lengths)
    problem = uniform(2, 3, forward_s=f, input_s=i, weight_s=w, delay_s=delay, wire_s=wire / size)
    return replace(problem, message_bytes=(size,), tie_s=1e-4 * unit_s)


@given(st.tuples(*[lengths] * 5), st.sampled_from([1.0, 123_457.0]))
@settings(max_examples=200)
def test_a_unit_makes_no_difference(lengths: tuple[float, ...], size: float) -> None:
    if any(lengths):
        assert len({repr(in_ticks(timed(unit_s, lengths, size))) for unit_s in UNITS_S}) == 1


@given(st.tuples(*[lengths] * 5))
@settings(max_examples=100)
def test_ticks_are_whole_and_stay_as_they_are(lengths: tuple[float, ...]) -> None:
    problem = in_ticks(timed(20e-3, lengths))
    times = (problem.forward_s[0], problem.input_s[0], problem.weight_s[0], *sum(problem.links, ()))
    assert not any(lengths) or all(time == int(time) for time in times)
    assert in_ticks(problem) == problem


def test_sums_that_should_be_equal_are() -> None:
    problem = in_ticks(timed(20e-3, (0.1, 0.2, 0.3, 1.7, 2.3)))
    (f,), (i,), (w,) = ({*times} for times in (problem.forward_s, problem.input_s, problem.weight_s))
    assert 0.1 + 0.2 != 0.3
    assert f + i == w
    assert problem.links[0].delay_s + 2 * w == problem.links[0].seconds_per_byte


def test_a_ratio_of_large_numbers_is_taken_to_the_nearest_tick() -> None:
    ticks = ticks_of_longest([1.0, 2**0.5 / 2])
    assert ticks == MOST_TICKS
    problem = in_ticks(timed(1.0, (1.0, 2**0.5 / 2, 1.0, 0.0, 0.0)))
    assert problem.input_s[0] / problem.forward_s[0] == pytest.approx(2**0.5 / 2, abs=1 / ticks)


def test_many_denominators_are_not_too_many_ticks() -> None:
    assert MOST_TICKS / 2 <= ticks_of_longest(1 / n for n in range(1, 5000)) <= MOST_TICKS


def test_what_takes_no_time_is_left_alone() -> None:
    problem = uniform(2, 3, forward_s=0, input_s=0, weight_s=0)
    assert in_ticks(problem) is problem
