"""Network cards: in the file, in the plan, in the model, in what counters are held against, and as token buckets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.baseline.settings import with_settings
from testbed.errors import BadInput, MachineLacks
from testbed.lab.cards import choose as choose_cards
from testbed.lab.cards import delay_note
from testbed.lab.shaping import End, ShapedDirection
from testbed.lab.shaping.tbf import BucketMessage, TbfParameters, parameters, request
from testbed.plan.costs import predict_case, problem_of_case, schedule_of
from testbed.plan.framing import ACK_BYTES, super_packet_bytes, wire_bytes
from testbed.plan.plan import Plan
from testbed.plan.traffic import planned_traffic
from testbed.planning import file
from testbed.planning.resolve import make_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.schedule.geopipe import cuts
from testbed.spec import load_workload
from testbed.spec.document import validate
from testbed.spec.topology import Topology

ROOT = Path(__file__).parents[2]
PP4 = ROOT / "workloads/tiny-gpt-pp4.yaml"
LINK = {"between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"}


def topology(a: dict[str, Any] | None = None, b: dict[str, Any] | None = None, nodes: int = 2) -> Topology:
    sites = {name: {"nodes": nodes} | ({"inside": of} if of else {}) for name, of in (("a", a), ("b", b))}
    return validate(Topology, {"name": "net", "datacenters": sites, "links": [LINK]}, "net.yaml")


def planned(network: Topology, **settings: str) -> Plan:
    plan = make_plan(network, load_workload(PP4, {"schedules": "[1f1b]", **settings}))
    choices = choose(plan)
    return with_cases(plan, choices, make(plan, choices, strict=True).made)


SLOW = {"delay": "10 us", "rate": "500 Mbit/s"}
FAST = {"rate": "10 Gbit/s"}


# --- the file -----------------------------------------------------------------------------------


def test_every_node_of_a_datacenter_with_an_inside_has_a_card() -> None:
    cards = topology(SLOW, None).cards()
    assert [(card.source, card.target, card.rate_bps) for card in cards] == [("a/0", "a", 500e6), ("a/1", "a", 500e6)]
    assert cards[0].delay_s == pytest.approx(10e-6)
    assert cards[0].label == "a/0->a (card)"
    assert topology(None, FAST).cards()[0].delay_s == 0
    assert topology().cards() == []


@pytest.mark.parametrize(
    ("inside", "field", "expected"),
    [
        ({"delay": "10 us"}, "inside.rate", "this field to be given"),
        ({"rate": "10 Gbit"}, "inside.rate", "a rate with a unit"),
        ({"rate": "1 kbit/s"}, "inside.rate", "a rate from 1 Mbit/s to 1000 Tbit/s"),
        ({"rate": "2000 Tbit/s"}, "inside.rate", "a rate from 1 Mbit/s to 1000 Tbit/s"),
        ({"rate": "1 Gbit/s", "delay": "1 s"}, "inside.delay", "a time from 0 to 10 ms"),
        ({"rate": "1 Gbit/s", "delay": 10}, "inside.delay", "a time with a unit"),
        ({"rate": "1 Gbit/s", "fibre": "1 km"}, "inside.fibre", "no such field"),
    ],
)
def test_a_bad_inside_is_one_clear_line(inside: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        topology(inside)
    message = str(caught.value)
    assert message.startswith(f"net.yaml: datacenters.a.{field}: got "), message
    assert expected in message


# --- the plan -----------------------------------------------------------------------------------


def test_without_cards_a_plan_is_written_as_ever() -> None:
    plan = planned(topology())
    document = json.loads(file.to_json(plan))
    assert "cards" not in document["network"]
    assert file.from_json(file.to_json(plan), "plan.json") == plan
    assert problem_of_case(plan, plan.cases[0]).cards == frozenset()


def test_a_plan_with_cards_is_read_back_exactly() -> None:
    plan = planned(topology(SLOW, FAST))
    text = file.to_json(plan)
    assert len(json.loads(text)["network"]["cards"]) == 4
    again = file.from_json(text, "plan.json")
    assert again == plan
    assert file.to_json(again) == text
    assert [case.routes for case in again.cases] == [case.routes for case in planned(topology()).cases]


@pytest.mark.parametrize(
    ("index", "change", "expected"),
    [
        (0, {"source": "a/9"}, "network.cards.0.source: got 'a/9', expected a node of the network"),
        (0, {"target": "b"}, "network.cards.0.target: got 'b', expected a, the datacenter of its node"),
        (1, {"source": "a/0"}, "one card for a node"),
        (0, {"rate_bps": 0}, "expected 1000 to 1e+11 bit/s"),
        (0, {"delay_s": -1.0}, "expected 0 to 0.01 s"),
    ],
)
def test_a_damaged_card_is_one_clear_line(index: int, change: dict[str, Any], expected: str) -> None:
    document = json.loads(file.to_json(planned(topology(SLOW, FAST))))
    document["network"]["cards"][index] |= change
    with pytest.raises(BadInput) as caught:
        file.from_json(json.dumps(document), "plan.json")
    assert expected in str(caught.value)


def test_all_nodes_of_a_datacenter_have_a_card_or_none() -> None:
    document = json.loads(file.to_json(planned(topology(SLOW, FAST))))
    del document["network"]["cards"][0]
    with pytest.raises(BadInput, match="cards for all 2 nodes of a, or none"):
        file.from_json(json.dumps(document), "plan.json")


def test_settings_leave_the_cards_of_a_plan() -> None:
    plan = planned(topology(SLOW, None))
    again = with_settings(plan, ["iterations=3"], "plan.json")
    assert again.network == plan.network
    assert again.jobs[0].workload.iterations == 3


# --- the model ----------------------------------------------------------------------------------


def iteration_s(plan: Plan) -> float:
    (case,) = plan.cases
    schedule = schedule_of(plan, case)
    assert schedule is not None
    return float(predict_case(plan, case, schedule).makespans()[0])


def test_inside_a_datacenter_a_message_takes_its_card() -> None:
    """Two ranks beside each other, one microbatch: there and back, each time the wire and the delay of one card.

    Without cards it is the call that sends which takes the message there.
    """
    settings = {"parallelism.pipeline": "2", "microbatches": "1", "placement": "[a/0, a/1]", "message": "1 MB"}
    plain, carded = (planned(topology(of, None), **settings) for of in (None, SLOW))
    size = wire_bytes(1_000_000) + plain.host_costs.gloo_bytes
    call_s = plain.host_costs.send_s + plain.host_costs.send_s_per_byte * size
    assert iteration_s(carded) - iteration_s(plain) == pytest.approx(2 * (10e-6 + 8 * size / 500e6 - call_s))


def test_out_of_a_datacenter_super_packets_go_on_one_by_one() -> None:
    """The slow card first; the link behind it only adds the time of the last super-packet."""
    settings = {"parallelism.pipeline": "2", "microbatches": "1", "placement": "[a/0, b/0]", "message": "1 MB"}
    plan = planned(topology(SLOW, SLOW), **settings)
    size = wire_bytes(1_000_000) + plan.host_costs.gloo_bytes
    last = (size - plan.host_costs.notice_bytes) % super_packet_bytes(plan.framing.gso_bytes["a"])
    compute_s = iteration_s(planned(topology(), **settings)) - 2 * (5e-3 + 8 * size / 1e9)
    assert iteration_s(plan) - compute_s == pytest.approx(2 * (10e-6 + 8 * size / 500e6 + 8 * last / 1e9 + 5e-3))


def test_ranks_of_one_datacenter_do_not_share_a_card() -> None:
    plan = planned(topology(SLOW, FAST))
    problem = problem_of_case(plan, plan.cases[0])
    assert len(problem.links) == 2 + 4
    assert problem.cards == {2, 3, 4, 5}
    assert problem.pipelines[0].routes[0, 1] == (2,)
    assert problem.pipelines[0].routes[1, 2] == (3, 0)
    assert problem.pipelines[0].routes[2, 1] == (4, 1)


def test_a_card_is_no_wide_area_cut() -> None:
    plan = planned(topology(SLOW, FAST))
    assert cuts(problem_of_case(plan, plan.cases[0])) == [1]


def test_super_packets_are_no_longer_than_a_millisecond_of_the_card() -> None:
    assert planned(topology({"rate": "200 Mbit/s"}, None)).framing.gso_bytes == {"a": 25_000, "b": 65_536}


def test_what_crosses_a_card_is_planned() -> None:
    plan = planned(topology(FAST, FAST), message="1 MB")
    count = plan.jobs[0].workload.microbatches
    size = wire_bytes(1_000_000) + plan.host_costs.gloo_bytes
    traffic = planned_traffic(plan, plan.cases[0])
    assert len(traffic) == 2 + 4
    # a/1 sends activations out and gradients inside, and acknowledges the notices that they wait for; it acknowledges
    # what b/0 and a/0 send it, packet by packet, and has sent notices for that
    notice, back = plan.host_costs.notice_bytes, 0.0
    for site in ("a", "b"):
        packets = 1 - (-(size - notice) // super_packet_bytes(plan.framing.gso_bytes[site]))
        back += packets * ACK_BYTES + notice
    assert traffic[3].wire_bytes == pytest.approx(count * (2 * (size + ACK_BYTES) + back))
    assert traffic[3].messages == 4 * count
    without = planned_traffic(planned(topology(), message="1 MB"), plan.cases[0])
    assert traffic[:2] == without


# --- the lab ------------------------------------------------------------------------------------


def shaped(rate_bps: float = 1e9, queue_bytes: float = 16e6) -> ShapedDirection:
    (card, *_) = topology(FAST).cards()
    end = End("a/0", 1, "lan0", "02:54:0a:01:00:02")
    return ShapedDirection(2, card._replace(rate_bps=rate_bps), end, end, queue_bytes, seed=1)


def test_a_bucket_holds_a_super_packet_and_what_a_late_timer_costs() -> None:
    assert parameters(shaped(), 65_536) == TbfParameters(125_000_000, 7 * 9014 + 31_250, 16_000_000)


def test_a_bucket_is_asked_for_in_bytes() -> None:
    message = request(7, TbfParameters(125_000_000, 94_348, 16_000_000))
    message.encode()
    read = BucketMessage(bytes(message.data))
    read.decode()
    assert read["index"] == 7
    options = read.get_attr("TCA_OPTIONS")
    parms = options.get_attr("TCA_TBF_PARMS")
    assert (parms["rate"], parms["limit"], parms["peak"]) == (125_000_000, 16_000_000, 0)
    assert options.get_attr("TCA_TBF_BURST") == 94_348


def test_a_kernel_without_any_way_to_shape_cards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.lab.shaping.netem.available", lambda: "no netem here")
    monkeypatch.setattr("testbed.lab.shaping.tbf.available", lambda: None)
    assert choose_cards().name == "tbf"
    monkeypatch.setattr("testbed.lab.shaping.tbf.available", lambda: "no tbf here")
    with pytest.raises(MachineLacks, match=r"`inside` cannot be shaped.*no netem here.*no tbf here.*modprobe"):
        choose_cards()


def test_a_delay_that_nobody_shapes_is_said_to_be_so() -> None:
    assert "in the model only, tbf has none: 80 us were measured" in str(delay_note("tbf", 10e-6, 80e-6))
    assert "less than what the host itself takes" in str(delay_note("netem", 10e-6, 80e-6))
    assert delay_note("netem", 10e-6, 10.2e-6) is None
    assert delay_note("tbf", 0.0, 80e-6) is None
    assert "unknown" in str(delay_note("tbf", 10e-6, None))
