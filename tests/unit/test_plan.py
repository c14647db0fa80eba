"""The plan: written and read exactly, refused when damaged; its mesh, its routes, and what it expects on the wire."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.plan import network_state
from testbed.plan.costs import problem_of_case, schedule_of
from testbed.plan.mesh import Mesh
from testbed.plan.plan import Case, Clock, Plan
from testbed.plan.routes import routes_of_nodes
from testbed.plan.timeline import LinkEvent, Moment
from testbed.plan.traffic import acknowledgements_s, notices_s, planned_traffic, super_packets_s
from testbed.planning import file
from testbed.planning.resolve import make_plan, measurement_of, with_cases
from testbed.planning.schedules import choose, make
from testbed.session.loop import START_MARGIN_S, start_margin_s
from testbed.spec import load_topology, load_workload
from testbed.spec.document import validate
from testbed.spec.topology import Topology

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"

PARALLEL: dict[str, Any] = {
    "name": "parallel",
    "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}},
    "links": [
        {"name": "north", "between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"},
        {"name": "south", "between": ["a", "b"], "delay": "8 ms", "rate": "500 Mbit/s"},
    ],
}


def planned(topology: Path | Topology = LONGHAUL, **settings: str) -> Plan:
    network = topology if isinstance(topology, Topology) else load_topology(topology)
    plan = make_plan(network, load_workload(PP4, {"schedules": "[1f1b, zb-v]", "memory": "8", **settings}))
    choices = choose(plan)
    return with_cases(plan, choices, make(plan, choices, strict=True).made)


def parallel(*routes: dict[str, Any]) -> Topology:
    return validate(Topology, {**PARALLEL, "routes": list(routes)}, "parallel.yaml")


times = st.floats(1e-6, 1.0, allow_nan=False)


@given(
    pacing=st.tuples(times, times, times),
    message=st.integers(65_536, 10**7),
    delay=st.floats(0, 10, allow_nan=False),
    rate=st.floats(1e3, 1e11, allow_nan=False),
    seed=st.integers(0, 2**31 - 1),
    clock=st.sampled_from([Clock(), Clock("virtual", 7)]),
)
def test_what_is_written_is_read_back_exactly(
    pacing: tuple[float, float, float], message: int, delay: float, rate: float, seed: int, clock: Clock
) -> None:
    plan = replace(BASE, seed=seed, clock=clock)
    (job,) = plan.jobs
    durations = job.workload.pacing.model_copy(update=dict(zip("FIW", pacing, strict=True)))  # type: ignore[union-attr]
    workload = job.workload.model_copy(update={"pacing": durations, "message": float(message)})
    directions = tuple(one._replace(delay_s=delay, rate_bps=rate) for one in plan.network.directions)
    changed = replace(
        plan, jobs=(replace(job, workload=workload),), network=replace(plan.network, directions=directions)
    )
    text = file.to_json(changed)
    again = file.from_json(text, "plan.json")
    assert again == changed
    assert file.to_json(again) == text


BASE = planned()


def test_a_file_that_is_the_same_is_the_same_plan_and_one_that_has_changed_another(tmp_path: Path) -> None:
    file.write(BASE, tmp_path / file.NAME)
    first = file.read(tmp_path)
    assert file.read(tmp_path) is first
    file.write(replace(BASE, seed=BASE.seed + 1), tmp_path / file.NAME)
    assert file.read(tmp_path) == replace(BASE, seed=BASE.seed + 1)


def test_code_that_a_plan_names_is_read_whenever_the_plan_is(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("from testbed.train.gpt import Gpt\n\n\nclass Mine(Gpt):\n    beside: int = 1\n")
    model = {"kind": f"{mine}:Mine"}
    spec = load_workload(PP4, {"schedules": "[1f1b]", "model.kind": model["kind"]})
    plan = make_plan(load_topology(LONGHAUL), spec)
    file.write(with_cases(plan, choose(plan), make(plan, choose(plan), strict=True).made), tmp_path / file.NAME)
    first = file.read(tmp_path)
    assert file.read(tmp_path) == first
    assert file.read(tmp_path) is not first


def test_a_plan_without_times_and_one_without_jobs_are_plans_too() -> None:
    unpaced = planned(pacing="none")
    assert [case.jobs[0].rows for case in unpaced.cases] == [None, None]
    for plan in (unpaced, measurement_of(load_topology(LONGHAUL))):
        assert file.from_json(file.to_json(plan), "plan.json") == plan


def test_a_read_plan_costs_the_same() -> None:
    again = file.from_json(file.to_json(BASE), "plan.json")
    for mine, theirs in zip(BASE.cases, again.cases, strict=True):
        assert problem_of_case(BASE, mine) == problem_of_case(again, theirs)
        assert schedule_of(BASE, mine) == schedule_of(again, theirs)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("format",), 4, "format: got 4"),
        (("colour",), "red", "colour: got 'red', expected no such field"),
        (("jobs", 0, "mesh", "pp"), 3, "jobs.0.nodes: got 4, expected a node for 3 ranks"),
        (("jobs", 0, "nodes", 1), "narnia/0", "a node of the network"),
        (("jobs", 0, "workload", "microbatches"), "many", "microbatches: got 'many'"),
        (("jobs", 0, "workload", "pacing", "F"), "20 ms", "pacing"),
        (("flows", 0, "target"), 9, "flows.0: got 9, expected a rank below 4"),
        (("cases", 0, "routes", 2), [1], "a direction that leaves paris"),
        (("cases", 0, "routes", 2), [7], "directions below 2"),
        (("cases", 0, "routes", 2), [], "a route from paris to warsaw"),
        (("cases", 1, "label"), "1f1b", "a label for every case alone"),
        (("cases", 0, "jobs", 0, "rows", 0), "0F0 0X0", "not an action"),
        (("cases", 0, "jobs", 0, "rows", 0), "0F0 0B0", "cases.0.jobs.0.rows"),
        (("cases", 0, "jobs", 0, "rows"), None, "rows: this job is paced"),
        (("network", "directions", 0, "rate_bps"), 0, "1000 to 1e+11 bit/s"),
        (("network", "nodes", 1, "name"), "paris/5", "paris/1, the next of its datacenter"),
        (("framing", "gso_bytes", "paris"), 1, "framing.gso_bytes.paris"),
        (("clock", "name"), "sundial", "'real' or 'virtual'"),
        (("jobs", 0, "start_s"), -1.0, "jobs.0.start_s: got -1.0, expected 0 to 3600 s"),
        (("jobs", 0, "start_s"), 1e9, "jobs.0.start_s: got 1000000000.0, expected 0 to 3600 s"),
        (("jobs", 0, "start_s"), 0.5, "jobs.0.start_s: got 0.5, expected 0 s: a job alone begins with the iteration"),
        (("cases", 0, "starts_s"), [0.5], "cases.0.starts_s.0: got 0.5, expected 0 s: a job alone"),
    ],
)
def test_a_damaged_plan_is_one_clear_line(path: tuple[Any, ...], value: object, expected: str) -> None:
    document = json.loads(file.to_json(BASE))
    target = document
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    with pytest.raises(BadInput) as caught:
        file.from_json(json.dumps(document), "plan.json")
    message = str(caught.value)
    assert message.startswith("plan.json: "), message
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"network": NaN}'])
def test_what_is_no_plan_at_all(text: str) -> None:
    with pytest.raises(BadInput, match=r"plan\.json: "):
        file.from_json(text, "plan.json")


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 50))
def test_ranks_count_as_in_torchs_device_mesh(dp: int, pp: int, tp: int, first: int) -> None:
    import numpy as np

    mesh = Mesh(dp, pp, tp, first)
    torch_order = first + np.arange(dp * pp * tp).reshape(dp, pp, tp)
    for (replica, stage, part), rank in np.ndenumerate(torch_order):
        assert mesh.rank(replica, stage, part) == rank
        assert mesh.coordinates(int(rank)) == (replica, stage, part)
    assert list(mesh.ranks) == torch_order.ravel().tolist()
    for outside in (first - 1, first + dp * pp * tp):
        with pytest.raises(ValueError, match="is not of"):
            mesh.coordinates(outside)


def test_the_least_delay_is_the_default_of_parallel_links() -> None:
    plan = planned(parallel())
    assert network_state.planned(plan.network).default_route("a/0", "b/1") == (0,)
    assert network_state.planned(plan.network).default_route("b/0", "a/1") == (1,)


def test_a_file_may_send_traffic_over_the_other_link() -> None:
    plan = planned(parallel({"from": "a", "to": "b", "via": ["south"]}))
    assert network_state.planned(plan.network).default_route("a/0", "b/0") == (2,)
    assert network_state.planned(plan.network).default_route("b/0", "a/0") == (1,), "the way back is another route"
    case = plan.cases[0]
    problem = problem_of_case(plan, case)
    assert (problem.route(1, 2), problem.route(2, 1)) == ((2,), (1,))
    traffic = planned_traffic(plan, case)
    assert [one.wire_bytes > 8e6 for one in traffic] == [False, True, True, False]
    assert traffic[0].messages == traffic[3].messages == 0


def test_what_an_iteration_puts_on_a_link_is_known_to_the_byte() -> None:
    """Per message: a packet of 48 bytes, 48 bytes and the tensor, the notice of its receive, and acknowledgements."""
    plan = planned(parallel())
    payload, microbatches = plan.jobs[0].workload.message_bytes(), plan.jobs[0].workload.microbatches
    segments = math.ceil((payload + 48) / 8948)
    super_packets = math.ceil(segments / (plan.framing.gso_bytes["a"] // 9000))
    there = (48 + 66) + (48 + payload + 66 * segments)
    back = 66 * (1 + super_packets) + (48 + 66)
    both = microbatches * (there + back + 66)
    assert [one.wire_bytes for one in planned_traffic(plan, plan.cases[0])] == [both, both, 0, 0]


def test_a_super_packet_takes_what_the_slowest_link_of_its_route_takes_for_it() -> None:
    """Below 72 Mbit/s a single frame of 9,014 bytes takes more than the millisecond that limits super-packets."""
    network = {"name": "two", "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}}}
    link = {"between": ["a", "b"], "delay": "10 ms", "rate": "50 Mbit/s"}
    plan = planned(validate(Topology, {**network, "links": [link]}, "two"))
    assert super_packets_s(plan, plan.cases[0], [(1, 2), (2, 1)]) == pytest.approx([8 * 9014 / 50e6] * 2)
    assert super_packets_s(plan, plan.cases[0], [(0, 1)]) == [0.0], "inside a datacenter"
    fast = planned(parallel())
    segments = fast.framing.gso_bytes["a"] // 9000
    assert super_packets_s(fast, fast.cases[0], [(1, 2)]) == pytest.approx([8 * 9014 * segments / 1e9])


def test_an_iteration_begins_when_links_are_free() -> None:
    """Notices of its receives and acknowledgements of the one before are in the way of its first messages: on a slow
    link for milliseconds."""
    plan = planned(parallel())
    microbatches, rate_bps = plan.jobs[0].workload.microbatches, plan.network.directions[0].rate_bps
    # as many messages come as go, each with a notice the one way and its acknowledgement the other
    notices = 8 * microbatches * (48 + 66 + 66) / rate_bps
    assert notices_s(plan, plan.cases[0]) == pytest.approx(notices)
    there, back = plan.network.directions[:2]  # acknowledgements come so much later
    segments = math.ceil((plan.jobs[0].workload.message_bytes() + 48) / 8948)
    packets = math.ceil(segments / (plan.framing.gso_bytes["a"] // 9000)) + 1  # one goes ahead of each message
    acknowledged = 8 * microbatches * packets * 66 / rate_bps
    assert acknowledgements_s(plan, plan.cases[0]) == pytest.approx(acknowledged)
    margin_s = START_MARGIN_S + 2 * notices + acknowledged + there.delay_s + back.delay_s
    assert start_margin_s(plan, plan.cases[0]) == pytest.approx(margin_s)
    longer = LinkEvent(there.link, Moment(1), 0, "longer", delay_s=0.25)
    slower = LinkEvent(there.link, Moment(2), 0, "slower", rate_bps=rate_bps / 4)
    margin_s += 0.25 - there.delay_s + 6 * notices + 3 * acknowledged
    assert start_margin_s(plan, plan.cases[0], [longer, slower]) == pytest.approx(margin_s), "as links are by then"


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ({"from": "a", "to": "b", "via": ["west"]}, "routes.0.via.0: got 'west', expected a link that leaves a"),
        ({"from": "a", "to": "b", "via": ["north", "south"]}, "a route that does not come to a twice"),
        ({"from": "a", "to": "c", "via": ["north"]}, "routes.0.to: got 'c', expected one of the datacenters (a, b)"),
        ({"from": "a", "to": "b", "via": []}, "routes.0.via"),
    ],
)
def test_a_route_that_leads_nowhere(route: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        parallel(route)
    assert str(caught.value).startswith("parallel.yaml: routes.0"), caught.value
    assert expected in str(caught.value)


def test_flows_between_the_same_two_nodes_share_a_route() -> None:
    plan = planned(parallel())
    case = plan.cases[0]
    pairs = [(flow.source, flow.target) for flow in plan.flows]
    twice = next(number for number, pair in enumerate(pairs) if pair == (1, 2) and pairs.count(pair) > 1)
    other = Case(case.label, case.jobs, (*case.routes[:twice], (2,), *case.routes[twice + 1 :]))
    with pytest.raises(BadInput, match="one route"):
        routes_of_nodes(plan, other)


def test_the_second_job_begins_behind_the_first_one() -> None:
    one = load_workload(PP4)
    plan = make_plan(load_topology(LONGHAUL), one, one.model_copy(update={"name": "other"}))
    assert [job.mesh.ranks for job in plan.jobs] == [range(4), range(4, 8)]
    assert len({node for job in plan.jobs for node in job.nodes}) == 8
    assert file.from_json(file.to_json(plan), "plan.json") == plan
