"""What comes and goes regularly is known before it does."""

from __future__ import annotations

import numpy as np

from testbed.adaptation.candidates import Candidate, Setting
from testbed.adaptation.oracle import best_sequence
from testbed.adaptation.recurrence import BelievedPhase, ahead, best_next
from testbed.pipeline.ir import parse_action

A, B = (Candidate(Setting(1, ()), ((parse_action(text),),)) for text in ("0F0", "0F1"))  # nothing here looks into them


def planned(iterations: int) -> BelievedPhase:
    return BelievedPhase(iterations, {A: 1.0, B: 1.2})


def slow(iterations: int) -> BelievedPhase:
    return BelievedPhase(iterations, {A: 3.0, B: 1.5})


def lengths(spans: list[BelievedPhase]) -> list[int]:
    return [span.iterations for span in spans]


def test_what_has_never_come_back_is_not_foreseen() -> None:
    assert not ahead([planned(5)])
    assert not ahead([planned(5), slow(3)])


def test_the_first_return_lasts_as_long_as_what_was_before_it() -> None:
    found = ahead([planned(5), slow(7), planned(2)])
    assert lengths(found) == [5, 7, 7, 7, 7]
    assert [span.predicted_s[A] for span in found] == [1.0, 3.0, 1.0, 3.0, 1.0]


def test_phases_of_two_lengths_are_told_apart() -> None:
    assert lengths(ahead([planned(5), slow(3), planned(9), slow(3), planned(4)])) == [5, 3, 9, 3, 9]
    assert lengths(ahead([planned(5), slow(3), planned(9), slow(3)])) == [9, 3, 9, 3]


def test_what_does_not_keep_its_time_is_not_relied_on() -> None:
    assert not ahead([planned(5), slow(3), planned(4)])
    assert not ahead([planned(5), slow(3), planned(3), slow(6), planned(1)])


def test_three_levels_are_no_square_wave() -> None:
    other = BelievedPhase(4, {A: 2.0, B: 2.5})
    assert not ahead([planned(5), slow(4), other, planned(1)])


def test_a_swap_is_made_before_it_is_needed() -> None:
    assert best_next([slow(5), planned(5)], A, swap_s=0.5) == B
    assert best_next([planned(1), slow(5), planned(5)], A, swap_s=0.5) == A
    assert best_next([planned(5), slow(5)], B, swap_s=0.1) == A


def test_a_swap_that_costs_more_than_it_brings_is_not_made() -> None:
    assert best_next([slow(1), planned(9)], A, swap_s=2.0) == A


def test_who_knows_what_will_happen_swaps_when_that_is_best() -> None:
    seconds = np.array([[1.0, 1.2], [3.0, 1.5], [3.0, 1.5], [1.0, 1.2]])
    assert best_sequence(seconds, 0.1) == [0, 1, 1, 0]
    assert best_sequence(seconds, 0.25) == [0, 1, 1, 1], "not back for so little"
    assert best_sequence(seconds, 5.0) == [0, 0, 0, 0]
    assert best_sequence(seconds[1:], 0.1) == [1, 1, 0], "before the first one already"
