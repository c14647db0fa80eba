"""Several jobs on one network: which schedules meet, and what sharing a link costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_cli import LONGHAUL, PP4, run_testbed

from testbed.errors import BadInput
from testbed.plan import file
from testbed.plan.costs import problem_of_case
from testbed.plan.plan import Plan
from testbed.plan.resolve import make_plan, meetings, require_trainable, with_meetings
from testbed.plan.schedules import choose, make
from testbed.plan.together import predict_jobs, predict_together
from testbed.spec import load_workload
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

ROOT = Path(__file__).parents[2]

CHAIN: dict[str, Any] = {
    "name": "chain",
    "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}, "c": {"nodes": 2}},
    "links": [
        {"between": ["a", "b"], "delay": "5 ms", "rate": "100 Mbit/s"},
        {"between": ["b", "c"], "delay": "5 ms", "rate": "100 Mbit/s"},
    ],
}


def job(*nodes: str, **settings: str) -> Workload:
    placed = {"parallelism.pipeline": str(len(nodes)), "placement": f"[{', '.join(nodes)}]", "memory": "8"}
    return load_workload(ROOT / PP4, {"schedules": "[1f1b]", **placed, **settings})


def planned(*workloads: Workload) -> Plan:
    plan = make_plan(validate(Topology, CHAIN, "chain.yaml"), *workloads)
    choices = [choose(plan, job=number) for number in range(len(workloads))]
    made = [make(plan, mine, job=number).made for number, mine in enumerate(choices)]
    return with_meetings(plan, meetings(plan, choices), made)


def test_jobs_that_share_no_link_are_not_in_each_others_way() -> None:
    plan = planned(job("a/0", "b/0"), job("b/1", "c/0", **{"pacing.F": "30 ms"}))
    first, second = predict_jobs(plan, plan.cases[0])
    assert first.together_s == first.alone_s
    assert second.together_s == second.alone_s != first.alone_s
    assert second.bubble_together == pytest.approx(second.bubble_alone, abs=1e-12)


def test_a_message_waits_for_that_of_another_job() -> None:
    """One microbatch: the second job's activation waits for the first one's, and is late from then on."""
    jobs = job("a/0", "b/0", microbatches="1"), job("a/1", "b/1", microbatches="1")
    plan = planned(*jobs)
    (case,) = plan.cases
    first, second = predict_jobs(plan, case)
    problem = problem_of_case(plan, case, job=1)
    wire_s = problem.message_bytes[0] * problem.links[0].seconds_per_byte
    assert wire_s > 0.05
    assert first.together_s == pytest.approx(first.alone_s, abs=1e-3)
    # acknowledgements of the other job's message take their share of the link too
    assert second.together_s - second.alone_s == pytest.approx(wire_s, rel=0.01)
    assert set(predict_together(plan, case).actions["rank"]) == set(range(4))


def test_a_job_that_starts_when_the_other_is_over_is_alone() -> None:
    plan = planned(job("a/0", "b/0"), job("a/1", "b/1"))
    assert predict_jobs(plan, plan.cases[0])[1].together_s > 1.01 * predict_jobs(plan, plan.cases[0])[1].alone_s
    later = replace(plan, jobs=(plan.jobs[0], replace(plan.jobs[1], start_s=10.0)))
    second = predict_jobs(later, later.cases[0])[1]
    assert second.together_s == pytest.approx(second.alone_s, abs=1e-9)
    assert second.bubble_together == pytest.approx(second.bubble_alone, abs=1e-9)


def test_schedules_meet_one_by_one() -> None:
    two, other = job("a/0", "b/0", schedules="[1f1b, gpipe]"), job("a/1", "b/1", schedules="[1f1b, zb-h1]")
    plan = planned(two, other, job("b/0", "c/0", placement="[c/0, c/1]", schedules="[1f1b]"))
    assert [case.label for case in plan.cases] == ["1f1b", "gpipe + zb-h1 + 1f1b"]
    assert [[one.choice.label for one in case.jobs] for case in plan.cases] == [
        ["1f1b"] * 3,
        ["gpipe", "zb-h1", "1f1b"],
    ]
    assert {flow.source for flow in plan.flows} == set(range(6))
    assert file.from_json(file.to_json(plan), "plan.json") == plan
    with pytest.raises(BadInput, match=r"schedules: got '1f1b, gpipe', expected 1 or 3 schedules"):
        planned(two, job("a/1", "b/1", schedules="[1f1b, zb-h1, gpipe]"))
    with pytest.raises(BadInput, match="one job"):
        require_trainable(plan)


def test_predict_says_what_jobs_cost_each_other() -> None:
    done = run_testbed("predict", LONGHAUL, PP4, PP4, "--json", "--schedule", "1f1b", "--schedule", "gpipe")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["workloads"] == ["tiny-gpt-pp4", "tiny-gpt-pp4-2"]
    assert [case["label"] for case in document["cases"]] == ["1f1b", "gpipe"]
    for case in document["cases"]:
        for row in case["jobs"]:
            assert row["slowdown_predicted"] == row["predicted_s"] / row["predicted_alone_s"] >= 1
        assert max(row["slowdown_predicted"] for row in case["jobs"]) > 1.001


def test_a_plan_of_several_jobs_is_predicted_shown_and_not_trained(tmp_path: Path) -> None:
    out = tmp_path / "two.json"
    made = run_testbed("plan", LONGHAUL, PP4, PP4, "--schedule", "1f1b", "-o", str(out))
    assert made.returncode == 0, made.stderr
    from_plan = run_testbed("predict", str(out), "--json")
    assert from_plan.stdout == run_testbed("predict", LONGHAUL, PP4, PP4, "--schedule", "1f1b", "--json").stdout
    refused = run_testbed("run", str(out), "--out", str(tmp_path / "never"))
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "not trained yet" in refused.stderr
    assert not (tmp_path / "never").exists()
    shown = run_testbed("schedule", "show", LONGHAUL, PP4, PP4, "--schedule", "1f1b", COLUMNS="80")
    assert "7 warsaw/3" in shown.stdout
    rows = json.loads(run_testbed("schedule", "show", LONGHAUL, PP4, PP4, "--schedule", "1f1b", "--json").stdout)
    assert set(rows["cases"]["1f1b"]) == {"tiny-gpt-pp4", "tiny-gpt-pp4-2"}


def test_predict_of_a_plan_takes_no_options_that_the_plan_has_decided(tmp_path: Path) -> None:
    done = run_testbed("predict", str(tmp_path / "plan.json"), "--schedule", "1f1b")
    assert done.returncode == 2
    assert "a plan has decided that already" in done.stderr
