"""Has the level of a series changed? The CUSUM in both directions, and the minimum of a window."""

from __future__ import annotations

import random

import pytest

from testbed.adaptation.level import Level, WindowedMinimum


def alarms(values: list[float], deviation: float = 0.0) -> list[int]:
    level = Level()
    return [place for place, value in enumerate(values) if level.add(value, deviation)]


@pytest.mark.parametrize("after", [1.1, 0.9, 2.0, 0.5, 1.06])
def test_a_step_up_or_down_is_seen_at_once(after: float) -> None:
    assert alarms([1.0] * 10 + [after] * 10) == [10]


def test_a_small_step_takes_longer() -> None:
    """2 sigma, less k, reach h = 5 with the fourth value."""
    assert alarms([1.0] * 50 + [1.02] * 10) == [53]


def test_what_hardly_varies_raises_no_alarm() -> None:
    assert alarms([1.0, 1.0 + 1e-9, 1.0 - 1e-9, 1.004] * 50) == []


def test_after_an_alarm_the_new_level_is_learnt() -> None:
    assert alarms([1.0] * 5 + [2.0] * 30 + [1.0] * 30) == [5, 35]


def test_a_slow_drift_is_seen() -> None:
    assert alarms([1.0] * 5 + [1.0 + 0.01 * step for step in range(20)])


def test_noise_of_the_deviation_that_is_given_raises_few_alarms() -> None:
    draw = random.Random(1)
    found = alarms([draw.gauss(1.0, 0.05) for _ in range(2000)], 0.05)
    assert len(found) <= 2 * 2000 / 465 * 2


def test_zeros_are_a_level_too() -> None:
    assert alarms([0.0] * 5 + [1e-3]) == [5]


def test_a_minimum_is_of_its_window_only() -> None:
    least = WindowedMinimum(3)
    for value in (1.0, 5.0, 4.0, 6.0):
        least.add(value)
    assert least.values == (5.0, 4.0, 6.0)
    least.reset()
    assert not least.values
