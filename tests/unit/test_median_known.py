"""To what the median of iterations is known that losses and jitter strike by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from testbed.judge.fidelity import Check, run_checks
from testbed.judge.iterations import IterationRow, Witnesses, median_known_to


def spread_check(times_s: np.ndarray, *, by_chance: bool) -> Check:
    row = IterationRow(0, False, 1.0, 0.4, 5.0, (4.0, 3.0), (4.0, 3.0), 0, 0.0, 96, 0.0, Witnesses())
    return run_checks([row], times_s, paced=True, jitters=by_chance)[-1]


def sign_test(below: int, count: int) -> float:
    """How likely a number of values below the median is that is as far from one half as this one."""
    near = min(below, count - below)
    return min(2 * sum(math.comb(count, number) for number in range(near + 1)) * math.ldexp(1.0, -count), 1.0)


@pytest.mark.parametrize("count", [6, 7, 10, 25, 60])
def test_the_interval_is_the_sign_tests(count: int) -> None:
    """Of values 1 to n the ends are the furthest ones that a sign test does not refuse as the median."""
    values = np.arange(1.0, count + 1)
    between = np.arange(0.5, count + 1)  # where a median could be: a value, or between two
    high = max(at for at in between if sign_test(int((values < at).sum()), count) > 0.05) + 0.5
    assert median_known_to(values) * np.median(values) == pytest.approx(high - np.median(values))


@pytest.mark.parametrize("count", [6, 10, 40])
def test_nineteen_of_twenty_intervals_hold_the_median(count: int) -> None:
    """Of the times a lossy link makes: most alike, some a timeout longer, so that they lean to one side."""
    generator = np.random.default_rng(11)
    drawn = 1.0 + generator.exponential(0.3, (1000, count)) + 0.2 * generator.binomial(3, 0.2, (1000, count))
    true = np.median(1.0 + generator.exponential(0.3, 400_000) + 0.2 * generator.binomial(3, 0.2, 400_000))
    held = [abs(true / np.median(each) - 1) <= median_known_to(each) for each in drawn]
    assert np.mean(held) >= 0.95


def test_few_iterations_tell_their_extremes() -> None:
    assert median_known_to(np.array([2.0, 1.0, 1.5, 4.0])) == pytest.approx(2.25 / 1.75)


def test_more_iterations_make_up_for_times_that_spread() -> None:
    generator = np.random.default_rng(5)
    times_s = 1.0 + generator.exponential(0.3, 400)
    few, many = (spread_check(times_s[:count], by_chance=True) for count in (12, 400))
    assert not few.ok
    assert "12 iterations tell their median to" in few.reasons[0]
    assert many.ok
    assert not spread_check(times_s, by_chance=False).ok


def test_what_a_reason_says_is_enough_is_enough() -> None:
    generator = np.random.default_rng(6)
    times_s = 1.0 + generator.exponential(0.3, 20)
    said = spread_check(times_s, by_chance=True).reasons[0]
    enough = int(said.split("about ")[1].split()[0])
    assert 20 < enough < 400
    assert spread_check(1.0 + generator.exponential(0.3, 2 * enough), by_chance=True).ok


def test_times_that_do_not_spread_are_asked_nothing_more() -> None:
    check = spread_check(np.array([1.0, 1.01, 1.02]), by_chance=True)
    assert (check.question, check.ok) == ("spread of iteration times", True)
