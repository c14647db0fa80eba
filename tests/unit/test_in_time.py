"""Solvers and policies share the time that a search around them has."""

from __future__ import annotations

import math

import pytest

from testbed.routing.policies import choose
from testbed.spec.choice import ScheduleChoice
from testbed.sweep.in_time import TIME_LIMIT, in_time

SOLVER, PATIENT = ScheduleChoice(schedule="crosspipe-ud"), ScheduleChoice(schedule="crosspipe-wave", time_limit_s=100.0)
BRIEF = ScheduleChoice(schedule="crosspipe-loop", time_limit_s=2.0)
CHOICES, POLICIES = [ScheduleChoice(schedule="1f1b"), SOLVER, PATIENT, BRIEF], [None, choose("greedy"), choose("joint")]


def test_each_has_a_share_unless_it_asks_for_less() -> None:
    """Three solvers, and a policy that searches for each of four schedules."""
    choices, policies = in_time(CHOICES, POLICIES, 42.0)
    assert [choice.options().get(TIME_LIMIT) for choice in choices] == [None, 6.0, 6.0, 2.0]
    assert [choice.label for choice in choices] == [choice.label for choice in CHOICES]
    assert policies[:2] == POLICIES[:2]
    joint = policies[2]
    assert joint is not None
    assert (joint.label, joint.options[TIME_LIMIT]) == ("joint", 6.0)


@pytest.mark.parametrize("left_s", [math.inf, 7 * 120.0])
def test_where_there_is_time_for_all_none_is_changed(left_s: float) -> None:
    assert in_time(CHOICES, POLICIES, left_s) == (CHOICES, POLICIES)


def test_when_time_is_over_there_is_a_second_for_each() -> None:
    choices, _ = in_time(CHOICES, [None], -5.0)
    assert [choice.options().get(TIME_LIMIT) for choice in choices] == [None, 1.0, 1.0, 1.0]
