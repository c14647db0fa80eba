"""Messages measured against predicted: what is known of an arrival, and what is no message's fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testbed.judge.fidelity import host_check, message_check
from testbed.judge.messages import by_flow, message_times
from testbed.model.host import ExtraTimes, predict_on_host
from testbed.model.lower import Load
from testbed.model.simulate import simulate
from testbed.pipeline.problem import uniform
from testbed.schedule.registry import generate
from testbed.trace.tables import Trace

PROBLEM = uniform(4, 8, delay_s=2, cuts=(1,))
SCHEDULE = generate("1f1b", PROBLEM)
PREDICTED = simulate(PROBLEM, SCHEDULE)


def shifted(actions_s: float, messages_s: float) -> Trace:
    """The prediction as if it had been measured: all actions and messages so much later."""
    actions, messages = PREDICTED.actions.copy(), PREDICTED.messages.copy()
    for name in ("reached_s", "ready_s", "start_s", "computed_s", "end_s"):
        actions[name] += actions_s
    messages["taken_s"] += messages_s
    return Trace(actions, messages, PREDICTED.n_ranks)


def test_a_prediction_agrees_with_itself() -> None:
    flows = by_flow(message_times(PREDICTED, PREDICTED, paced=True))
    assert len(flows) == 6
    for flow in flows:
        assert flow.messages == 8
        assert flow.impossible == 0
        assert flow.arrival_worst_s in (None, 0.0)
        assert flow.extra_worst_s in (None, pytest.approx(0.0))


def test_a_late_slot_is_no_fault_of_its_message() -> None:
    """Everything half a second late: arrivals are, but no message was on its way for longer."""
    flows = [flow for flow in by_flow(message_times(shifted(0.5, 0.5), PREDICTED, paced=True)) if flow.awaited]
    assert flows
    for flow in flows:
        assert flow.arrival_median_s == pytest.approx(0.5)
        assert flow.extra_median_s == pytest.approx(0.0)


def test_a_slow_message_is() -> None:
    flows = [flow for flow in by_flow(message_times(shifted(0.0, 0.25), PREDICTED, paced=True)) if flow.awaited]
    assert {round(flow.extra_median_s or 0.0, 9) for flow in flows} == {0.25}
    check = message_check(flows, [0.0] * len(flows))
    assert len(check.reasons) == len(flows)
    assert "250 ms longer" in check.reasons[0]
    assert message_check(flows, [0.25] * len(flows)).ok


def test_a_message_taken_before_it_can_have_come_counts_though_nobody_waited() -> None:
    early = shifted(0.0, -1.0)
    early.messages["awaited"] = False
    times = message_times(early, PREDICTED, paced=True)
    assert sum(flow.impossible for flow in by_flow(times)) > 0
    assert np.nanmax(times.arrival_off_s) < 0


def test_what_lay_ready_says_nothing_of_its_arrival() -> None:
    late = shifted(0.0, 1.0)
    late.messages["awaited"] = False
    assert np.isnan(message_times(late, PREDICTED, paced=True).arrival_off_s).all()


def test_a_message_that_was_not_predicted_is_an_error() -> None:
    other = PREDICTED.messages.copy()
    other["microbatch"] += 100
    with pytest.raises(KeyError):
        message_times(replace(PREDICTED, messages=other), PREDICTED, paced=True)


# --- the prediction with what a machine adds ------------------------------------------------------


def extra(seconds: float) -> ExtraTimes:
    flows = {(a, b): [np.full(3, seconds)] for a in range(4) for b in range(4) if abs(a - b) == 1}
    return ExtraTimes(flows, frozenset({(1, 2), (2, 1)}))


def test_a_machine_that_adds_nothing_changes_nothing() -> None:
    found = predict_on_host(Load(PROBLEM, SCHEDULE), extra(0.0), draws=5)
    assert set(found) == {float(PREDICTED.makespans()[0])}


def test_what_every_message_takes_more_is_a_delay() -> None:
    """The same as handing over later, which the model knows of itself."""
    found = predict_on_host(Load(PROBLEM, SCHEDULE), extra(0.01), draws=5)
    expected = simulate(replace(PROBLEM, handover_s=PROBLEM.handover_s + 0.01), SCHEDULE)
    assert list(found) == pytest.approx([float(expected.makespans()[0])] * 3)


def test_a_draw_is_of_one_measured_iteration_and_the_interval_holds_them_all() -> None:
    """Three measured iterations, one slow throughout: half of the draws are not slow, and the slow one is expected."""
    slow, fast = np.full(8, 0.02), np.zeros(8)
    flows = {pair: [fast, slow, fast] for pair in extra(0.0).by_flow}
    found = predict_on_host(Load(PROBLEM, SCHEDULE), ExtraTimes(flows, frozenset()), draws=60)
    ends = [predict_on_host(Load(PROBLEM, SCHEDULE), extra(seconds), draws=1).median_s for seconds in (0.0, 0.02)]
    assert found.median_s == pytest.approx(ends[0])
    # Student's t with two degrees of freedom, 4.30 (tables), standard deviation of (0, 1, 0) is 0.577
    half = 4.30 * 0.577 * (1 + 1 / 3) ** 0.5 * (ends[1] - ends[0])
    assert found.high_s - found.median_s == pytest.approx(half, rel=0.02)
    assert found.median_s - found.low_s == pytest.approx(half, rel=0.02)


def test_measurements_are_put_together_iteration_by_iteration() -> None:
    one = ExtraTimes({(0, 1): [np.array([1.0])]}, frozenset({(0, 1)}))
    other = ExtraTimes({(0, 1): [np.array([3.0])], (1, 2): [np.array([5.0, 5.0])]}, frozenset())
    both = one.with_later(other)
    assert both.iterations == 2
    assert {pair: [part.tolist() for part in parts] for pair, parts in both.by_flow.items()} == {
        (0, 1): [[1.0], [3.0]],
        (1, 2): [[], [5.0, 5.0]],
    }
    assert both.crossing == {(0, 1)}


def test_a_flow_that_was_not_measured_takes_what_flows_like_it_take() -> None:
    known = ExtraTimes({(0, 1): [np.array([1.0, 1.0])], (1, 2): [np.array([5.0])]}, frozenset({(1, 2)}))
    assert known.of(3, 2, crosses=False).tolist() == [1.0, 1.0]
    assert known.of(3, 0, crosses=True).tolist() == [5.0]
    with pytest.raises(ValueError, match="no message was measured"):
        ExtraTimes({}, frozenset()).of(0, 1, crosses=False)


@pytest.mark.parametrize(("expected_s", "trusted"), [(1.0, True), (1.02, True), (1.03, False)])
def test_a_machine_that_adds_too_much_is_not_trusted(expected_s: float, trusted: bool) -> None:
    assert host_check(1.0, expected_s).ok == trusted
