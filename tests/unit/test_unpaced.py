"""Unpaced runs: a core for every rank, what a profile makes of measured actions, and a prediction that is repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.judge.fidelity import core_check, profile_check
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.pipeline.memory import peak_in_flight
from testbed.pipeline.validate import validate
from testbed.plan.costs import predict_case, problem, profiled, schedule_of
from testbed.plan.plan import Plan, Profile
from testbed.planning import file, resolve
from testbed.planning.prediction import predict_jobs
from testbed.session.pinning import Pinning, by_processor, pinning
from testbed.session.profile import durations, phases, summary
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
    assert found.relay_core in {3, 5, 7} - set(found.cores), "the relay has the spare one"
    assert not found.reasons


def test_without_a_spare_core_the_relay_always_takes_from_the_same_rank() -> None:
    found = pinning(planned("pacing=none", "parallelism.pipeline=2"), allowed=[0, 1])
    assert found.relay_core == found.cores[-1]


def test_more_ranks_than_cores_are_said_so() -> None:
    found = pinning(planned("pacing=none"), allowed=[0, 1])
    assert not found.cores
    (reason,) = found.reasons
    assert "4 unpaced ranks share 2 cores" in reason


def test_paced_ranks_need_no_core_for_themselves() -> None:
    assert pinning(planned(), allowed=[0]) == Pinning()


def test_two_threads_of_a_processor_come_last(tmp_path: Path) -> None:
    for core, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert by_processor([3, 2, 1, 0], tmp_path) == [0, 1, 2, 3]
    assert by_processor([0, 2, 3], tmp_path) == [0, 3, 2]
    assert by_processor([5, 4], tmp_path) == [4, 5]


@pytest.mark.parametrize(("queued_s", "trusted"), [(0.05, True), (0.07, True), (0.08, False), (0.25, False)])
def test_a_core_that_others_took_is_noticed(queued_s: float, trusted: bool) -> None:
    """Measured against what is usual for the job: messages always take some of a rank's core."""
    quiet = Witnesses(0.05, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0)
    row = IterationRow(0, False, 1.0, 0.4, 5.0, (4.0,), (4.0,), 0, 0.0, 96, 0.0, witnesses=quiet)
    busy = row._replace(witnesses=quiet._replace(rank_queued_s=queued_s))
    assert core_check([busy] * 3, [row] * 3).ok == trusted


def test_a_profile_that_scattered_is_not_trusted() -> None:
    assert profile_check(0.05).ok
    (reason,) = profile_check(0.3).reasons
    assert "while it was profiled" in reason


def test_a_duration_begins_where_the_one_before_ended_or_when_the_input_came() -> None:
    table = rows(ACTION, 3)
    table["reached_s"] = [0.0, 1.1, 2.1]
    table["ready_s"] = [0.0, 1.1, 5.0]  # the third waited
    table["end_s"] = [1.0, 2.0, 5.5]
    assert durations(table).tolist() == pytest.approx([1.0, 1.0, 0.5])


def test_the_profile_is_the_median_of_an_iterations_means() -> None:
    samples = {(kind, 0): [2.0, 3.0, 50.0] for kind in "FIWB"} | {("F", 0): [1.0, 1.0, 9.0]}
    assert summary(samples, 1, recompute=False) == Pacing(F=["1 s"], I=["3 s"], W=["3 s"], B=["3 s"])
    # plan/costs.py adds the forward that a recomputing backward runs again
    assert summary(samples, 1, recompute=True) == Pacing(F=["1 s"], I=["2 s"], W=["3 s"], B=["2 s"])


def test_a_fused_backward_has_a_time_of_its_own() -> None:
    fused = problem(planned("pacing={F: 20 ms, I: 20 ms, W: 20 ms, B: 30 ms}"), ONE)
    split = problem(planned(), ONE)
    code = str(KINDS[1])
    assert code == "B"
    assert {fused.whole_backward_s(stage) for stage in range(4)} == {0.03}
    assert {split.whole_backward_s(stage) for stage in range(4)} == {0.04}
    with pytest.raises(BadInput, match=r"pacing\.B"):
        planned("pacing={F: 20 ms, I: 20 ms, W: 20 ms, B: [30 ms]}")


FEW = Pacing(F=["3 ms", "4 ms"], I=["3 ms", "5 ms"], W=["2 ms", "2 ms"], B=["4.5 ms", "6 ms"])
MANY = Pacing(F=["5 ms", "6 ms"], I=["4 ms", "5 ms"], W=["2 ms", "2 ms"], B=["6.5 ms", "6 ms"])
PROFILE = Profile(FEW, MANY, (2.0, 1.0), (8.0, 8.0))


def test_actions_take_longer_where_more_memory_is_gone_through() -> None:
    plan = planned("parallelism.pipeline=2", "memory=8")
    one, gpipe = (resolve.generate(plan, ScheduleChoice(schedule=name)).schedule for name in ("1f1b", "gpipe"))
    assert pytest.approx([0.003, 0.004]) == profiled(PROFILE, one).F
    assert pytest.approx([0.005, 0.006]) == profiled(PROFILE, gpipe).F
    between = replace(PROFILE, held_few=(0.0, 1.0), held_many=(4.0, 1.0))  # 1F1B holds 2 and 1
    assert pytest.approx([0.004, 0.004]) == profiled(between, one).F
    assert [pytest.approx(0.0055), pytest.approx(0.006)] == profiled(between, one).B  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(("split", "expected"), [(True, "0F0 0F1 0I0 0I1 0W0 0W1 0F2 0I2 0W2"), (False, "")])
def test_a_profile_in_phases_holds_no_more_than_it_may(split: bool, expected: str) -> None:
    plan = planned("parallelism.pipeline=2", "microbatches=3")
    schedule = phases(resolve.generate(plan, ONE).schedule, 2, split=split)
    assert " ".join(map(str, schedule.rows[0])) == (expected or "0F0 0F1 0B0 0B1 0F2 0B2")
    assert peak_in_flight(schedule) == (2.0, 2.0)
    validate(schedule, problem(plan, ONE))


def test_a_plan_with_a_profile_repeats_the_prediction(tmp_path: Path) -> None:
    """What a run leaves: an unpaced plan with what was profiled, and the schedules made from that."""
    plan = planned("pacing=none", "parallelism.pipeline=2")
    with pytest.raises(BadInput, match="only a run can tell"):
        problem(plan, ONE)
    known = replace(plan, jobs=(replace(plan.jobs[0], profile=PROFILE),))
    made = resolve.generate(known, ONE)
    left = resolve.with_cases(known, [ONE], {ONE.label: made})
    expected = predict_case(left, left.cases[0], made.schedule).makespans()[0]
    file.write(left, tmp_path / file.NAME)
    again = file.read(tmp_path)
    assert again.jobs[0].workload.pacing is None, "a run of it measures again"
    schedule = schedule_of(again, again.cases[0])
    assert schedule is not None
    assert predict_case(again, again.cases[0], schedule).makespans()[0] == expected


def test_predict_says_of_such_a_plan_what_the_run_said(tmp_path: Path) -> None:
    """Also where a schedule holds more than the few microbatches that the first profile was taken with."""
    plan = planned("pacing=none", "parallelism.pipeline=2", "memory=8")
    known = replace(plan, jobs=(replace(plan.jobs[0], profile=PROFILE),))
    choice = ScheduleChoice(schedule="gpipe")
    made = resolve.generate(known, choice)
    left = resolve.with_cases(known, [choice], {choice.label: made})
    file.write(left, tmp_path / file.NAME)
    again = file.read(tmp_path)
    (said,) = predict_jobs(again, again.cases[0])
    assert said.alone_s == predict_case(left, left.cases[0], made.schedule).makespans()[0]
