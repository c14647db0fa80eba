"""Several jobs on one network: which schedules meet, and what sharing a link costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import run_testbed
from test_cli import LONGHAUL, PP4

from testbed.errors import BadInput
from testbed.plan.costs import problem, problem_of_case
from testbed.plan.plan import Clock, Plan
from testbed.planning import file
from testbed.planning.prediction import iteration_times, predict_jobs, predict_together
from testbed.planning.resolve import combinations, make_plan, require_trainable, with_clock, with_combinations
from testbed.planning.schedules import choose, make
from testbed.spec import load_workload
from testbed.spec.document import validate
from testbed.spec.topology import Topology, with_events
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
    plan = with_clock(make_plan(validate(Topology, CHAIN, "chain.yaml"), *workloads), Clock("virtual"))
    choices = [choose(plan, job=number) for number in range(len(workloads))]
    made = [make(plan, mine, job=number).made for number, mine in enumerate(choices)]
    return with_combinations(plan, combinations(plan, choices), made)


def test_jobs_that_share_no_link_are_not_in_each_others_way() -> None:
    plan = planned(job("a/0", "b/0"), job("b/1", "c/0", **{"pacing.F": "30 ms"}))
    first, second = predict_jobs(plan, plan.cases[0])
    assert first.together_s == first.alone_s
    assert second.together_s == pytest.approx(second.alone_s, abs=1e-9) != first.alone_s
    assert second.bubble_together == pytest.approx(second.bubble_alone, abs=1e-9)


def test_a_message_waits_for_that_of_another_job() -> None:
    """One microbatch: the second job's activation waits for the first one's, and is late from then on."""
    jobs = job("a/0", "b/0", microbatches="1"), job("a/1", "b/1", microbatches="1")
    plan = planned(*jobs)
    (case,) = plan.cases
    first, second = predict_jobs(plan, case)
    costs = problem_of_case(plan, case, job=1)
    wire_s = costs.message_bytes[0] * costs.links[0].seconds_per_byte
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
    begun = replace(plan.cases[0], starts_s=(0.0, 10.0))  # said by the case, the same
    assert predict_jobs(replace(plan, cases=(begun,)), begun)[1].together_s == second.together_s


def test_alone_is_a_median_of_the_same_iterations_with_an_event_as_without() -> None:
    """Drawn slots; the event changes nothing."""
    drawn = {"pacing": "{F: {median: 10 ms, p95: 30 ms}, I: 10 ms, W: 10 ms}", "iterations": "7"}
    jobs = job("a/0", "b/0", **drawn), job("a/1", "b/1", **drawn, seed="5")
    without = planned(*jobs)
    (link, *_) = dict.fromkeys(direction.link for direction in without.network.directions)
    topology = with_events(validate(Topology, CHAIN, "chain.yaml"), [f"link {link} rate 100 % at 1"])
    plan = replace(without, events=make_plan(topology, *jobs).events)
    for one, other in zip(predict_jobs(plan, plan.cases[0]), predict_jobs(without, without.cases[0]), strict=True):
        assert (one.alone_s, one.together_s) == pytest.approx((other.alone_s, other.together_s))
        assert one.alone_s < one.together_s


def test_times_without_a_trace_are_those_of_the_trace() -> None:
    plan = planned(job("a/0", "b/0"), job("a/1", "b/1", **{"pacing.F": "30 ms"}))
    plan = replace(plan, jobs=(plan.jobs[0], replace(plan.jobs[1], start_s=0.07)))
    assert list(iteration_times(plan, plan.cases[0])) == [
        pytest.approx(one.together_s) for one in predict_jobs(plan, plan.cases[0])
    ]


def test_a_case_comes_back_from_its_file_with_its_starts() -> None:
    plan = planned(job("a/0", "b/0"), job("a/1", "b/1"))
    assert "starts_s" not in file.to_json(plan)
    shifted = replace(plan, cases=(replace(plan.cases[0], starts_s=(0.0, 0.25)),))
    assert file.from_json(file.to_json(shifted), "plan.json") == shifted
    for starts, expected in (((0.0,), "a time for every job"), ((0.0, -1.0), "0 to 3600 s")):
        wrong = replace(plan, cases=(replace(plan.cases[0], starts_s=starts),))
        with pytest.raises(BadInput, match=expected):
            file.check(wrong, "plan.json")


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
    require_trainable(plan)


def test_jobs_with_other_messages_are_predicted_on_one_network() -> None:
    plan = planned(job("a/0", "b/0"), job("a/1", "b/1", message="300001 B"))
    for one in predict_jobs(plan, plan.cases[0]):
        assert one.together_s > 1.001 * one.alone_s


def test_equal_jobs_do_not_begin_at_one_instant() -> None:
    """Else nothing but chance would tell whose message the link takes first; after replicas have had their turns."""
    alike = job("a/0", "b/0"), job("a/1", "b/1")
    starts = [one.start_s for one in planned(*alike).jobs]
    assert starts == [0.0, pytest.approx(2 * 20e-6)]
    wide = load_workload(
        ROOT / PP4, {"parallelism": "{pipeline: 2, data: 2}", "placement": "[a/0, b/0]", "memory": "8"}
    )
    narrow = job("b/0", "c/0", placement="[c/0, c/1]")
    plan = make_plan(validate(Topology, CHAIN, "chain.yaml"), wide, narrow)
    assert plan.jobs[1].start_s > max(problem(plan, choose(plan)[0]).begins_s) > 0
    virtual = with_clock(plan, Clock("virtual"))
    assert max(problem(virtual, choose(plan)[0]).begins_s) < virtual.jobs[1].start_s < plan.jobs[1].start_s


def test_every_job_has_a_name_of_its_own() -> None:
    """Also where a workload has the name that a namesake's job would get: results are told apart by it."""
    plan = planned(*(job("a/0", "b/0", name="a-2"), job("a/1", "b/1", name="a"), job("c/0", "c/1", name="a")))
    assert [one.name for one in plan.jobs] == ["a-2", "a", "a-3"]
    same = replace(plan, jobs=(plan.jobs[0], replace(plan.jobs[1], name="a-2"), plan.jobs[2]))
    with pytest.raises(BadInput, match="a name for every job alone"):
        file.check(same, "plan.json")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"iterations": "7"}, r"tiny-gpt-pp4-2: iterations: got 7, expected 10, as tiny-gpt-pp4: .*--iterations N"),
        ({"warmup": "3"}, r"tiny-gpt-pp4-2: warmup: got 3, expected 2, as tiny-gpt-pp4: .*--set warmup=N"),
        ({"pacing": "none"}, r"tiny-gpt-pp4-2: pacing: got 'none', expected seconds for F, I and W: an unpaced job"),
    ],
)
def test_jobs_that_cannot_train_in_the_same_rounds_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        require_trainable(planned(job("a/0", "b/0"), job("a/1", "b/1", **settings)))


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


def test_a_plan_of_several_jobs_is_predicted_and_shown(tmp_path: Path) -> None:
    out = tmp_path / "two.json"
    made = run_testbed("plan", LONGHAUL, PP4, PP4, "--schedule", "1f1b", "-o", str(out))
    assert made.returncode == 0, made.stderr
    from_plan = run_testbed("predict", str(out), "--json")
    assert from_plan.stdout == run_testbed("predict", LONGHAUL, PP4, PP4, "--schedule", "1f1b", "--json").stdout
    other = tmp_path / "other.yaml"
    other.write_text((ROOT / PP4).read_text().replace("iterations: 10", "iterations: 3"))
    refused = run_testbed("run", LONGHAUL, PP4, str(other), "--out", str(tmp_path / "never"))
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "tiny-gpt-pp4-2: iterations: got 3, expected 10" in refused.stderr
    assert not (tmp_path / "never").exists()
    shown = run_testbed("schedule", "show", LONGHAUL, PP4, PP4, "--schedule", "1f1b", COLUMNS="80")
    assert "7 warsaw/3" in shown.stdout
    rows = json.loads(run_testbed("schedule", "show", LONGHAUL, PP4, PP4, "--schedule", "1f1b", "--json").stdout)
    assert set(rows["cases"]["1f1b"]) == {"tiny-gpt-pp4", "tiny-gpt-pp4-2"}


def test_predict_of_a_plan_takes_no_options_that_the_plan_has_decided(tmp_path: Path) -> None:
    done = run_testbed("predict", str(tmp_path / "plan.json"), "--schedule", "1f1b")
    assert done.returncode == 2
    assert "a plan has decided that already" in done.stderr
