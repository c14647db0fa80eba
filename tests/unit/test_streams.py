"""Several connections for each pair of ranks: how messages are cut, what that costs, where it is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.model.lower import lower
from testbed.model.orders import Orders
from testbed.model.simulate import jobs_in_ticks, run
from testbed.plan.costs import predict_case, problem_of_case, schedule_of
from testbed.plan.framing import ACK_BYTES, equal_parts, part_bytes, wire_bytes
from testbed.plan.plan import Plan
from testbed.plan.traffic import planned_traffic
from testbed.planning import file
from testbed.planning.prediction import loads_of_case
from testbed.planning.resolve import make_plan, with_cases, with_enforcement
from testbed.planning.schedules import choose, make
from testbed.spec import load_workload
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.trace.tables import NOTICE

ROOT = Path(__file__).parents[2]
SIZE, RATE_BPS, DELAY_S = 100_001, 100e6, 5e-3
NETWORK: dict[str, Any] = {
    "name": "pair",
    "datacenters": {"a": {"nodes": 4}, "b": {"nodes": 4}},
    "links": [{"between": ["a", "b"], "delay": "5 ms", "rate": "100 Mbit/s"}],
}
REPLICAS = {
    "parallelism": "{pipeline: 2, data: 2}",
    "placement": "[a/0, b/0]",
    "data_parallel": "{replicas: [[b/1, a/1]], parameters: 1 MB}",
}


def planned(**settings: str) -> Plan:
    given = {"message": f"{SIZE} B", "parallelism": "{pipeline: 2}", "microbatches": "1", "schedules": "[1f1b]"}
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", {**given, **settings})
    plan = make_plan(validate(Topology, NETWORK, "pair.yaml"), workload)
    choices = choose(plan)
    return with_cases(plan, choices, make(plan, choices, strict=True).made)


def test_parts_are_as_equal_as_can_be_and_none_is_empty() -> None:
    assert equal_parts(10, 4) == [3, 3, 2, 2]
    assert equal_parts(3, 16) == [1, 1, 1]
    assert part_bytes(SIZE, 4, 1) == (SIZE,)
    parts = part_bytes(SIZE, 4, 16)
    assert sum(parts) == 100_004  # whole elements
    assert max(parts) - min(parts) == 4


@pytest.mark.parametrize("receives", ["early", "late"])
@pytest.mark.parametrize("streams", [1, 2, 16])
def test_a_message_is_there_when_its_last_part_is(streams: int, receives: str) -> None:
    plan = planned(streams=str(streams), receives=receives)
    (case,) = plan.cases
    schedule = schedule_of(plan, case)
    assert schedule is not None
    messages = predict_case(plan, case, schedule).messages
    first = messages[messages["kind"] != NOTICE][0]
    element = plan.jobs[0].workload.model.element_bytes
    whole = -(-SIZE // element) * element  # it is no whole number of elements
    assert whole > SIZE
    wire = sum(wire_bytes(part) + plan.host_costs.gloo_bytes for part in part_bytes(whole, element, streams))
    assert first["wire_bytes"] == wire
    assert first["payload_bytes"] == whole
    # the receive's notices came long before, so all parts leave as one block
    way_s = 8 * wire / RATE_BPS + DELAY_S + plan.host_costs.handover_s
    assert first["arrived_s"] - first["sent_s"] == pytest.approx(way_s, rel=1e-7)
    assert sum(messages["kind"] != NOTICE) == 2  # there and back: parts are no messages of the trace
    assert sum(messages["kind"] == NOTICE) == (4 * streams if receives == "late" else 0)


def test_a_late_receive_costs_every_part_a_notice() -> None:
    """A receive that is posted when the message waits already: the notices cross the link, then the parts."""
    settings = {"pacing": "{F: [1 ms, 200 ms], I: 200 ms, W: 200 ms}", "microbatches": "2", "receives": "late"}
    for streams in (1, 4):
        plan = planned(streams=str(streams), schedules="[gpipe]", **settings)
        (case,) = plan.cases
        schedule = schedule_of(plan, case)
        assert schedule is not None
        messages = predict_case(plan, case, schedule).messages
        second = messages[(messages["kind"] != NOTICE) & (messages["microbatch"] == 1)][0]
        assert second["posted_s"] > second["sent_s"] + 0.1  # its receiver was computing
        elements = plan.jobs[0].workload.model.element_bytes
        parts = [wire_bytes(part) + plan.host_costs.gloo_bytes for part in part_bytes(SIZE, elements, streams)]
        size = sum(parts) - streams * plan.host_costs.notice_bytes  # those of the sends went ahead
        trip_s = 8 * (plan.host_costs.notice_bytes + size) / RATE_BPS + 2 * DELAY_S
        acks_s = 8 * streams * ACK_BYTES / RATE_BPS  # of the notices, on the same link as the parts
        took_s = second["arrived_s"] - second["posted_s"]
        assert trip_s < took_s <= trip_s + acks_s + 5e-6


@pytest.mark.parametrize("settings", [{}, REPLICAS, {"receives": "late"}, {"parallelism": "{pipeline: 2, tensor: 2}"}])
def test_counters_are_held_against_what_every_connection_sends(settings: dict[str, str]) -> None:
    streams, bytes_of = 4, {}
    for count in (1, streams):
        plan = planned(streams=str(count), microbatches="3", **settings)
        bytes_of[count] = planned_traffic(plan, plan.cases[0])
    for one, several in zip(bytes_of[1], bytes_of[streams], strict=True):
        assert several.messages == streams * one.messages
        assert several.wire_bytes > one.wire_bytes


@pytest.mark.parametrize("settings", [{}, REPLICAS, {"receives": "late"}])
def test_the_compiled_model_cuts_messages_as_the_plain_one_does(settings: dict[str, str]) -> None:
    plan = planned(streams="3", microbatches="4", **settings)
    _, loads = jobs_in_ticks(loads_of_case(plan, plan.cases[0]))
    program, _ = lower(loads)
    for plain, compiled in zip(run(program, compiled=False), run(program, compiled=True), strict=True):
        np.testing.assert_array_equal(plain, compiled)


@pytest.mark.parametrize("settings", [{}, REPLICAS, {"receives": "late"}])
def test_other_orders_keep_parts_on_time(settings: dict[str, str]) -> None:
    """What a part leaves later is given back where it arrives: only who comes first may change."""
    plan = planned(streams="3", microbatches="4", **settings)
    within_s = 2e-6
    orders = Orders(loads_of_case(plan, plan.cases[0]), within_s)
    for order in itertools.islice(orders.drawn(), 6):
        assert order.ends_s[0] == pytest.approx(orders.predicted_s[0], abs=10 * within_s)


def test_a_plan_of_one_stream_is_written_as_before_there_were_several() -> None:
    for streams in (1, 4):
        plan = planned(streams=str(streams))
        text = file.to_json(plan)
        assert json.loads(text)["jobs"][0]["workload"].get("streams", 1) == streams
        assert ("streams" in text) is (streams > 1)
        assert file.from_json(text, "plan.json") == plan


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"streams": "0"}, "streams"),
        ({"streams": "65"}, "streams"),
        ({"streams": "1.5"}, "streams"),
        (
            {
                **REPLICAS,
                "streams": "2",
                "data_parallel": "{replicas: [[b/1, a/1]], sharding: none, algorithm: torch}",
            },
            "data_parallel.algorithm",
        ),
    ],
)
def test_streams_that_cannot_be_are_refused(settings: dict[str, str], field: str) -> None:
    with pytest.raises(BadInput, match=field):
        planned(**settings)


def test_routes_by_ports_have_one_stream() -> None:
    with pytest.raises(BadInput, match=r"streams: got 2, expected 1 with --enforce ports"):
        with_enforcement(planned(streams="2"), "ports")


def test_problems_say_what_each_part_weighs() -> None:
    plan = planned(streams="4", **REPLICAS)
    problem = problem_of_case(plan, plan.cases[0])
    assert [len(parts) for parts in problem.part_bytes] == [4]
    assert [sum(parts) for parts in problem.part_bytes] == list(problem.message_bytes)
    for collective in (*problem.all_gather, *problem.reductions):
        assert all(sum(collective.parts(step)) == collective.size(step) for step in collective.steps)
    assert problem_of_case(planned(), planned().cases[0]).part_bytes == ()
