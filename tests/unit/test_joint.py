"""Policies that choose more than routes: `joint` with schedules, `interleave` with the starts of jobs."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from testbed.errors import BadInput
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.prediction import iteration_times, predict_jobs
from testbed.planning.resolve import make_plan
from testbed.planning.schedules import candidates, choose, every_choice, make, with_selected
from testbed.routing import joint
from testbed.routing.apply import with_policies
from testbed.routing.case_evaluator import CaseEvaluator
from testbed.routing.planner import PlannedCases, PlannerInput, Reach
from testbed.routing.policies import PolicyChoice, plan_with
from testbed.routing.policies import choose as policy
from testbed.routing.routing_problem import RoutingProblem
from testbed.search.incumbent import Standing
from testbed.spec import load_workload
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

ROOT = Path(__file__).parents[2]
PP4 = ROOT / "workloads/tiny-gpt-pp4.yaml"
REACH = Reach(elephants_from=100e3)
QUICK = "joint,evaluations=120"
MESH: dict[str, Any] = {
    "name": "mesh",
    "datacenters": {name: {"nodes": 2} for name in "abcd"},
    "links": [
        {"between": list(ends), "delay": delay, "rate": "200 Mbit/s"}
        for ends, delay in (("ab", "5 ms"), ("ac", "6 ms"), ("bc", "7 ms"), ("cd", "7 ms"), ("bd", "6 ms"))
    ]
    + [{"between": ["a", "b"], "name": "north", "delay": "6 ms", "rate": "200 Mbit/s"}],
}
REPLICAS = {"parallelism.data": "2", "data_parallel.replicas": "[[a/1, b/1, c/1, d/1]]"}


def job(*nodes: str, **settings: str) -> Workload:
    placed = {"parallelism.pipeline": str(len(nodes)), "placement": f"[{', '.join(nodes)}]", "memory": "4"}
    asked = {
        "schedules": "[1f1b, {schedule: search, evaluations: 4}]",
        "microbatches": "4",
        "message": "500 kB",
        **placed,
        **settings,
    }
    return load_workload(PP4, asked)


def planned(topology: dict[str, Any], *workloads: Workload) -> Plan:
    plan = make_plan(validate(Topology, topology, "topology.yaml"), *workloads)
    return with_selected(plan, [make(plan, choose(plan, ["1f1b"], job=job), job=job) for job in range(len(workloads))])


@cache
def mesh() -> Plan:
    """Two replicas of one job, side by side."""
    return planned(MESH, job("a/0", "b/0", "c/0", "d/0", **REPLICAS))


@cache
def jointly() -> Plan:
    return with_policies(mesh(), [policy(QUICK)], REACH)[0]


def test_joint_is_no_slower_than_either_choice_alone() -> None:
    found = jointly()
    file.check(found, "plan.json")
    (case,) = found.cases
    (seconds,) = iteration_times(found, case)
    plain = replace(mesh(), framing=found.framing)
    names = ("shortest", "static", "greedy", "greedy-bytes", "greedy-jobs", "greedy-time", "ecmp,seed=5", "ilp")
    routed = [with_policies(mesh(), [policy(name)], REACH)[0] for name in names]
    best_routes = min(iteration_times(one, one.cases[0])[0] for one in routed)
    quick = [choice for choice in every_choice(plain) if not choice.schedule.startswith("search")]
    best_schedule = min(one.makespan_s for one in candidates(plain, quick).found)
    assert seconds < 0.99 * best_routes
    assert seconds < 0.99 * best_schedule


def test_joint_chooses_the_same_again_and_says_what_it_gains() -> None:
    again, (remark,) = with_policies(mesh(), [policy(QUICK)], REACH)
    assert again == jointly()
    assert "less than with the schedules asked for under the best policy" in remark


def test_a_policy_that_is_wrong_is_an_error_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(problem: RoutingProblem) -> list[int]:
        return [99] * problem.n_flows

    monkeypatch.setattr(joint, "_policies", lambda **_: iter([PolicyChoice("wrong", wrong)]))
    with pytest.raises(BadInput, match="--policy: wrong: got 99, expected route 0 to"):
        with_policies(mesh(), [policy(QUICK)], REACH)


def test_joint_stands_beside_other_policies_in_one_plan() -> None:
    """Its schedule may send where the others do not: all cases have a route for every flow."""
    two = planned(MESH, *(job(*(f"{site}/{number}" for site in "abcd")) for number in range(2)))
    plan, _ = with_policies(two, [policy("shortest"), policy("joint,evaluations=1,within=0.2")], REACH)
    file.check(plan, "plan.json")
    assert file.from_json(file.to_json(plan), "plan.json") == plan
    baseline, chosen = plan.cases
    assert baseline.label == "1f1b on shortest"
    assert chosen.label.endswith(" on joint evaluations=1 within=0.2")
    worst = [max(iteration_times(plan, case)) for case in plan.cases]
    assert worst[1] < worst[0]


def test_ctrl_c_ends_a_search_with_the_best_so_far() -> None:
    heard: list[Standing] = []

    def watch(name: str, standing: Standing) -> None:
        if name != "joint":
            return
        heard.append(standing)
        if standing.makespan_s < heard[0].makespan_s and not standing.interrupted:
            raise KeyboardInterrupt

    made: PlannedCases = plan_with(policy(QUICK), PlannerInput(mesh(), REACH, watch))
    assert heard[-1].interrupted
    assert len(made.cases) == 1


# --- starts --------------------------------------------------------------------------------------

LINE: dict[str, Any] = {
    "name": "line",
    "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}},
    "links": [{"between": ["a", "b"], "delay": "5 ms", "rate": "100 Mbit/s"}],
}


def test_jobs_whose_bursts_meet_begin_a_little_later_than_each_other() -> None:
    """One microbatch each over one link: the second job's message waits for the first one's, 40 ms."""
    plan = planned(LINE, *(job(f"a/{n}", f"b/{n}", microbatches="1") for n in range(2)))
    later, (remark,) = with_policies(plan, [policy("interleave,within=0.3")], REACH)
    file.check(later, "plan.json")
    before, after = (predict_jobs(one, one.cases[0]) for one in (plan, later))
    assert max(one.together_s / one.alone_s for one in before) > 1.1
    assert max(one.together_s / one.alone_s for one in after) < 1.001
    starts = later.cases[0].starts_s
    assert starts[0] == 0
    assert 0.04 <= starts[1] <= 0.3 * min(one.alone_s for one in before)
    assert "jobs begin at 0 s, " in remark


def test_starts_stay_within_their_bound_and_never_cost_anything() -> None:
    plan = planned(LINE, job("a/0", "b/0"), job("a/1", "b/1", **{"pacing.F": "30 ms"}))
    later, _ = with_policies(plan, [policy("interleave,within=0.01")], REACH)
    before, after = (predict_jobs(one, one.cases[0]) for one in (plan, later))
    slowdown = [max(one.together_s / one.alone_s for one in jobs) for jobs in (before, after)]
    assert slowdown[1] <= slowdown[0] + 1e-9
    later_s = max(later.cases[0].starts_s, default=0.0)
    assert later_s <= 0.01 * min(one.alone_s for one in before)


def test_what_is_told_of_starts_is_of_the_routes_that_the_jobs_get() -> None:
    """By bytes alone the slow link is as good as the other one; the default routes, over that, are no answer."""
    slow = {"between": ["a", "b"], "name": "slow", "delay": "6 ms", "rate": "5 Mbit/s"}
    plan = planned(LINE | {"links": [*LINE["links"], slow]}, *(job(f"a/{n}", f"b/{n}") for n in range(2)))
    told: list[float] = []

    def watch(_: str, standing: Standing) -> None:
        told.append(standing.makespan_s)

    later, _ = with_policies(plan, [policy("interleave")], REACH, watch)
    before, after = (iteration_times(one, one.cases[0]) for one in (plan, later))
    assert max(after) > 2 * max(before)
    assert told[-1] == pytest.approx(max(after))
    assert min(told) > max(before)


def test_one_job_alone_has_nothing_to_wait_for() -> None:
    later, _ = with_policies(mesh(), [policy("interleave")], REACH)
    assert not any(later.cases[0].starts_s)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interleave,routes=joint", "a policy that chooses routes alone"),
        ("interleave,within=2", "at most 1"),
        ("joint,evaluations=0", "at least 1"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        with_policies(mesh(), [policy(text)], REACH)


def test_without_pacing_nobody_knows_what_is_best() -> None:
    with pytest.raises(BadInput, match="without them only a run"):
        with_policies(planned(LINE, job("a/0", "b/0", pacing="none")), [policy("joint")], REACH)


def test_the_judge_compares_the_worst_job_first() -> None:
    plan = planned(LINE, job("a/0", "b/0"), job("a/1", "b/1"))
    judge = CaseEvaluator(plan, 10, 60.0, ("test", None))
    key = judge.offer(plan.cases[0])
    assert key == tuple(sorted(key, reverse=True))
    assert judge.judged == 1
    apart = replace(plan.cases[0], starts_s=(0.0, 5.0))
    assert judge.offer(apart) == (1.0, 1.0) < key
    assert judge.best is apart


# --- every choice there is -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def brute_force() -> ModuleType:
    spec = importlib.util.spec_from_file_location("routing_brute_force", ROOT / "benchmarks/routing_brute_force.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["routing_brute_force"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("number", [0, 2, 102, 104])
def test_which_job_is_named_first_does_not_decide(brute_force: ModuleType, number: int) -> None:
    """The best is that the one named first in one of the orders begins later (by 1 and 15 %), or at the bound."""
    found = brute_force.starts(number)
    assert max(found.orders) <= found.best * (1 + brute_force.TIE)
    assert max(found.orders) <= min(found.orders) * (1 + brute_force.TIE)
