"""Messages measured against predicted: what is known of an arrival, and what is no message's fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testbed.judge.fidelity import host_check, message_check
from testbed.judge.messages import by_flow, message_times
from testbed.model.host_prediction import ExtraTimes, predict_on_host
from testbed.model.lower import Load
from testbed.model.simulate import simulate
from testbed.pipeline.problem import uniform
from testbed.schedule.registry import generate
from testbed.trace.tables import ACTIVATION, ALL_GATHER, GRADIENT, REDUCE_SCATTER, Trace

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


def test_a_slow_link_may_put_a_super_packet_ahead_and_the_verdict_says_so() -> None:
    """At 50 Mbit/s one takes 1.44 ms. What exceeds that and what a machine differs by is a shift all the same."""
    flows = [flow for flow in by_flow(message_times(shifted(0.0, 1.9e-3), PREDICTED, paced=True)) if flow.awaited]
    baseline_s, packets_s = [0.0] * len(flows), [1.44e-3] * len(flows)
    assert not message_check(flows, baseline_s).ok
    check = message_check(flows, baseline_s, (), packets_s)
    assert check.ok
    assert check.limit == "1.9 ms"
    assert "1.44 ms of it for one super-packet" in check.why
    (reason, *_) = message_check(flows, baseline_s, (), [1e-3] * len(flows)).reasons
    assert "limit 1.5 ms, 1 ms of it for one super-packet on the slowest link" in reason


def test_where_no_link_is_on_the_way_it_is_the_machine() -> None:
    flows = [flow for flow in by_flow(message_times(shifted(0.0, 1.1e-3), PREDICTED, paced=True)) if flow.awaited]
    nothing = [0.0] * len(flows)
    inside, across = (message_check(flows, nothing, (), [packet] * len(flows)) for packet in (0.0, 0.5e-3))
    assert "no link is on their way, so this machine was busier" in inside.reasons[0]
    assert across.reasons[0].endswith("something changed")
    slower_before = message_check(flows, [2.2e-3] * len(flows), (), [0.0] * len(flows))
    assert "shorter than predicted and measured before the run" in slower_before.reasons[0]
    assert slower_before.reasons[0].endswith("so this machine was less busy than then")


def test_few_messages_that_always_scatter_may_do_so_again_and_many_may_not() -> None:
    """Five messages before a run and six in it, spread over 8 ms; then the same spread of 500 and 600."""
    rng = np.random.default_rng(0)
    flow = (0, 1, ALL_GATHER)
    chances = []
    for count in (5, 500):
        known = ExtraTimes({flow: [rng.uniform(0, 8e-3, count)]}, frozenset())
        chances.append(known.differs_s(flow, crosses=False, n_later=count * 6 // 5))
        assert known.differs_s((2, 3, ALL_GATHER), crosses=False, n_later=6) > 0, "as flows like it"
        assert known.differs_s((2, 3, REDUCE_SCATTER), crosses=False, n_later=6) == 0.0
    flows = [one for one in by_flow(message_times(shifted(0.0, 4e-3), PREDICTED, paced=True)) if one.awaited]
    few, many = (message_check(flows, [0.0] * len(flows), [chance] * len(flows)) for chance in chances)
    assert few.ok
    assert "scattered as much before the run" in few.why
    assert not many.ok


def test_a_difference_by_chance_is_as_large_as_it_is_said_to_be() -> None:
    """Standard deviation over 2,000 pairs of samples of a normal distribution, 20 messages before and 30 after."""
    rng, flow = np.random.default_rng(1), (0, 1, ALL_GATHER)
    before, after = rng.normal(0, 1e-3, (2000, 20)), rng.normal(0, 1e-3, (2000, 30))
    drawn = float(np.std(np.percentile(after, 25, axis=1) - np.percentile(before, 25, axis=1)))
    said = [ExtraTimes({flow: [one]}, frozenset()).differs_s(flow, crosses=False, n_later=30) for one in before]
    assert float(np.mean(said)) == pytest.approx(drawn, rel=0.1)


def test_a_fast_link_has_the_limit_that_it_always_had() -> None:
    """Its super-packets, 0.5 ms at 1 Gbit/s, are in it."""
    flows = [flow for flow in by_flow(message_times(shifted(0.0, 1.1e-3), PREDICTED, paced=True)) if flow.awaited]
    check = message_check(flows, [0.0] * len(flows), (), [0.5e-3] * len(flows))
    assert (check.limit, check.ok) == ("1.0 ms", False)
    assert "super-packet" not in check.why + check.reasons[0]


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
    kinds = {1: ACTIVATION, -1: GRADIENT}
    flows = {(a, a + step, kinds[step]): [np.full(3, seconds)] for a in range(4) for step in kinds if 0 <= a + step < 4}
    return ExtraTimes(flows, frozenset({(1, 2, ACTIVATION), (2, 1, GRADIENT)}))


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
    flows = {flow: [fast, slow, fast] for flow in extra(0.0).by_flow}
    found = predict_on_host(Load(PROBLEM, SCHEDULE), ExtraTimes(flows, frozenset()), draws=60)
    ends = [predict_on_host(Load(PROBLEM, SCHEDULE), extra(seconds), draws=1).median_s for seconds in (0.0, 0.02)]
    assert found.median_s == pytest.approx(ends[0])
    # Student's t with two degrees of freedom, 4.30 (tables), standard deviation of (0, 1, 0) is 0.577
    half = 4.30 * 0.577 * (1 + 1 / 3) ** 0.5 * (ends[1] - ends[0])
    assert found.high_s - found.median_s == pytest.approx(half, rel=0.02)
    assert found.median_s - found.low_s == pytest.approx(half, rel=0.02)


def test_measurements_are_put_together_iteration_by_iteration() -> None:
    one = ExtraTimes({(0, 1, 0): [np.array([1.0])]}, frozenset({(0, 1, 0)}))
    other = ExtraTimes({(0, 1, 0): [np.array([3.0])], (1, 2, 0): [np.array([5.0, 5.0])]}, frozenset())
    both = one.with_later(other)
    assert both.iterations == 2
    assert {flow: [part.tolist() for part in parts] for flow, parts in both.by_flow.items()} == {
        (0, 1, 0): [[1.0], [3.0]],
        (1, 2, 0): [[], [5.0, 5.0]],
    }
    assert both.crossing == {(0, 1, 0)}


def test_a_flow_that_was_not_measured_takes_what_flows_like_it_take() -> None:
    flows = {(0, 1, ACTIVATION): [np.array([1.0, 1.0])], (1, 2, ACTIVATION): [np.array([5.0])]}
    known = ExtraTimes(flows, frozenset({(1, 2, ACTIVATION)}))
    assert known.of((3, 2, ACTIVATION), crosses=False).tolist() == [1.0, 1.0]
    assert known.of((3, 0, ACTIVATION), crosses=True).tolist() == [5.0]
    assert known.of((1, 2, GRADIENT), crosses=False).tolist() == [5.0], "of another kind between the same ranks"
    with pytest.raises(ValueError, match="no message was measured"):
        ExtraTimes({}, frozenset()).of((0, 1, ACTIVATION), crosses=False)


def test_kinds_of_messages_between_two_ranks_are_drawn_apart() -> None:
    """Replicas send each other all-gathers when all begin at once, and reduce-scatters one after the other."""
    flows = {(0, 1, ALL_GATHER): [np.array([4.0, 4.0])], (0, 1, REDUCE_SCATTER): [np.array([1.0, 1.0])]}
    known = ExtraTimes(flows, frozenset(flows))
    assert known.of((0, 1, ALL_GATHER), crosses=True).tolist() == [4.0, 4.0]
    assert known.of_iteration(0, (0, 1, REDUCE_SCATTER)).tolist() == [1.0, 1.0]


def test_a_draw_takes_a_flow_s_own_kind() -> None:
    """Two stages per rank in a V: both kinds go both ways. Gradients half a second late, activations not."""
    problem = uniform(2, 4, delay_s=2, cuts=(0,), stage_to_rank=(0, 1, 1, 0))
    schedule = generate("zb-v", problem)
    kinds = {ACTIVATION: 0.0, GRADIENT: 0.5}
    flows = {(a, 1 - a, kind): [np.full(3, kinds[kind])] for a in (0, 1) for kind in kinds}
    found = predict_on_host(Load(problem, schedule), ExtraTimes(flows, frozenset(flows)), draws=3)
    assert found.high_s == pytest.approx(found.low_s), "nothing is left to chance"


@pytest.mark.parametrize(("expected_s", "trusted"), [(1.0, True), (1.02, True), (1.03, False)])
def test_a_machine_that_adds_too_much_is_not_trusted(expected_s: float, trusted: bool) -> None:
    assert host_check(1.0, expected_s).ok == trusted
