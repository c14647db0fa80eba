"""Events between iterations: links are lost, jobs arrive and depart, routes are chosen anew, and plans say so."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from jobs_that_move import planned as planned_jobs
from test_route_command import CLOS, PP4, REPLICAS, called, planned

from testbed.errors import BadInput
from testbed.plan.costs import problem_of_case
from testbed.plan.events import away, lost, phases, trainings
from testbed.plan.network_state import planned as planned_state
from testbed.plan.plan import Plan
from testbed.plan.timeline import Event, JobArrives, LinkLost, Moment
from testbed.plan.traffic import notices_s, planned_traffic
from testbed.planning import file
from testbed.planning.prediction import iteration_times, predict_jobs, predict_together
from testbed.planning.resolve import combinations, load_plan, with_cases, with_combinations
from testbed.planning.schedules import choose as choose_schedules
from testbed.planning.schedules import make
from testbed.routing.apply import with_policies
from testbed.routing.planner import Reach
from testbed.routing.policies import choose
from testbed.routing.rerouting import Controller, moves, rerouted, with_continuations, with_timeline

ROOT = Path(__file__).parents[2]
RING = """
name: ring
datacenters: {a: {nodes: 2}, b: {nodes: 2}, c: {nodes: 0}}
links:
  - {between: [a, b], delay: 1 ms, rate: 100 Mbit/s}
  - {between: [a, c], delay: 1 ms, rate: 10 Mbit/s}
  - {between: [c, b], delay: 1 ms, rate: 100 Mbit/s}
"""


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def on_ring(directory: Path) -> Plan:
    (directory / "ring.yaml").write_text(RING)
    plan = load_plan(directory / "ring.yaml", Path(PP4))
    chosen = choose_schedules(plan, ["1f1b"])
    return with_cases(plan, chosen, make(plan, chosen).made)


def with_events(plan: Plan, events: list[Event], controller: Controller) -> Plan:
    return with_continuations(with_timeline(plan, events), controller)


def test_what_is_left_of_a_clos() -> None:
    whole = planned_state(planned(CLOS).network)
    left = whole.without("pod-spine0")
    assert len(left.down) == len(whole.links) // 2
    assert left.routes.keys() == whole.routes.keys()
    for (source, target), route in left.routes.items():
        way = [whole.links[index] for index in route]
        assert left.down.isdisjoint(route)
        assert not way or [way[0].source, way[0].target, way[-1].target] == [source, "pod-spine1", target]
    assert len(whole.directions_of("pod-leaf0--pod-spine0")) == 2
    with pytest.raises(BadInput, match="expected a switch or a link"):
        whole.without("pod-leaf0")  # it has nodes


def test_the_policy_chooses_again_of_what_is_left() -> None:
    plan, _ = with_policies(planned(CLOS), [choose("greedy")], Reach(1e5))
    lossy = with_events(plan, [LinkLost("pod-spine1", Moment(2))], Controller("greedy", Reach(1e5)))
    before, after = lossy.cases
    assert [case.label for case in lossy.cases] == ["1f1b", "1f1b without pod-spine1"]
    assert before == plan.cases[0]
    gone = planned_state(plan.network).directions_of("pod-spine1")
    found = moves(lossy, before, after)
    assert 0 < found.flows_cut == found.flows_moved < found.flows  # on one spine there is nothing else to choose
    assert all(gone.isdisjoint(route) for route in after.routes)
    assert file.from_json(file.to_json(lossy), "plan.json") == lossy


def test_without_a_policy_only_what_lost_its_route_moves(tmp_path: Path) -> None:
    plan = on_ring(tmp_path)
    lossy = with_events(plan, [LinkLost("a--b", Moment(1))], Controller())
    before, after = lossy.cases
    assert {route for route in before.routes if route} == {(0,), (1,)}
    assert {route for route in after.routes if route} == {(2, 4), (5, 3)}
    assert lossy.framing.gso_bytes["a"] < plan.framing.gso_bytes["a"]  # the way that is left is slower


def test_answers_do_not_take_what_is_lost(tmp_path: Path) -> None:
    """Three replicas in a ring: nothing is sent the other way, so that acknowledgements have default routes."""
    (tmp_path / "clos.yaml").write_text(
        "name: clos\ndatacenters: {pod: {clos: {leaves: 3, spines: 2, hosts: 2, rate: 1 Gbit/s}}}\n"
    )
    settings = [
        "parallelism={data: 3, pipeline: 2}",
        "data_parallel.algorithm=ring",
        "placement=[pod-leaf0/0, pod-leaf1/0]",
        "data_parallel.replicas=[[pod-leaf1/1, pod-leaf2/0], [pod-leaf2/1, pod-leaf0/1]]",
    ]
    plan = load_plan(tmp_path / "clos.yaml", Path(PP4), settings=settings)
    chosen = choose_schedules(plan, ["1f1b"])
    plan = with_cases(plan, chosen, make(plan, chosen).made)
    lossy = with_events(plan, [LinkLost("pod-spine0", Moment(1))], Controller())
    gone = planned_state(plan.network).directions_of("pod-spine0")
    before, after = ([one.wire_bytes for one in planned_traffic(lossy, case)] for case in lossy.cases)
    assert all(before[index] > 0 for index in gone)
    assert not any(after[index] for index in gone)
    problem = problem_of_case(lossy, lossy.cases[1])
    ways = {index for one in problem.reductions for way in one.routes.values() for index in way}
    assert ways
    assert ways.isdisjoint(gone)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (LinkLost("a--b", Moment(0)), "got 0, expected 1 to 9"),
        (LinkLost("a--b", Moment(10)), "got 10, expected 1 to 9"),
        (LinkLost("d", Moment(1)), r"expected a switch or a link \(c, "),
    ],
)
def test_losses_that_cannot_be(tmp_path: Path, asked: Event, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        with_events(on_ring(tmp_path), [asked], Controller())


def test_a_loss_that_leaves_no_way(tmp_path: Path) -> None:
    plan = planned("topologies/two-dc-longhaul.yaml")
    with pytest.raises(BadInput, match="expected one without which paris still reaches warsaw"):
        with_events(plan, [LinkLost(plan.network.directions[0].link, Moment(1))], Controller())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--lose", "pod-spine1"), "expected NAME@K"),
        (("--depart", "@2"), "expected JOB@K"),
        (("--lose", "pod-spine1@0"), "expected 1 to 9"),
        (("--lose", "pod-leaf1@2"), "expected a switch or a link"),
        (("--lose", "pod-spine1@2", "--policy", "greedy", "--policy", "ecmp"), "expected one at most, with --lose"),
        (
            ("--enforce", "ports", "--set", "data_parallel.algorithm=torch", "--set", "data_parallel.sharding=none"),
            "gloo",
        ),
    ],
)
def test_what_plan_refuses(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    out = str(tmp_path / "plan.json")
    done = called("plan", CLOS, PP4, "--schedule", "1f1b", "--set", REPLICAS, *words, "-o", out)
    assert isinstance(done.exception, BadInput), done.output
    assert expected in str(done.exception)


def test_a_plan_with_a_loss_is_predicted_before_and_after(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    slow = "topology.datacenters.pod.clos.rate=50 Mbit/s"
    asked = ["--schedule", "1f1b", "--set", REPLICAS, "--set", slow]
    asked += ["--policy", "greedy", "--lose", "pod-spine1@2", "--enforce", "ports"]
    done = called("plan", CLOS, PP4, *asked, "-o", str(out))
    assert done.exit_code == 0, done.output
    plan = file.read(out)
    assert plan.enforcement == "ports"
    rows = json.loads(called("predict", str(out), "--json").stdout)["schedules"]
    assert rows[0]["predicted_s"] < rows[1]["predicted_s"]
    text = out.read_text()
    for change, expected in (
        (lambda one: one["events"][0].update(name="pod-spine0"), "expected no route by .*pod-spine0, which is lost"),
        (
            lambda one: one["cases"][1].update(starts_s=[0.5]),
            "expected the starts of the case before it",
        ),
        (lambda one: one["cases"].pop(0), "expected a case before it that it goes on from"),
        (lambda one: one["cases"].pop(1), "expected a case behind it that goes on after iteration 2"),
        (lambda one: one["events"].clear(), "got 2, expected no more cases than events"),
        (lambda one: one["cases"][1]["continues"].update(after=3), r"cases.1.continues.after: got 3, expected 2, as"),
    ):
        written = json.loads(text)
        change(written)  # type: ignore[no-untyped-call]
        with pytest.raises(BadInput, match=expected):
            file.from_json(json.dumps(written), "plan.json")


@pytest.mark.parametrize(
    ("outage", "refused"), [("10 ms at iteration 1 + 5 ms", False), ("1 s at iteration 1 + 1.34 s", True)]
)
def test_a_link_is_not_lost_with_what_it_keeps_in_an_outage(tmp_path: Path, outage: str, refused: bool) -> None:
    """The longer one begins when only acknowledgements are on their way."""
    (tmp_path / "ring.yaml").write_text(RING)
    out, happens = tmp_path / "plan.json", ("--event", f"link a--b down for {outage}", "--lose", "a--b@2")
    done = called("plan", str(tmp_path / "ring.yaml"), PP4, "--schedule", "1f1b", *happens, "-o", str(out))
    if refused:
        assert isinstance(done.exception, BadInput), done.output
        assert "expected an outage that is over before its link is lost" in str(done.exception)
        assert not out.exists()
    else:
        assert done.exit_code == 0, done.output


MIXED = ("--arrive", "second@1", "--lose", "pod-spine1@3", "--depart", "first@4", "--lose", "pod-spine2@5")


def with_jobs(directory: Path, *events: str) -> Plan:
    done = planned_jobs(directory, *events)
    assert done.exit_code == 0, (done.output, done.exception)
    return file.read(directory / "plan.json")


def test_every_phase_of_a_run_is_a_case(tmp_path: Path) -> None:
    plan = with_jobs(tmp_path, *MIXED)
    assert [case.label.removeprefix("1f1b") for case in plan.cases] == [
        "",
        " with second",
        " with second without pod-spine1",
        " with second without pod-spine1 without first",
        " with second without pod-spine1 without first without pod-spine2",
    ]
    assert [away(plan, case) for case in plan.cases] == [("second",), (), (), ("first",), ("first",)]
    assert [lost(plan, case) for case in plan.cases][1:] == [
        (),
        ("pod-spine1",),
        ("pod-spine1",),
        ("pod-spine1", "pod-spine2"),
    ]
    (cases,) = trainings(plan.cases)
    spans = [(phase.rounds, phase.warmup) for phase in phases(plan, cases)]
    assert spans == [(range(2), 1), (range(2, 4), 1), (range(4, 5), 0), (range(5, 6), 0), (range(6, 7), 0)]
    for case in plan.cases:
        taken = [plan.network.directions[index].label for way in case.routes for index in way]
        assert not [label for label in taken if any(name in label for name in lost(plan, case))]
    assert file.from_json(file.to_json(plan), "plan.json") == plan


def test_who_is_away_sends_nothing(tmp_path: Path) -> None:
    plan = with_jobs(tmp_path, *MIXED)
    first, both, _, second, _ = plan.cases
    assert [[one.job.name for one in predict_jobs(plan, case)] for case in (first, both, second)] == [
        ["first"],
        ["first", "second"],
        ["second"],
    ]
    assert set(predict_together(plan, second).actions["rank"]) == {4, 5}
    assert set(predict_together(plan, second).messages["job"]) == {1}
    assert len(iteration_times(plan, second)) == 1
    sent = {case.label: sum(one.messages for one in planned_traffic(plan, case)) for case in plan.cases}
    assert sent[both.label] == sent[first.label] + sent[second.label]
    assert max(notices_s(plan, first), notices_s(plan, second)) <= notices_s(plan, both)


def test_the_policy_is_asked_for_those_that_are_there(tmp_path: Path) -> None:
    """Of three spines each of the three pipelines has one; who departs leaves its own to nobody."""
    plan = with_jobs(tmp_path, "--arrive", "second@2", "--depart", "first@4")
    first, both, second = plan.cases
    spines = [{plan.network.directions[way[0]].target for way in case.routes if way} for case in (both, second)]
    assert spines[0] == {"pod-spine0", "pod-spine1", "pod-spine2"}
    arrived, departed = moves(plan, first, both), moves(plan, both, second)
    assert (arrived.flows, arrived.flows_new, arrived.flows_cut) == (6, 2, 0)
    assert (departed.flows, departed.flows_new) == (2, 0)
    assert departed.flows_moved == 2  # alone, greedy puts it on the first spine
    unrouted = replace(plan, cases=(first,), events=())
    assert with_events(unrouted, [JobArrives("second", Moment(2))], Controller()).cases[1].routes == first.routes


def test_what_happens_after_the_same_iteration_is_one_event(tmp_path: Path) -> None:
    plan = with_jobs(tmp_path, "--depart", "first@2", "--lose", "pod-spine0@2")
    assert [case.label for case in plan.cases] == ["1f1b", "1f1b without pod-spine0 + first"]


def test_a_schedule_called_what_another_one_is_called_after_an_event(tmp_path: Path) -> None:
    plan = on_ring(tmp_path)
    other = replace(plan.cases[0], label="1f1b without a--b")
    with pytest.raises(BadInput, match=r"--lose a--b@2: cases.label: got '1f1b without a--b', expected a label for"):
        with_events(replace(plan, cases=(*plan.cases, other)), [LinkLost("a--b", Moment(2))], Controller())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--arrive", "third@2"), "expected one of the jobs (first, second)"),
        (("--arrive", "second@2", "--arrive", "second@3"), "expected each name once"),
        (("--arrive", "second@3", "--depart", "second@2"), "expected more than 3, when it arrives"),
        (("--arrive", "second@3", "--depart", "second@3"), "expected more than 3, when it arrives"),
        (("--arrive", "second@1", "--arrive", "first@2"), "expected one job or more that is there from the beginning"),
        (("--depart", "second@1", "--depart", "first@2"), "expected one job or more at work"),
        (("--arrive", "second@2", "--depart", "first@2", "--depart", "second@4"), "expected one job or more at work"),
        (
            ("--arrive", "second@0"),
            "expected 1 to 4: some measured iterations come before, some after, and the first 1",
        ),
        (("--arrive", "second@5"), "got 5, expected 1 to 4"),
        (("--arrive", "second@2", "--depart", "first@3"), "got 3, expected 4 to 5"),
        (("--arrive", "second@3", "--depart", "first@4"), "got 4, expected 5: some measured iterations come before"),
        (("--arrive", "second@2", "--depart", "first@3"), "after, and the first 1 after the arrival at 2 warm up"),
        (("--lose", "pod-spine0@1", "--lose", "pod-spine1@2", "--lose", "pod-spine2@3"), "still reaches"),
        (("--lose", "pod-spine0@1", "--lose", "pod-leaf0--pod-spine0@2"), "something that is not lost already"),
    ],
)
def test_events_that_cannot_be(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    done = planned_jobs(tmp_path, *words)
    assert isinstance(done.exception, BadInput), done.output
    assert expected in str(done.exception)
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("event", "changes", "expected"),
    [
        (0, {"name": "third"}, r"events.0.name: got 'third', expected one of the jobs \(first, second\)"),
        (
            0,
            {"kind": "link-bent"},
            r"events.0.kind: got 'link-bent', expected a kind of event \(link-lost, job-",
        ),
        (0, {"colour": "red"}, r"events.0.colour: got 'red', expected no such field"),
        (0, {"at": {"iteration": 1, "seconds": 0.5}}, r"events.0.at.seconds: got 0.5, expected 0, the beginning of an"),
        (0, {"at": {"iteration": -1}}, r"events.0.at.iteration: got -1, expected 1 to 4"),
        (1, {"at": {"iteration": 5}}, r"events.2.at.iteration: got 4, expected events in order of time"),
        (2, {"kind": "job-arrives"}, r"expected one job or more that is there from the beginning"),
        (2, {"name": "second", "at": {"iteration": 1}}, r"events.2.at.iteration: got 1, expected events in order"),
        (3, {"name": "pod-spine1"}, r"events.3.name: got 'pod-spine1', expected each name once"),
    ],
)
def test_plans_whose_events_cannot_be(event: int, changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    with_jobs(tmp_path, *MIXED)
    written = json.loads((tmp_path / "plan.json").read_text())
    written["events"][event] |= changes
    with pytest.raises(BadInput, match=expected):
        file.from_json(json.dumps(written), "plan.json")


PARALLEL = """
name: pair
datacenters: {a: {nodes: 4}, b: {nodes: 4}}
links:
  - {between: [a, b], name: north, delay: 1 ms, rate: 900 Mbit/s}
  - {between: [a, b], name: south, delay: 7 ms, rate: 1 Gbit/s}
"""
DRAWN = """
model: {layers: 4, d_model: 16, heads: 2, sequence: 8}
parallelism: {pipeline: 4}
microbatches: 6
microbatch_size: 1
memory: 8
pacing: {F: {median: 8 ms, p95: 16 ms, each: microbatch}, I: 9 ms, W: 6 ms}
schedules: [1f1b]
iterations: 4
warmup: 1
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_run_chooses_the_routes_that_the_plan_has(seed: int, tmp_path: Path) -> None:
    """Of slots that are drawn, by when each flow sends: a run knows which iterations each case has."""
    jobs = {
        "one": "message: 1.2 MB\nplacement: [a/0, a/1, b/0, b/1]",
        "two": "message: 1.6 MB\nplacement: [a/2, b/2, a/3, b/3]",
    }
    (tmp_path / "pair.yaml").write_text(PARALLEL)
    for number, (name, own) in enumerate(jobs.items()):
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nseed: {100 * number + seed}\n{own}\n{DRAWN}")
    plan = load_plan(tmp_path / "pair.yaml", *(tmp_path / f"{name}.yaml" for name in jobs))
    chosen = [choose_schedules(plan, job=number) for number in range(2)]
    made = [make(plan, one, job=number).made for number, one in enumerate(chosen)]
    plan, _ = with_policies(
        with_combinations(plan, combinations(plan, chosen), made), [choose("greedy-time")], Reach(1e5)
    )
    found = with_events(plan, [JobArrives("two", Moment(2))], Controller("greedy-time", Reach(1e5)))
    assert len(found.cases) == 2
    for before, case in pairwise(found.cases):
        assert rerouted(found, before, case) == case.routes
