"""A training that goes on with another schedule, in plans: cases and their labels, what can be, and what cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.errors import BadInput, ExitCode
from testbed.plan.plan import Plan
from testbed.plan.timeline import Event, JobDeparts, LinkLost, Moment, ScheduleSwapped
from testbed.planning import file
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.routing.rerouting import Controller, with_continuations, with_timeline

ROOT = Path(__file__).parents[2]
RING = """
name: ring
datacenters: {a: {nodes: 2}, b: {nodes: 2}, c: {nodes: 0}}
links:
  - {between: [a, b], delay: 1 ms, rate: 100 Mbit/s}
  - {between: [a, c], delay: 1 ms, rate: 10 Mbit/s}
  - {between: [c, b], delay: 1 ms, rate: 100 Mbit/s}
"""
JOB = "tiny-gpt-pp4"


def planned(directory: Path, *schedules: str) -> Plan:
    (directory / "ring.yaml").write_text(RING)
    plan = load_plan(directory / "ring.yaml", ROOT / f"workloads/{JOB}.yaml")
    chosen = choose(plan, list(schedules or ("1f1b", "zb-h1", "crosspipe-greedy")))
    return with_cases(plan, chosen, make(plan, chosen).made)


def swap(label: str, after: int) -> ScheduleSwapped:
    return ScheduleSwapped(JOB, Moment(after), label)


def swapping(plan: Plan, *events: Event) -> Plan:
    return with_continuations(with_timeline(plan, events), Controller())


def test_a_training_goes_on_with_another_schedule(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    swapped = swapping(plan, swap("crosspipe-greedy", 5), swap("zb-h1", 2), swap("1f1b", 6))
    assert [case.label for case in swapped.cases] == ["1f1b", "zb-h1 from 2", "crosspipe-greedy from 5", "1f1b from 6"]
    first, second, third = plan.cases
    assert [case.jobs for case in swapped.cases] == [first.jobs, second.jobs, third.jobs, first.jobs]
    assert file.from_json(file.to_json(swapped), "plan.json") == swapped
    alone = [float(iteration_times(plan, case)[0]) for case in plan.cases]
    assert [float(iteration_times(swapped, case)[0]) for case in swapped.cases] == [*alone, alone[0]]


def test_one_that_was_left_out_is_refused_by_why_it_does_not_fit(tmp_path: Path) -> None:
    plan = replace(planned(tmp_path, "1f1b"), left_out={"zb-h1": "rank 1 needs memory for 4 microbatches"})
    with pytest.raises(BadInput) as refused:
        swapping(plan, swap("zb-h1", 2))
    expected = "a schedule that fits: rank 1 needs memory for 4 microbatches"
    assert str(refused.value) == f"--swap: schedule: got 'zb-h1', expected {expected}"


def test_beside_a_link_that_is_lost(tmp_path: Path) -> None:
    both = swapping(planned(tmp_path), LinkLost("a--b", Moment(2)), swap("zb-h1", 2), swap("1f1b", 4))
    assert [case.label for case in both.cases] == ["1f1b", "zb-h1 from 2 without a--b", "1f1b from 4 without a--b"]
    after = swapping(planned(tmp_path), swap("zb-h1", 2), LinkLost("a--b", Moment(4)))
    assert [case.label for case in after.cases] == ["1f1b", "zb-h1 from 2", "zb-h1 from 2 without a--b"]
    assert after.cases[-1].routes != after.cases[0].routes


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([swap("wave", 2)], r"expected a schedule of this plan \(1f1b, zb-h1, crosspipe-greedy\)"),
        ([swap("1f1b", 2)], "expected another one than the training has then"),
        ([swap("zb-h1", 2), swap("zb-h1", 3)], "expected another one than the training has then"),
        ([swap("zb-h1", 2), swap("crosspipe-greedy", 2)], "expected one schedule at a time"),
        ([swap("zb-h1", 10)], "got 10, expected 1 to 9"),
        ([ScheduleSwapped("other", Moment(2), "zb-h1")], r"expected one of the jobs \(tiny-gpt-pp4\)"),
        ([ScheduleSwapped(JOB, Moment(2, 0.1), "zb-h1")], "expected 0, the beginning of an iteration"),
    ],
)
def test_swaps_that_cannot_be(tmp_path: Path, events: list[Event], expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        swapping(planned(tmp_path), *events)


def test_stages_move_to_other_ranks(tmp_path: Path) -> None:
    swapped = swapping(planned(tmp_path, "1f1b", "zb-v"), swap("zb-v", 2), swap("1f1b", 5))
    assert [case.jobs[0].stage_to_rank for case in swapped.cases] == [
        (0, 1, 2, 3),
        (0, 1, 2, 3, 3, 2, 1, 0),
        (0, 1, 2, 3),
    ]
    assert file.from_json(file.to_json(swapped), "plan.json") == swapped


def test_what_replicas_share_of_an_optimizer_moves_if_the_model_says_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "ring.yaml").write_text(RING)
    text = (ROOT / "examples/my_model.py").read_text(encoding="utf-8")
    (tmp_path / "guessing.py").write_text(text.replace("def stage_parameter_count(", "def unsaid("))
    parallel, guessing = "parallelism={pipeline: 2, data: 2}", f"model={{kind: {tmp_path}/guessing.py:Mlp, layers: 4}}"
    for settings in ([parallel], [parallel, guessing]):
        plan = load_plan(tmp_path / "ring.yaml", ROOT / f"workloads/{JOB}.yaml", settings=settings)
        chosen = choose(plan, ["1f1b", "zb-v"])
        plan = with_cases(plan, chosen, make(plan, chosen).made)
        if guessing not in settings:
            swapped = swapping(plan, swap("zb-v", 2))
            assert file.from_json(file.to_json(swapped), "plan.json") == swapped
            continue
        with pytest.raises(BadInput, match=r"--swap: zb-v: .*or a model with stage_parameter_count: .*\(zero-1\)"):
            swapping(plan, swap("zb-v", 2))


def test_a_file_that_trains_something_else_is_refused(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    swapped = swapping(plan, swap("zb-h1", 2))
    first, second = swapped.cases
    other = replace(swapped, cases=(first, replace(second, jobs=plan.cases[2].jobs)))
    with pytest.raises(BadInput, match="expected zb-h1, with which the training goes on"):
        file.from_json(file.to_json(other), "plan.json")
    unsaid = replace(swapped, events=(LinkLost("a--b", Moment(2)),))
    with pytest.raises(BadInput, match="got 'zb-h1', expected 1f1b, with which the training goes on"):
        file.from_json(file.to_json(unsaid), "plan.json")
    with pytest.raises(BadInput, match="one job or more at work after it"):
        swapping(plan, JobDeparts(JOB, Moment(2)), swap("zb-h1", 3))


@pytest.mark.parametrize("text", ["zb-h1", "@3", "zb-h1@x", "zb-h1@"])
def test_words_that_are_no_swap(text: str) -> None:
    done = run_testbed("plan", "two-dc-longhaul", JOB, "--swap", text)
    assert done.returncode == ExitCode.BAD_INPUT
    assert f"--swap: option: got '{text}', expected LABEL@K, as in zb-h1@3" in " ".join(done.stderr.split())
