"""The event model is the first-come network that it says it is; the quick form of benchmarks/network_oracle.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import network_oracle

from testbed.model.lower import lower
from testbed.model.network import (
    NO_QUEUE,
    AckQueues,
    LinkOccupancy,
    acknowledge,
    acknowledge_onward,
    carry_acknowledgements,
    idle,
    occupy,
    steady,
)
from testbed.model.simulate import run


@pytest.mark.parametrize("compiled", [False, True])
def test_every_packet_by_itself_comes_to_the_same_times(compiled: bool) -> None:
    cases = range(150, 180) if compiled else range(24)
    wrong = {case: found for case in cases if (found := network_oracle.differences(case, compiled=compiled))}
    assert not wrong


def test_with_times_that_are_any_numbers() -> None:
    wrong = {case: found for case in range(14) if (found := network_oracle.differences(case, real=True))}
    assert not wrong
    changing = [case for case in range(14) if lower(network_oracle.drawn(case, real=True))[0].changed_at_s.size]
    assert len(changing) > 4, "links that change are among them"


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_acknowledged_over_two_links(compiled: bool) -> None:
    cases = range(150, 180) if compiled else range(24)
    wrong = {c: found for c in cases if (found := network_oracle.differences(c, two_links=True, compiled=compiled))}
    assert not wrong
    in_queues = [c for c in cases if (lower(network_oracle.drawn(c, two_links=True))[0].queue_onward != NO_QUEUE).any()]
    assert len(in_queues) > len(cases) / 4, "acknowledgements in queues are among them"


def test_acknowledgements_in_queues_of_two_links_are_as_events_of_their_own() -> None:
    """Also when each link was free for good."""
    for case in range(200, 300):
        program, _ = lower(network_oracle.drawn(case, real=case % 2 == 0, two_links=True))
        events = program._replace(ack_queue=np.full(len(program.ack_queue), NO_QUEUE))
        for queued, each in zip(run(program), run(events), strict=True):
            np.testing.assert_array_equal(queued, each, f"case {case}")


def test_of_two_acknowledgements_at_one_instant_the_one_that_was_scheduled_first_goes_on_first() -> None:
    """Two come to link 0 at 10 s and go on to links 1 and 2; a byte takes a second."""
    ints = np.array
    queues = AckQueues(
        ints([0, 2, 3, 4]), ints([0, 0, 1, 2]), ints([2, 3, NO_QUEUE, NO_QUEUE]), ints([0, 1, 3, 5]),
        ints([0, 0, 1, 0, 2]), ints([1, 1, 1, 1]),
    )  # fmt: skip
    wires = idle(np.zeros(3), np.ones(3), steady(3), False, queues)
    acknowledge_onward(wires, 0, 6.0, 10.0, 2)
    acknowledge_onward(wires, 1, 6.0, 10.0, 1)
    carry_acknowledgements(wires, 1, 30.0)
    carry_acknowledgements(wires, 2, 30.0)
    assert wires.free_s.tolist() == [22.0, 28.0, 22.0]


def test_half_of_the_links_that_change_stamp_what_comes() -> None:
    stamped = [c for c in range(1, 50, 2) if lower(network_oracle.drawn(c, real=True))[0].stamped]
    assert len(stamped) > 10


def test_links_that_change_compiled() -> None:
    wrong = {c: found for c in range(51, 80, 2) if (found := network_oracle.differences(c, real=True, compiled=True))}
    assert not wrong


@pytest.mark.parametrize("compiled", [False, True])
def test_shards_are_passed_on_in_the_order_in_which_they_came(compiled: bool) -> None:
    """Case 557: two come before their rank begins. 701: one is passed on where tensor ranks waited for it too."""
    assert not network_oracle.differences(557, compiled=compiled)
    assert not network_oracle.differences(701, compiled=compiled)


def test_acknowledgements_come_first_at_one_instant_over_several_links_too() -> None:
    assert not network_oracle.differences(4821)


def one_link() -> LinkOccupancy:
    """With a queue for one row of acknowledgements; a byte takes a second."""
    ints = np.array
    queues = AckQueues(ints([0, 1]), ints([0]), ints([NO_QUEUE]), ints([0, 1]), ints([0]), ints([1]))
    return idle(ints([0.0]), ints([1.0]), steady(1), False, queues)


def free_after(*looks: float) -> float:
    """When a link is free that somebody looks at at these times, with four acknowledgements at 10, 20, 30 and 31."""
    wires = one_link()
    acknowledge(wires, 0, 6.0, (10.0, 10.0, 31.0), 4)
    for now in looks:
        carry_acknowledgements(wires, 0, now)
    return float(wires.free_s[0])


def test_the_last_acknowledgement_comes_when_it_comes() -> None:
    """It may follow sooner than the others did, and waits for the last but one."""
    assert free_after(31.0) == 42.0, "30 to 36, then the last one"
    assert free_after(30.0) == 36.0
    assert free_after(30.0, 31.0) == 42.0, "partly carried before"
    assert free_after(30.0, 30.5) == 36.0


@pytest.mark.timeout(60)
def test_a_last_acknowledgement_whose_steps_are_rounded_to_less_than_its_end_is_not_waited_for_without_end() -> None:
    wires, in_steps = one_link(), 0.1 + 2 * 0.1
    end = float(np.nextafter(in_steps, 1))
    acknowledge(wires, 0, 0.01, (0.1, 0.1, end), 3)
    for now in (0.2, in_steps):
        carry_acknowledgements(wires, 0, now)
    assert wires.free_s[0] == pytest.approx(0.21)
    carry_acknowledgements(wires, 0, end)
    assert wires.free_s[0] == pytest.approx(end + 0.01)


def test_a_message_that_comes_meanwhile_waits_for_what_is_there() -> None:
    wires = one_link()
    acknowledge(wires, 0, 6.0, (10.0, 10.0, 31.0), 4)
    carry_acknowledgements(wires, 0, 22.0)
    assert occupy(wires, 0, 3.0, 22.0, 22.0) == 26.0
    carry_acknowledgements(wires, 0, 40.0)
    assert wires.free_s[0] == 42.0


def test_what_is_lowered_has_what_the_oracle_is_about() -> None:
    """Cases with acknowledgements by the one way and the other, notices, pieces, cards: or equality says nothing."""
    seen = {"queue": 0, "events": 0, "notices": 0, "pieces": 0, "sums": 0, "parts": 0, "shared": 0}
    for case in range(60):
        loads = network_oracle.drawn(case)
        program, _ = lower(loads)
        ends = run(program).end_s
        assert not np.isnan(ends).any()
        back = program.route_start[program.back + 1] - program.route_start[program.back]
        seen["queue"] += bool((program.ack_queue >= 0).any())
        seen["events"] += bool(((program.acks > 0) & (back > 1)).any())
        seen["notices"] += bool(program.answered.any())
        seen["pieces"] += bool((program.pieces > 1).any())
        seen["sums"] += bool((program.sums > 0).any() and (program.card >= 0).any())
        seen["parts"] += bool((program.gathered_bytes > 0).any() and (program.card >= 0).any())
        seen["shared"] += len(loads) > 1
    assert min(seen.values()) >= 5, seen
