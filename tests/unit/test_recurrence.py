"""What comes and goes regularly is known before it does."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.adaptation.candidate import JobCandidate, JobSetting
from testbed.adaptation.oracle import best_sequence
from testbed.adaptation.recurrence import BelievedPhase, ahead, best_next
from testbed.adaptation.sightings import Path
from testbed.adaptation.swap_costs import SwapCosts, kind_of
from testbed.pipeline.ir import parse_action

A, B = (
    JobCandidate(JobSetting(1, (), (0,)), ((parse_action(text),),)) for text in ("0F0", "0F1")
)  # nothing here looks into them


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
    assert best_next([slow(5), planned(5)], A, SwapCosts(0.5)) == B
    assert best_next([planned(1), slow(5), planned(5)], A, SwapCosts(0.5)) == A
    assert best_next([planned(5), slow(5)], B, SwapCosts(0.1)) == A


def test_a_swap_that_costs_more_than_it_brings_is_not_made() -> None:
    assert best_next([slow(1), planned(9)], A, SwapCosts(2.0)) == A


def test_who_knows_what_will_happen_swaps_when_that_is_best() -> None:
    seconds = np.array([[1.0, 1.2], [3.0, 1.5], [3.0, 1.5], [1.0, 1.2]])
    cost = SwapCosts(1.0).matrix([A, B])
    assert cost.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert best_sequence(seconds, [0.1 * cost] * 4) == [0, 1, 1, 0]
    assert best_sequence(seconds, [0.25 * cost] * 4) == [0, 1, 1, 1], "not back for so little"
    assert best_sequence(seconds, [5.0 * cost] * 4) == [0, 0, 0, 0]
    assert best_sequence(seconds[1:], [0.1 * cost] * 3) == [1, 1, 0], "before the first one already"
    there, back = np.array([[0.0, 0.1], [0.3, 0.0]]), np.array([[0.0, 0.3], [0.1, 0.0]])
    assert best_sequence(seconds, [there] * 4) == [0, 1, 1, 1]
    assert best_sequence(seconds, [back] * 4) == [0, 1, 1, 0]


def test_what_swaps_of_a_kind_took_is_believed_of_the_next_one() -> None:
    cut, route = JobSetting(2, (), (0,)), JobSetting(1, (Path("a", "b", (2,), "south"),), (0,))
    one, costs = JobSetting(1, (), (0,)), SwapCosts(0.02)
    assert [kind_of(one, other) for other in (one, cut, route)] == ["schedule", "microbatches", "routes"]
    assert kind_of(cut, route) == "microbatches and routes"
    assert kind_of(one, one._replace(stages=(0, 0))) == "weights"
    for seconds in (0.3, 0.1, 0.2):
        costs.learn(one, cut, seconds)
    assert [costs.between(one, other) for other in (one, cut, route)] == [0.02, 0.2, 0.02]
    assert costs.known == ["microbatches"]
    other = JobCandidate(cut, A.rows)
    assert costs.matrix([A, B, other]).tolist() == [[0, 0.02, 0.2], [0.02, 0, 0.2], [0.2, 0.2, 0]]


def test_what_costs_more_to_swap_to_has_to_bring_more() -> None:
    """C is the best by a hair in what comes, and in another setting."""
    c, costs = JobCandidate(JobSetting(2, (), (0,)), A.rows), SwapCosts(0.1)
    spans = [BelievedPhase(4, {A: 3.0, B: 1.5, c: 1.4})]
    assert best_next(spans, A, costs) == c
    costs.learn(A.setting, c.setting, 1.0)
    assert best_next(spans, A, costs) == B
    costs.learn(A.setting, A.setting, 10.0)
    assert best_next(spans, A, costs) == c


def test_what_is_sent_is_predicted_and_only_the_rest_is_learnt() -> None:
    one, other, sent_s = JobSetting(1, (), (0, 1)), JobSetting(1, (), (1, 0)), {"s": 0.5}
    costs = SwapCosts(0.02, lambda a, b: sent_s["s"] if a != b else 0.0)
    assert costs.between(one, other) == pytest.approx(0.52)
    costs.learn(one, other, 0.503)
    assert costs.between(other, one) == pytest.approx(0.503)
    sent_s["s"] = 4.0  # links have become slower
    assert costs.between(one, other) == pytest.approx(4.003)
    assert costs.between(one, one) == 0.02, "another kind"
