"""A change during a run: found whenever it begins, named, and untrusted where the quoted median is not right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from testbed.judge import changes
from testbed.judge.changes import FlowParts
from testbed.judge.evidence import CaseEvidence, judge
from testbed.judge.fidelity import Check, NetworkEvidence
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.judge.messages import by_flow, by_iteration, message_times
from testbed.model.simulate import simulate
from testbed.pipeline.problem import uniform
from testbed.schedule.registry import generate
from testbed.thresholds import CHANGE_SHARE
from testbed.trace.tables import Trace, concatenate
from testbed.train.assignment import ReferenceOutcome

PROBLEM = uniform(4, 8, forward_s=0.02, input_s=0.02, weight_s=0.02, delay_s=5e-3, cuts=(1,))
PREDICTED = simulate(PROBLEM, generate("1f1b", PROBLEM))
PREDICTED_S = float(PREDICTED.makespans()[0])
WAYS = {(1, 2): ("paris->warsaw",), (2, 1): ("warsaw->paris",)}
COUNT = 20


def case(
    shift_s: Callable[[int], float],
    share: Callable[[int], float],
    *,
    real: bool = False,
    flows: tuple[tuple[int, int], ...] = ((1, 2),),
    count: int = COUNT,
    only_late: bool = False,
) -> CaseEvidence:
    """Measured iterations from 2 on: `shift_s` more for messages of these flows, and `share` more for the iteration.

    `only_late`: where they are not late they lie ready, so that nothing is known of their arrival.
    """
    noise = np.random.default_rng(1)
    traces, rows = [], []
    for number in range(count):
        one = Trace(PREDICTED.actions.copy(), PREDICTED.messages.copy(), PREDICTED.n_ranks)
        one.actions["iteration"] = one.messages["iteration"] = 2 + number
        for source, target in flows:
            mine = (one.messages["source_rank"] == source) & (one.messages["target_rank"] == target)
            one.messages["taken_s"][mine] += shift_s(number)
            one.messages["awaited"][mine] &= not only_late or shift_s(number) != 0
        if real:
            one.messages["taken_s"] += np.abs(noise.normal(0, 0.1e-3, len(one.messages)))
        traces.append(one)
        took_s = PREDICTED_S * (1 + share(number) + (noise.normal(0, 1e-3) if real else 0.0))
        peaks = (4.0, 3.0, 2.0, 1.0)
        row = IterationRow(2 + number, False, took_s, 0.4, 5.0, peaks, peaks, 0, 0.0, 96, 0.0, Witnesses(), (1.0,))
        rows.append(row)
    times = message_times(concatenate(traces), PREDICTED, paced=True)
    found = by_flow(times)
    network = NetworkEvidence(0, 0, {}, lossless=True)
    host_s, baseline_s = PREDICTED_S if real else None, [0.0] * len(found)
    known = network, (), ReferenceOutcome(), PREDICTED_S, host_s, found, 0.0, baseline_s
    routes = [WAYS.get((flow.source_rank, flow.target_rank), ()) for flow in found]
    more: dict[str, Any] = {
        "quartiles_s": by_iteration(times, [row.iteration for row in rows]),
        "routes": routes,
        "modelled": True,
    }
    return CaseEvidence(True, real, (), None, rows, (), *known)._replace(**more)


def checks(one: CaseEvidence) -> list[Check]:
    """Those that times are judged by."""
    return [check for check in judge(one) if "process" not in check.question]


def untrusted(one: CaseEvidence) -> str:
    return " | ".join(reason for check in checks(one) for reason in check.reasons)


def noted(one: CaseEvidence) -> str:
    return " | ".join(note for check in checks(one) for note in check.notes)


@pytest.mark.parametrize("real", [False, True])
def test_nothing_changed(real: bool) -> None:
    one = case(lambda _: 0.0, lambda _: 0.0, real=real)
    assert not untrusted(one)
    assert not noted(one)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(("begins", "share"), [(6, 0.09), (7, 0.072), (3, 0.081)])
def test_a_step_of_a_link_during_the_run(begins: int, share: float, real: bool) -> None:
    """The first quartile over all messages hides it, and so did a spread of 10 %."""
    one = case(
        lambda number: 10e-3 if number >= begins else 0.0, lambda number: share if number >= begins else 0.0, real=real
    )
    reasons = untrusted(one)
    assert f"iterations {2 + begins} to {COUNT + 1} of 2 to {COUNT + 1}: activations from rank 1 to 2" in reasons
    assert "10 ms longer" in reasons or real
    assert "paris->warsaw" in reasons
    assert "warsaw->paris" not in reasons


@pytest.mark.parametrize("real", [False, True])
def test_a_step_that_begins_late_leaves_the_median_right_and_is_noted(real: bool) -> None:
    one = case(lambda n: 10e-3 if n >= 16 else 0.0, lambda n: 0.09 if n >= 16 else 0.0, real=real)
    assert not untrusted(one)
    assert "iterations 18 to 21" in noted(one)
    assert "paris->warsaw" in noted(one)


@pytest.mark.parametrize("real", [False, True])
def test_a_blip_is_noted(real: bool) -> None:
    one = case(lambda n: 20e-3 if n == 7 else 0.0, lambda n: 0.1 if n == 7 else 0.0, real=real)
    assert not untrusted(one)
    assert noted(one).startswith("iterations 9 of 2 to 21")


@pytest.mark.parametrize("slow", [0, 1, 9, 19])
def test_an_iteration_that_losses_made_longer_is_no_change_of_those_that_follow(slow: int) -> None:
    """Where losses were asked for: on a lossless network what comes after the first one is unlike what was before."""
    times_s = np.where(np.arange(COUNT) == slow, 1.12 * PREDICTED_S, PREDICTED_S)
    assert np.flatnonzero(changes.since_the_beginning(times_s, 1e-3, by_chance=True)).tolist() == [slow]
    assert np.flatnonzero(changes.since_the_beginning(times_s, 1e-3)).tolist() == [*range(1, COUNT)] or slow > 0
    half = np.where(np.arange(COUNT) >= 8, 1.12 * PREDICTED_S, PREDICTED_S)
    assert np.flatnonzero(changes.since_the_beginning(half, 1e-3, by_chance=True)).tolist() == [*range(8, COUNT)]


@pytest.mark.parametrize("times_s", [(2.0846, 2.2005, 4.2587, 4.1809), (0.6095, 0.6033, 0.5272, 0.5261)])
def test_where_packets_are_lost_as_asked_a_few_iterations_tell_of_no_change(times_s: tuple[float, ...]) -> None:
    """Any of them may be the ones that lost some; without losses they tell of one."""
    assert not changes.since_the_beginning(np.array(times_s), 1e-3, by_chance=True).any()
    assert changes.since_the_beginning(np.array(times_s), 1e-3).any()


@pytest.mark.parametrize(("share", "least"), [(0.05, 0.9), (0.3, 0.4)])
def test_losses_by_chance_are_seldom_taken_for_a_change_and_a_change_among_them_is_seen(
    share: float, least: float
) -> None:
    """1,000 runs of 8 to 40 iterations, of which a share lost packets and waited for a timeout; nothing else happened
    to them, or links became slower halfway."""
    draw, false, seen = np.random.default_rng(5), 0, 0
    for number in range(1000):
        count = int(draw.integers(8, 41))
        lost = draw.random(count) < share
        times_s = 1.0 + lost * (0.2 + draw.exponential(0.3, count))
        for slower in (1.0, 1.5) if number % 5 == 0 else (1.0,):
            measured_s = times_s * np.where(np.arange(count) < count // 2, 1.0, slower)
            off = changes.off_share(measured_s, changes.since_the_beginning(measured_s, 0.02, by_chance=True))
            if not abs(off) <= 0.02:
                false, seen = false + (slower == 1.0), seen + (slower > 1.0)
    assert false <= 20, f"{false} of 1000 of which nothing changed"
    assert seen >= least * 200, f"{seen} of 200 that changed"


def test_messages_that_losses_made_late_are_no_change_of_their_link_and_a_slower_link_is_one() -> None:
    """1,000 runs of 12 flows each, whose messages wait for a timeout by chance in some iterations; in 50 of the runs
    one flow's take longer from the middle on."""
    draw, flows, false, seen = np.random.default_rng(3), 12, 0, 0
    for number in range(1000):
        count, share = int(draw.integers(8, 31)), draw.choice((0.1, 0.3, 0.6))
        late_s = (draw.random((flows, count)) < share) * draw.exponential(0.2, (flows, count))
        false += any(changes.more_than_chance(late_s, 0.5e-3))
        if number % 20 == 0:
            slower_s = late_s[0] + 0.5 * (np.arange(count) >= count // 2)
            seen += count >= 16 and changes.more_than_chance([slower_s, *late_s[1:]], 0.5e-3)[0]
    assert false <= 40, f"{false} of 1000 runs of which nothing changed"
    assert seen >= 25, f"{seen} of those of 16 iterations and more"


@pytest.mark.parametrize(("count", "begins"), [(8, 4), (10, 6), (12, 8)])
def test_a_slower_link_is_told_from_losses_in_few_iterations_whose_flows_all_cross_it(count: int, begins: int) -> None:
    """Flows that change together are no more chances than one; three that only lose packets are not meant."""
    draw = np.random.default_rng(2)
    slower_s = 0.01 * (np.arange(count) >= begins)
    lossy_s = (draw.random((3, count)) < 0.2) * draw.exponential(0.2, (3, count))
    rows = [*(slower_s + noise_s for noise_s in draw.normal(0, 1e-6, (6, count))), *lossy_s]
    assert changes.more_than_chance(rows, 1e-3) == [True] * 6 + [False] * 3


def test_iterations_that_jitter_by_chance_are_no_change() -> None:
    """1,000 runs of 4 to 40 iterations that scatter by up to half a per cent."""
    draw, untrusted = np.random.default_rng(7), 0
    for _ in range(1000):
        times_s = 1 + draw.uniform(0, 5e-3) * draw.normal(size=draw.integers(4, 41))
        off = changes.off_share(times_s, changes.since_the_beginning(times_s, 0.01, by_chance=True))
        untrusted += not abs(off) <= 0.01
    assert untrusted == 0


def test_a_first_iteration_that_the_machine_disturbed_makes_no_change_of_all_others() -> None:
    """One that nothing explains does: what came after it is then unlike what was before."""
    one = case(lambda number: 0.0, lambda number: 0.03 if number == 0 else 0.0, real=True)
    disturbed = one.rows[0]._replace(witnesses=Witnesses(steal_s=0.03 * PREDICTED_S))
    assert "something changed in iterations 3 to 21" in untrusted(one)
    asked = "the median, of unchanged iterations"
    found = {check.question: check for check in judge(one._replace(rows=[disturbed, *one.rows[1:]]))}
    assert found[asked].ok, found[asked]
    assert "iterations 2 of 2 to" in found[asked].notes[0]
    later = case(lambda number: 0.0, lambda number: 0.03 if number >= 8 else 0.0, real=True)
    found = {check.question: check for check in judge(later._replace(rows=[disturbed, *later.rows[1:]]))}
    assert not found[asked].ok


@pytest.mark.parametrize(("late", "iterations"), [((7,), "9"), ((16, 17, 18, 19), "18 to 21")])
def test_messages_that_are_known_only_where_they_are_late(late: tuple[int, ...], iterations: str) -> None:
    """As of collectives: their first quartile is that of the late ones, however few iterations have any."""
    one = case(lambda n: 20e-3 * (n in late), lambda n: 0.1 * (n in late), only_late=True)
    assert not untrusted(one)
    assert f"iterations {iterations} of 2 to 21" in noted(one)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_messages_that_are_late_in_most_iterations_leave_a_run_untrusted(share: float) -> None:
    one = case(lambda n: 20e-3 if n >= 6 else 0.0, lambda n: share if n >= 6 else 0.0, only_late=True)
    assert "20 ms longer than predicted" in untrusted(one)


def test_every_interface_a_little_slower_from_the_start_is_seen_on_the_virtual_clock() -> None:
    """+0.9 ms is within the real clock's limit of 1 ms, and moves an iteration by 3.65 %."""
    everywhere = tuple((source, target) for source in range(4) for target in range(4))
    one = case(lambda _: 0.9e-3, lambda _: 0.0365, flows=everywhere)
    assert "+3.65%" in untrusted(one)
    assert "every flow" in untrusted(one)


def test_a_slower_link_off_the_way_that_decides_is_noted() -> None:
    one = case(lambda _: 0.4e-3, lambda _: 0.0)
    assert not untrusted(one)
    assert "400 us longer" in noted(one)


def test_iterations_that_no_message_explains() -> None:
    one = case(lambda _: 0.0, lambda n: 0.02 if n >= 5 else 0.0)
    assert "iterations 7 to 21 of 2 to 21: no flow's messages beyond their limits" in untrusted(one)


def test_within_a_range_the_time_is_what_the_model_says() -> None:
    one = case(lambda _: 0.0, lambda _: 0.004)
    assert untrusted(one)
    assert not untrusted(one._replace(range_s=(PREDICTED_S, 1.005 * PREDICTED_S)))


def test_where_the_model_lacks_something_iterations_are_held_against_each_other() -> None:
    off = case(lambda _: 0.0, lambda _: 0.05)._replace(modelled=False, baseline_extra_s=None)
    assert not untrusted(off)
    step = case(lambda n: 10e-3 if n >= 5 else 0.0, lambda n: 0.05 if n >= 5 else 0.0)
    assert "something changed" in untrusted(step._replace(modelled=False, baseline_extra_s=None))


def test_messages_by_chance_in_another_order_leave_a_run_trusted() -> None:
    """Where tensor ranks and replicas meet at equal network cards: a few super-packets, and the time is right."""
    one = case(lambda _: 1.6e-3, lambda _: 4e-5)
    assert untrusted(one)
    assert not untrusted(one._replace(super_packets_s=[0.5e-3] * len(one.flows)))


def test_messages_that_are_a_little_longer_on_their_way_are_too_long_together() -> None:
    """Each within the limit of 1 ms of a real clock; through the model they make 3 % of the iteration."""
    one = case(lambda _: 0.0, lambda _: 0.0, real=True)
    assert not untrusted(one._replace(in_run_s=1.02 * PREDICTED_S))
    assert "+3.0% longer than predicted" in untrusted(one._replace(in_run_s=1.03 * PREDICTED_S))


def shifted(name: str, way: tuple[str, ...], *, moved: bool) -> FlowParts:
    source, target = map(int, name)
    return FlowParts(source, target, "activation", way, np.full(4, 1e-3 if moved else 0.0), 50e-6)


def test_of_several_flows_the_direction_that_they_share_is_named() -> None:
    flows = [
        shifted("02", ("a->b", "b->c"), moved=True),
        shifted("12", ("b->c",), moved=True),
        shifted("01", ("a->b",), moved=False),
        shifted("20", ("c->b", "b->a"), moved=False),
    ]
    assert changes.blamed(flows[:2], flows) == ["b->c"]


def test_of_all_that_leaves_a_node_the_node_is_named() -> None:
    flows = [
        shifted("10", (), moved=True),
        shifted("12", ("a->b",), moved=True),
        shifted("02", ("a->b",), moved=False),
        shifted("20", ("b->a",), moved=False),
    ]
    assert changes.blamed(flows[:2], flows) == ["what leaves rank 1 (its node's interface, or the rank itself)"]


@pytest.mark.parametrize(
    ("loses", "slow", "advice"),
    [
        (True, range(5, COUNT), "try 5 more for warm-up"),
        (True, range(8, 16), ""),
        (True, range(8), ""),
        (False, range(5, COUNT), ""),
    ],
    ids=["settled", "and back", "at first", "lossless"],
)
def test_of_a_network_that_loses_a_longer_warm_up_is_advised(loses: bool, slow: range, advice: str) -> None:
    """TCP's windows are wide until the first losses: fast iterations at the beginning, then slower ones to the end."""
    far = np.array([number in slow for number in range(COUNT)])
    found = changes.find(range(2, 2 + COUNT), np.ones(COUNT), [], far, loses=loses)
    said = changes.reason(0.2, CHANGE_SHARE, found, loses=loses)
    assert said.endswith(advice or "(limit 1.0%)")
    assert "warm-up" not in changes.reason(-0.2, CHANGE_SHARE, found, loses=loses), "they do not become faster"
    assert "something changed in iterations" in said


def test_messages_that_changed_are_no_matter_of_warm_up() -> None:
    shift_s = np.where(np.arange(COUNT) < 5, 0.0, 0.1)
    flow = FlowParts(1, 2, "activation", ("paris->warsaw",), shift_s, 1e-3)
    found = changes.find(range(COUNT), np.ones(COUNT), [flow], np.zeros(COUNT, bool), loses=True)
    assert "warm-up" not in changes.reason(0.2, CHANGE_SHARE, found, loses=True)


def test_a_check_without_notes_is_read_from_earlier_versions() -> None:
    assert Check("q", "f", "l", "w").notes == ()
