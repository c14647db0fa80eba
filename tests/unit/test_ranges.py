"""Predictions that are ranges by who comes first hold what was measured: the quick form of benchmarks/ranges.py."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import ranges
from drawn_then import documents
from harness.plans import training

from testbed.cli.range_cells import show_ranges
from testbed.judge.changes import off_range
from testbed.plan.host_costs import measured_costs
from testbed.plan.plan import Case, Plan
from testbed.planning.prediction import TimesAndRanges, iteration_times, ranges_of_case, times_and_ranges, worst_times
from testbed.planning.ties import Range, range_keys
from testbed.routing.case_evaluator import CaseEvaluator

MEASURED = [
    (1, "gpipe", 1.0692435845),
    (1, "zb1p", 1.2668476810),
    (1, "dualpipe-v", 1.2691312010),
    (7, "zb-v", 1.4494795646),
    (7, "zb1p", 1.6208603006),
    (7, "crosspipe-greedy", 0.9096242302),
]
"""Of two plans with tensor ranks and unlike links, under the virtual clock: plan, schedule, seconds. Ranks begin two by
two, each with several messages: in turns, some would be 3.5 % slower."""


def planned(number: int, directory: Path) -> Plan:
    return training(directory, str(number), *documents(number, 1)).plan


def in_a_guest(plan: Plan) -> Plan:
    """With what engine and gloo cost where it was measured."""
    return replace(plan, host_costs=measured_costs("virtual"))


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Plan]:
    return {number: planned(number, tmp_path_factory.mktemp(str(number))) for number in (0, 1, 7)}


def case_of(plan: Plan, label: str) -> Case:
    (found,) = (case for case in plan.cases if case.label == label)
    return found


def test_times_and_ranges_of_one_program_are_those_of_either_alone(plans: dict[int, Plan]) -> None:
    plan = plans[7]
    case = case_of(plan, "crosspipe-greedy")
    both = times_and_ranges(plan, case)
    assert both == TimesAndRanges(iteration_times(plan, case), tuple(ranges_of_case(plan, case)))
    assert both.ranges != (None,)
    assert times_and_ranges(plan, case, most_events=100) == TimesAndRanges(both.times_s, None)


@pytest.mark.parametrize(("number", "label", "measured_s"), MEASURED)
def test_what_was_measured_is_predicted_and_lies_in_its_range(
    plans: dict[int, Plan], number: int, label: str, measured_s: float
) -> None:
    for plan in (in_a_guest(plans[number]), plans[number]):
        case = case_of(plan, label)
        (predicted_s,), (between,) = iteration_times(plan, case), ranges_of_case(plan, case)
        assert predicted_s == pytest.approx(measured_s, rel=ranges.NEAR)
        low_s, high_s = between or (predicted_s, predicted_s)
        assert low_s <= predicted_s <= high_s
        assert low_s * (1 - ranges.NEAR) <= measured_s <= high_s * (1 + ranges.NEAR)
        assert ranges_of_case(plan, case) == [between]


def test_calls_that_take_time_let_ranks_send_by_turns(plans: dict[int, Plan]) -> None:
    """And only these: on the virtual clock one process runs at a time, and a call takes none."""
    for number, label in ((1, "gpipe"), (7, "zb1p")):
        real, virtual = plans[number], in_a_guest(plans[number])
        (there,) = ranges_of_case(real, case_of(real, label))
        (here,) = ranges_of_case(virtual, case_of(virtual, label))
        assert there is not None
        assert there.order_sensitive
        assert here is None or not here.order_sensitive


def test_a_summand_waits_for_the_word_that_its_receive_is_posted(tmp_path: Path) -> None:
    """Measured under the virtual clock. Sent as soon as the exchange before is over, it would take the card ahead of a
    message of the pipeline, and all be 1 % slower."""
    plan = planned(251, tmp_path)
    (predicted_s,) = iteration_times(plan, case_of(plan, "gpipe"))
    assert predicted_s == pytest.approx(2.041124150, rel=ranges.NEAR)


@pytest.mark.parametrize(("number", "label", "measured_s"), [(181, "zb1p", 1.506497094), (220, "zb-v", 1.218650127)])
def test_what_is_no_tie_is_predicted(tmp_path: Path, number: int, label: str, measured_s: float) -> None:
    """Measured under the virtual clock. 181: two ranks begin at one instant, each with several messages: one sends all
    of them before the other begins (in turns, all would be 2 % faster). 220: gloo's preamble needs one more segment."""
    plan = in_a_guest(planned(number, tmp_path))
    (predicted_s,) = iteration_times(plan, case_of(plan, label))
    assert predicted_s == pytest.approx(measured_s, rel=1e-5)


def test_late_receives_without_a_tie_are_one_time(plans: dict[int, Plan]) -> None:
    for case in plans[0].cases:
        (between,) = ranges_of_case(plans[0], case)
        assert between is None or not between.order_sensitive


def test_a_search_goes_by_the_worst_end(plans: dict[int, Plan]) -> None:
    plan = plans[1]
    judge = CaseEvaluator(plan, 10, 60.0, ("test", None))
    for case in plan.cases:
        judge.offer(case)
    worst = {case.label: worst_times(plan, case)[0] for case in plan.cases}
    assert judge.best.label == min(worst, key=worst.__getitem__)
    assert judge.seconds(judge.best) == (worst[judge.best.label],)
    lucky = case_of(plan, "dualpipe-v")
    (between,) = ranges_of_case(plan, lucky)
    assert between is not None
    assert between.order_sensitive
    assert worst_times(plan, lucky) == (between.high_s,)


def test_how_far_a_time_lies_outside_its_range() -> None:
    assert off_range(1.0, 0.95, 1.01) == 0
    assert off_range(1.0295, 0.95, 1.01) == pytest.approx(0.0195 / 0.95)
    assert off_range(0.9405, 0.95, 1.01) == pytest.approx(-0.01)


def test_how_a_range_is_shown() -> None:
    between = [Range(0.6707, 0.7052), None, Range(0.5, 0.5)]
    assert show_ranges([0.7, 0.5, 0.5], between) == ["670.7 to 705.2 ms", "500.0 ms", "500.0 ms"]
    assert show_ranges([13.1801], [Range(13.1801, 13.1803)]) == ["13.18 s"]
    assert range_keys(between[0]) == {"predicted_low_s": 0.6707, "predicted_high_s": 0.7052}
    assert range_keys(None) == {"predicted_low_s": None, "predicted_high_s": None}
