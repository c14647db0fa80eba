"""Several routes from files to the screen: a Clos in two lines, demands of a plan, `testbed route`, `plan --policy`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_screens import require_legible
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.options import ELEPHANTS, reach_of
from testbed.errors import BadInput
from testbed.model.network import Floats
from testbed.plan import routes
from testbed.plan.framing import wire_bytes
from testbed.plan.plan import Plan, TrafficKind
from testbed.planning import file
from testbed.planning.prediction import iteration_times, predict_together
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose as choose_schedules
from testbed.planning.schedules import make
from testbed.routing import policy_comparison
from testbed.routing.apply import demands, with_policies
from testbed.routing.completion_times import quantiles
from testbed.routing.demand import commodities
from testbed.routing.planner import ELEPHANT_BYTES, Reach
from testbed.routing.policies import choose
from testbed.spec import load_topology
from testbed.trace.tables import NOTICE

ROOT = Path(__file__).parents[2]
PP4, CLOS = "workloads/tiny-gpt-pp4.yaml", "examples/my_clos.yaml"
REPLICAS = "parallelism.data=2"
MESH = """
name: mesh
datacenters: {paris: {nodes: 4}, berlin: {nodes: 4}, madrid: {nodes: 4}, rome: {nodes: 4}}
links:
  - {between: [paris, berlin], delay: 5 ms, rate: 400 Mbit/s}
  - {between: [paris, berlin], name: north, delay: 6 ms, rate: 400 Mbit/s}
  - {between: [paris, madrid], delay: 6 ms, rate: 400 Mbit/s}
  - {between: [berlin, rome], delay: 6 ms, rate: 400 Mbit/s}
  - {between: [madrid, rome], delay: 7 ms, rate: 400 Mbit/s}
  - {between: [paris, rome], delay: 6 ms, rate: 400 Mbit/s}
"""


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def mesh(tmp_path: Path) -> str:
    (tmp_path / "mesh.yaml").write_text(MESH)
    return str(tmp_path / "mesh.yaml")


def planned(topology: str, *settings: str) -> Plan:
    plan = load_plan(Path(topology), Path(PP4), settings=[REPLICAS, *settings])
    chosen = choose_schedules(plan, ["1f1b"])
    return with_cases(plan, chosen, make(plan, chosen).made)


def called(*words: str, **environment: str) -> Any:
    return CliRunner().invoke(app, list(words), env=environment)


# --- a Clos in a topology ------------------------------------------------------------------------


def test_a_clos_in_two_lines_is_leaves_spines_and_links() -> None:
    network = load_topology(Path(CLOS))
    sites = {name: site.nodes for name, site in network.datacenters.items()}
    assert sites == {f"pod-leaf{n}": 4 for n in range(4)} | {f"pod-spine{n}": 0 for n in range(2)}
    assert len(network.links) == 8
    assert {one.rate_bps for one in network.directions()} == {1e9}
    assert len(load_topology(Path(CLOS), {"datacenters.pod.clos.spines": "4"}).links) == 16


def test_a_clos_joins_what_the_file_has_besides(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "name: two\ndatacenters:\n  far: {nodes: 1}\n"
        "  pod: {clos: {leaves: 2, spines: 1, hosts: 3, rate: 1 Gbit/s}, inside: {rate: 2 Gbit/s}}\n"
        "links: [{between: [far, pod-spine0], delay: 5 ms, rate: 100 Mbit/s}]\n"
    )
    network = load_topology(path)
    assert len(network.nodes()) == 7
    assert network.cards()[0].source == "pod-leaf0/0"
    assert network.links[0].resolved_name() == "far--pod-spine0"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{clos: {leaves: 1, spines: 2, hosts: 4, rate: 1 Gbit/s}}", "datacenters.pod.clos.leaves: got 1, expected at"),
        ("{clos: {leaves: 2, spines: 2, hosts: 4, rate: 7}}", "datacenters.pod.clos.rate"),
        ("{clos: 3}", "datacenters.pod.clos: got 3, expected a mapping"),
        ("{clos: {leaves: 2, spines: 2, hosts: 4, rate: 1 Gbit/s}, nodes: 4}", "datacenters.pod.nodes: got 4, exp"),
        ("{clos: {leaves: 2, spines: 2, hosts: 4, rate: 1 Gbit/s}}, pod-leaf0: {nodes: 1}", "no other datacenter has"),
        ("{clos: {leaves: 99, spines: 9, hosts: 1, rate: 1 Gbit/s}}", "datacenters: got .*, expected at most 100"),
        ("{nodes: 0}", "at least one that has nodes"),
    ],
)
def test_a_bad_clos(tmp_path: Path, entry: str, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"name: bad\ndatacenters: {{pod: {entry}}}\n")
    with pytest.raises(BadInput, match=expected):
        load_topology(path)


def test_a_plan_with_switches_comes_back_from_its_file() -> None:
    plan = planned(CLOS)
    assert plan.network.switches == ("pod-spine0", "pod-spine1")
    assert file.from_json(file.to_json(plan), "plan.json") == plan
    with pytest.raises(BadInput, match=r"network.directions.0: got 'pod-spine0', expected one of"):
        file.from_json(
            file.to_json(replace(plan, network=replace(plan.network, switches=("pod-spine1",)))), "plan.json"
        )


# --- demands, and plans that follow a policy -----------------------------------------------------


def test_demands_are_the_messages_of_the_plan() -> None:
    plan = planned(CLOS, "data_parallel.parameters=8MB")
    found = commodities(plan, plan.cases[0])
    workload, extra = plan.jobs[0].workload, plan.host_costs.gloo_bytes
    assert {one.kinds for one in found} == {
        (TrafficKind.ACTIVATION,),
        (TrafficKind.GRADIENT,),
        (TrafficKind.DATA_PARALLEL,),
    }
    assert len(found) == 2 * 6 + 4 * 2
    for one in found:
        if one.kinds == (TrafficKind.DATA_PARALLEL,):  # half of the parameters and of the gradients: two replicas
            assert one.wire_bytes == one.collective_bytes == 2 * (wire_bytes(4_000_000) + extra)
        else:
            assert one.wire_bytes == workload.microbatches * (wire_bytes(workload.message_bytes()) + extra)
            assert one.collective_bytes == 0
        assert all(0 <= begin <= end for begin, end in one.when)
    wanted = demands(plan, plan.cases[0], Reach(elephants_from=8.05e6))
    assert len(wanted.elephants) == 20 - len(wanted.mice)
    assert min(one.wire_bytes for one in wanted.elephants) >= 8.05e6


def test_a_plan_follows_a_policy_and_stays_a_plan(mesh: str) -> None:
    plan = planned(mesh)
    routed, remarks = with_policies(plan, [choose("greedy")])
    assert remarks == ()
    file.check(routed, "plan.json")
    baseline, case = plan.cases[0], routed.cases[0]
    changed = [number for number, route in enumerate(case.routes) if route != baseline.routes[number]]
    assert changed
    over = {routed.network.directions[index].link for number in changed for index in case.routes[number]}
    assert "north" in over
    small = {TrafficKind.DATA_PARALLEL}
    assert not any(plan.flows[number].kind in small for number in changed)
    assert routes.routes_of_nodes(routed, case)
    same, _ = with_policies(plan, [choose("shortest")])
    assert replace(same, elephants_from=None) == plan


def test_several_workloads_are_routed_together(mesh: str) -> None:
    done = called("route", mesh, PP4, PP4, "--schedule", "1f1b", "--json", "--policy", "shortest", "--policy", "ilp")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["jobs"] == ["tiny-gpt-pp4", "tiny-gpt-pp4-2"]
    shortest, best = document["policies"]
    assert best["most_flows"] < shortest["most_flows"]
    assert min(best["job_rates_bps"]) > min(shortest["job_rates_bps"])
    assert len(best["iteration_s"]) == 2
    flows = [flow for flow in document["flows"] if flow["routed"]]
    assert len(best["routes"]) == len(flows)
    crossed = sum(len(route) * flow["wire_bytes"] for flow, route in zip(flows, best["routes"], strict=True))
    assert sum(link["wire_bytes"] for link in best["links"]) == pytest.approx(crossed)


def test_plan_with_a_policy_is_predicted_on_its_routes(mesh: str, tmp_path: Path) -> None:
    out = str(tmp_path / "plan.json")
    asked = ("--schedule", "gpipe", "--set", REPLICAS, "--set", "memory=8")
    done = called("plan", mesh, PP4, *asked, "--policy", "greedy-time", "-o", out)
    assert done.exit_code == 0, done.output
    predicted = json.loads(called("predict", out, "--json").stdout)["schedules"][0]["predicted_s"]
    compared = called("route", mesh, PP4, *asked, "--policy", "shortest", "--policy", "greedy-time", "--json")
    baseline, timed = (row["iteration_s"][0] for row in json.loads(compared.stdout)["policies"])
    assert predicted == pytest.approx(timed)
    assert timed < baseline


def test_one_plan_has_a_case_for_every_schedule_under_every_policy(mesh: str, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    policies = [word for name in ("shortest", "ecmp,seed=3", "ecmp,seed=4") for word in ("--policy", name)]
    asked = (mesh, PP4, "--schedule", "1f1b", "--schedule", "zb-h1", "--set", REPLICAS)
    done = called("plan", *asked, *policies, "-o", str(out))
    assert done.exit_code == 0, done.output
    plan = file.read(out)
    drawn = [f"{name} on ecmp seed={seed}" for seed in (3, 4) for name in ("1f1b", "zb-h1")]
    assert [case.label for case in plan.cases] == ["1f1b on shortest", "zb-h1 on shortest", *drawn]
    assert plan.cases[0].routes != plan.cases[2].routes != plan.cases[4].routes
    shown = called("predict", str(out), COLUMNS="80")
    require_legible(shown.output, 80)
    assert "1f1b on ecmp seed=3" in shown.output
    twice = called("plan", *asked, "--policy", "ecmp,seed=3", "--policy", "ecmp, seed=3", "-o", str(out))
    assert isinstance(twice.exception, BadInput)
    assert "every policy once" in str(twice.exception)


def test_which_policies_a_plan_has_changes_nothing_of_what_one_is_predicted_to_give(tmp_path: Path) -> None:
    """A slow detour shortens super-packets, but for every policy that may take it, whoever does."""
    (tmp_path / "slow.yaml").write_text(MESH.replace("6 ms, rate: 400", "6 ms, rate: 200", 1))
    plan = planned(str(tmp_path / "slow.yaml"))
    alone, _ = with_policies(plan, [choose("shortest")])
    beside, _ = with_policies(plan, [choose("shortest"), choose("greedy")])
    assert alone.framing == beside.framing != plan.framing
    assert iteration_times(alone, alone.cases[0]) == iteration_times(beside, beside.cases[0])


# --- the command ---------------------------------------------------------------------------------


def test_orders_of_a_large_plan_are_not_tried_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("route", CLOS, PP4, "--schedule", "1f1b", "--set", REPLICAS, "--policy", "greedy")
    document = json.loads(called(*asked, "--json").stdout)
    monkeypatch.setattr(policy_comparison, "EVENTS", 10)
    large = json.loads(called(*asked, "--json").stdout)
    assert (document["policies"][0]["orders_tried"], large["policies"][0]["orders_tried"]) == (True, False)
    assert document["policies"][0]["iteration_s"] == large["policies"][0]["iteration_s"]
    shown = called(*asked, COLUMNS="80").output
    require_legible(shown, 80)
    assert "since the plan is large" in " ".join(shown.split())


@pytest.mark.parametrize("width", [80, 120])
def test_route_is_legible_and_draws(width: int, tmp_path: Path) -> None:
    picture = tmp_path / "load.png"
    curves = tmp_path / "cdf.svg"
    drawn = ("--picture", str(picture), "--cdf", str(curves)) if width == 80 else ()
    done = called(
        "route", CLOS, PP4, "--schedule", "1f1b", "--set", REPLICAS, "--seeds", "3", *drawn, COLUMNS=str(width)
    )
    assert done.exit_code == 0, done.output
    require_legible(done.output, width, drawn[1::2])
    for text in ("ecmp, median of 3", "ecmp, worst of 3", "pod-leaf0->pod-spine1", "pod-spine1"):
        assert text in done.output
    assert "flow completion times, " in done.output
    assert not drawn or picture.read_bytes().startswith(b"\x89PNG")
    assert not drawn or all(words in curves.read_text() for words in ("<svg", "ecmp, 3 seeds", "share of messages"))


def test_completion_times_are_those_of_the_predicted_trace() -> None:
    """Of every seed by itself, from a plan that has its routes; those of all seeds are pooled."""
    document = routed("--seeds", "3", "--policy", "ecmp", "--policy", "greedy", "--elephants-from", "100 kB")
    found = {one["policy"]: one for one in document["completion_times"]}
    plan = load_plan(Path("topologies/leaf-spine.yaml"), Path(PP4), settings=["parallelism.data=4"])
    chosen = choose_schedules(plan, [])
    plan = with_cases(plan, chosen[:1], make(plan, chosen[:1]).made)
    policies = [choose(text) for text in ("greedy", *(f"ecmp,seed={seed}" for seed in (1, 2, 3)))]
    plan, _ = with_policies(plan, policies, Reach(elephants_from=100e3))
    taken = []
    for case in plan.cases:
        messages = predict_together(plan, case).messages
        over_links = [
            bool(routes.routes_of_ranks(plan, case)[source, target])
            for source, target in zip(messages["source_rank"], messages["target_rank"], strict=True)
        ]
        counted = messages[np.array(over_links) & (messages["kind"] != NOTICE)]
        taken.append(counted["arrived_s"] - counted["sent_s"])
    assert found["greedy"]["messages"] == found["ecmp"]["messages"] == len(taken[0]) > 50
    expected = sorted(by_when(times, 99) for times in taken[1:])
    assert sorted(draw["p99_s"] for draw in found["ecmp"]["draws"]) == pytest.approx(expected)
    assert found["ecmp"]["p99_s"] <= max(expected)
    assert found["ecmp"]["p95_s"] == pytest.approx(by_when(np.concatenate(taken[1:]), 95))
    assert found["greedy"]["median_s"] == pytest.approx(by_when(taken[0], 50))
    assert found["greedy"]["max_s"] == pytest.approx(taken[0].max())
    assert found["ecmp"]["p99_s"] != found["greedy"]["p99_s"]


def by_when(times: Floats, percent: int) -> float:
    """The first instant by which so many have come."""
    return float(np.sort(times)[-(-len(times) * percent // 100) - 1])


def test_of_all_seeds_no_share_is_later_than_of_the_worst_seed() -> None:
    """Between two values there may be a gap, into which a mean of the two would fall."""
    first, second = np.array([1.0] * 99 + [9.0]), np.array([1.0] * 98 + [8.0] * 2)
    both = quantiles(np.concatenate([first, second]))
    assert both.p99_s == 8.0 == max(quantiles(first).p99_s, quantiles(second).p99_s)


def test_there_is_no_distribution_of_nothing(tmp_path: Path) -> None:
    words = ("two-dc-longhaul", PP4, "--schedule", "1f1b", "--elephants-from", "1 GB")
    done = called("route", *words)
    assert "flow completion times" not in done.output
    done = called("route", *words, "--cdf", str(tmp_path / "cdf.svg"))
    assert isinstance(done.exception, BadInput)
    assert "--cdf: option: got" in str(done.exception)


def test_the_default_threshold_is_the_one_of_the_library() -> None:
    assert reach_of(ELEPHANTS, None).elephants_from == reach_of(None, None).elephants_from == ELEPHANT_BYTES


def test_where_there_is_nothing_to_choose_it_says_so() -> None:
    done = called("route", "topologies/two-dc-longhaul.yaml", PP4, "--schedule", "1f1b", "--policy", "greedy")
    assert done.exit_code == 0
    assert "there is nothing to choose" in done.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--policy", "magic"), "expected one of shortest"),
        (("--elephants-from", "7"), "--elephants-from"),
        (("--picture", "load.gif"), "ends in .svg or .png"),
        (("--cdf", "times.gif"), "ends in .svg or .png"),
        (("--set", "pacing=none"), "without them only a run"),
    ],
)
def test_what_route_refuses(words: tuple[str, ...], expected: str) -> None:
    done = called("route", CLOS, PP4, "--schedule", "1f1b", *words)
    assert isinstance(done.exception, BadInput)
    assert expected in str(done.exception)


MEDDLING = """
def meddling(problem):
    print("about to route")
    problem.rate_bps[:] = 1.0
    return [0] * problem.n_flows


def talking(problem):
    print("routing")
    return [0] * problem.n_flows
"""


@pytest.fixture
def own_policies(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(f"print('loaded')\n{MEDDLING}", encoding="utf-8")
    return path


def test_a_policy_cannot_change_what_the_next_one_sees(mesh: str, own_policies: Path) -> None:
    done = CliRunner().invoke(app, ["route", mesh, PP4, "--policy", f"{own_policies}:meddling"])
    assert isinstance(done.exception, BadInput)
    assert "read-only" in str(done.exception)


def test_what_a_policy_prints_does_not_stand_in_the_document(mesh: str, own_policies: Path) -> None:
    done = CliRunner().invoke(app, ["route", mesh, PP4, "--policy", f"{own_policies}:talking", "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["policies"]) == 1
    assert "routing" in done.stderr


def test_route_says_what_is_not_in_the_model(tmp_path: Path) -> None:
    path = tmp_path / "lossy.yaml"
    path.write_text(MESH.replace("madrid, rome], delay: 7 ms", "madrid, rome], loss: 0.01, delay: 7 ms"))
    placed = ["--set", "placement=[madrid/0, rome/0, paris/0, berlin/0]"]
    shown, written = (CliRunner().invoke(app, ["route", str(path), PP4, *placed, *more]) for more in ([], ["--json"]))
    assert "not in the model" in " ".join(shown.stdout.split())
    assert any("loss" in line for line in json.loads(written.stdout)["warnings"])


def test_predict_refuses_the_parameters_that_run_refuses(mesh: str) -> None:
    settings = {"parallelism.data": "2", "data_parallel.parameters": "1 kB"}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = CliRunner().invoke(app, ["predict", mesh, PP4, *words])
    assert isinstance(done.exception, BadInput)
    assert "data_parallel.parameters: got '1 kB', expected at least" in str(done.exception)


def routed(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["route", "leaf-spine", PP4, "--set", "parallelism.data=4", *words, "--json"])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_links_that_are_lost_are_not_counted() -> None:
    done = CliRunner().invoke(app, ["route", "leaf-spine", PP4, "--lose", "pod-spine3", "--policy", "shortest"])
    assert "12 links; " in done.stdout, "of four leaves and four spines"


def test_without_a_spine_is_as_if_it_had_never_been_there() -> None:
    """Of four spines the last one lost, beside a network of three: the same routes, metric and iterations."""
    lost = routed("--lose", "pod-spine3", "--seeds", "3")
    fewer = routed("--set", "topology.datacenters.pod.clos.spines=3", "--seeds", "3")
    assert (lost["lost"], fewer["lost"]) == (["pod-spine3"], [])
    assert lost["flows"] == fewer["flows"]
    for one, other in zip(lost["policies"], fewer["policies"], strict=True):
        assert {**one, "controller_s": 0, "links": []} == {**other, "controller_s": 0, "links": []}
        used = [link for link in one["links"] if "pod-spine3" not in link["direction"]]
        assert used == other["links"]
        assert all(link["wire_bytes"] == 0 for link in one["links"] if link not in used)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("leaf-spine", PP4, "--lose", "pod"), "--lose: name: got 'pod', expected a switch or a link"),
        (("two-dc-longhaul", PP4, "--lose", "paris--warsaw"), "expected one without which paris still reaches warsaw"),
    ],
)
def test_what_cannot_be_lost(words: tuple[str, ...], expected: str) -> None:
    done = CliRunner().invoke(app, ["route", *words])
    assert isinstance(done.exception, BadInput)
    assert expected in str(done.exception)


@pytest.mark.parametrize("policy", ["joint,evaluations=1", "interleave", "cassini", "crux"])
def test_a_planner_keeps_away_from_what_is_lost(policy: str) -> None:
    small = ("--schedule", "1f1b", "--set", "parallelism={pipeline: 2, data: 2}", "--set", "microbatches=3")
    document = routed("--lose", "pod-spine3", "--policy", policy, *small)
    (made,) = document["policies"]
    assert not [label for route in made["routes"] for label in route if "pod-spine3" in label]
    assert any("pod-spine0" in label for route in made["routes"] for label in route)
    assert document["lost"] == ["pod-spine3"]


def test_shell_says_which_cases_a_plan_has(tmp_path: Path) -> None:
    done = called("plan", CLOS, PP4, "--schedule", "1f1b", "--policy", "greedy", "-o", str(tmp_path / "plan.json"))
    assert done.exit_code == 0, done.output
    for words, expected in (
        ((str(tmp_path / "plan.json"), "--case", "zb-h1"), "--case: label: got 'zb-h1', expected one of 1f1b"),
        ((CLOS, "--case", "1f1b"), "a plan: a topology has no cases"),
    ):
        done = called("shell", *words)
        assert isinstance(done.exception, BadInput)
        assert expected in str(done.exception)
