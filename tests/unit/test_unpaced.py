"""Unpaced runs: a core for every rank, what a profile makes of measured actions, and a prediction that is repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.plan import file, resolve
from testbed.plan.costs import predict, predict_case, problem, schedule_of
from testbed.plan.plan import Plan
from testbed.session.pinning import by_processor, pinning
from testbed.session.profile import durations, summary
from testbed.spec.choice import ScheduleChoice
from testbed.spec.workload import Pacing
from testbed.trace.tables import ACTION, KINDS, rows

ROOT = Path(__file__).parents[2]
ONE = ScheduleChoice(schedule="1f1b")


def planned(*settings: str) -> Plan:
    return resolve.load_plan(
        ROOT / "topologies/two-dc-metro.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml", settings=settings
    )


def test_every_unpaced_rank_has_a_core_for_itself() -> None:
    found = pinning(planned("pacing=none", "parallelism.pipeline=2"), allowed=[3, 5, 7])
    assert len(set(found.cores)) == 2
    assert set(found.cores) <= {3, 5, 7}
    assert not found.reasons


def test_more_ranks_than_cores_are_said_so() -> None:
    found = pinning(planned("pacing=none"), allowed=[0, 1])
    assert not found.cores
    (reason,) = found.reasons
    assert "4 unpaced ranks share 2 cores" in reason


def test_paced_ranks_need_no_core_for_themselves() -> None:
    assert pinning(planned(), allowed=[0]) == ((), ())


def test_two_threads_of_a_processor_come_last(tmp_path: Path) -> None:
    for core, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert by_processor([3, 2, 1, 0], tmp_path) == [0, 1, 2, 3]
    assert by_processor([0, 2, 3], tmp_path) == [0, 3, 2]
    assert by_processor([5, 4], tmp_path) == [4, 5]


def test_a_duration_begins_where_the_one_before_ended_or_when_the_input_came() -> None:
    table = rows(ACTION, 3)
    table["reached_s"] = [0.0, 1.1, 2.1]
    table["ready_s"] = [0.0, 1.1, 5.0]  # the third waited
    table["end_s"] = [1.0, 2.0, 5.5]
    assert durations(table).tolist() == pytest.approx([1.0, 1.0, 0.5])


def test_the_profile_is_the_median_of_an_iterations_means() -> None:
    samples = {(kind, 0): [2.0, 3.0, 50.0] for kind in "FIWB"} | {("F", 0): [1.0, 1.0, 9.0]}
    assert summary(samples, 1, recompute=False).pacing == Pacing(F=["1 s"], I=["3 s"], W=["3 s"], B=["3 s"])
    # plan/costs.py adds the forward that a recomputing backward runs again
    assert summary(samples, 1, recompute=True).pacing == Pacing(F=["1 s"], I=["2 s"], W=["3 s"], B=["2 s"])


def test_a_fused_backward_has_a_time_of_its_own() -> None:
    fused = problem(planned("pacing={F: 20 ms, I: 20 ms, W: 20 ms, B: 30 ms}"), ONE)
    split = problem(planned(), ONE)
    code = str(KINDS[1])
    assert code == "B"
    assert {fused.whole_backward_s(stage) for stage in range(4)} == {0.03}
    assert {split.whole_backward_s(stage) for stage in range(4)} == {0.04}
    with pytest.raises(BadInput, match=r"pacing\.B"):
        planned("pacing={F: 20 ms, I: 20 ms, W: 20 ms, B: [30 ms]}")


def test_a_plan_with_a_profile_repeats_the_prediction(tmp_path: Path) -> None:
    """What a run leaves: an unpaced plan with what was profiled, and the schedules made from that."""
    plan = planned("pacing=none", "parallelism.pipeline=2")
    with pytest.raises(BadInput, match="only a run can tell"):
        problem(plan, ONE)
    pacing = Pacing(F=["3 ms", "4 ms"], I=["3 ms", "5 ms"], W=["2 ms", "2 ms"], B=["4.5 ms", "6 ms"])
    made = resolve.generate(plan, ONE, pacing)
    expected = predict(plan, ONE, made.schedule, pacing).makespans()[0]
    profiled = replace(plan, jobs=(replace(plan.jobs[0], profile=pacing),))
    file.write(resolve.with_cases(profiled, [ONE], {ONE.label: made}), tmp_path / file.NAME)
    again = file.read(tmp_path)
    assert again.jobs[0].workload.pacing is None, "a run of it measures again"
    schedule = schedule_of(again, again.cases[0])
    assert schedule is not None
    assert predict_case(again, again.cases[0], schedule).makespans()[0] == expected
