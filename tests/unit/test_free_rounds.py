"""Jobs that run freely: what the model says of every iteration, how many each trains, what is refused beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import run_testbed
from made import QUICK, quick, with_collectives
from test_cli import LONGHAUL, PP4
from test_together import job, planned

from testbed.errors import BadInput
from testbed.model.compiled import EVENT_MODEL
from testbed.model.execute import execute
from testbed.model.free_iterations import free_program, simulate_freely, times_freely
from testbed.model.lower import Load
from testbed.model.replay import MeasuredIterations, freely_on_the_way_s
from testbed.model.simulate import simulate_jobs
from testbed.pipeline.problem import Problem, Receives, uniform
from testbed.plan.events import own_phase, phases, trained
from testbed.plan.free_rounds import GAP_S, require_free
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.free_training import free_ranges, free_times
from testbed.planning.prediction import (
    freely,
    iteration_times,
    loads_of_case,
    parts_of,
    predict_jobs,
    predict_training,
)
from testbed.planning.resolve import require_trainable
from testbed.results.typical import typical_iteration
from testbed.trace.predictions import predicted_times_s
from testbed.trace.tables import ACTION

small = st.integers(0, 6)


def two_jobs(**settings: str) -> Plan:
    """Of different lengths, on one link."""
    short = {"pacing.F": "8 ms", "pacing.I": "8 ms", "pacing.W": "8 ms", "message": "200 kB"}
    return planned(
        job("a/0", "b/0", message="300 kB", iterations="5", **settings),
        job("a/1", "b/1", microbatches="6", iterations="9", seed="3", **short, **settings),
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    delay_s, microbatches = float(draw(small)), draw(st.integers(1, 4))
    made = uniform(2, microbatches, memory=8.0, forward_s=3.0, input_s=2.0, weight_s=1.0, delay_s=delay_s, wire_s=2.0)
    return draw(with_collectives(replace(made, notice_bytes=draw(st.sampled_from([0.0, 0.25])))))


@settings(deadline=None, max_examples=60)
@given(problems(), st.sampled_from(QUICK), st.sampled_from(["early", "late"]), st.data())
def test_the_compiled_model_of_free_jobs_is_the_model(
    problem: Problem, family: str, receives: Receives, data: st.DataObject
) -> None:
    other = replace(data.draw(problems()), links=problem.links, pipelines=problem.pipelines[:1])
    other = replace(other, all_gather=(), reductions=(), tensor=1)
    if family not in ("gpipe", "1f1b", "zb-h1"):
        family = "1f1b"
    loads = [Load(each, quick(family, each), 0.0, receives) for each in (problem, other)]
    program = free_program([[loads[0]] * 3, [loads[1]] * 4], 2.0).program
    plain = execute(program, program.in_order())
    compiled = EVENT_MODEL.execute(program, program.in_order())
    for name in plain._fields:
        assert np.array_equal(getattr(plain, name), getattr(compiled, name), equal_nan=True), name
    assert not np.isnan(plain.end_s).any()


@pytest.mark.parametrize("receives", ["early", "late"])
def test_every_iteration_of_a_job_alone_is_the_one_that_it_would_begin_with(receives: Receives) -> None:
    plan = two_jobs(receives=receives)
    for load in [one._replace(start_s=0.0) for one in loads_of_case(plan, plan.cases[0])]:
        trace, times = simulate_freely([[load] * 4], GAP_S)
        (alone,) = simulate_jobs([load]).makespans()
        assert times.times_s(0) == pytest.approx([alone] * 4, rel=1e-9)
        assert times.begins_s[0][1:] == pytest.approx(times.ends_s[0][:-1] + GAP_S)
        assert trace.makespans() == pytest.approx(times.times_s(0))
        assert trace.n_ranks == 2
        last, first = trace.of_iteration(3), simulate_jobs([load])
        for name in (one for one in ACTION.names or () if one != "iteration"):
            assert last.actions[name] == pytest.approx(first.actions[name], abs=1e-9), name
        assert sorted(last.messages["arrived_s"]) == pytest.approx(sorted(first.messages["arrived_s"]), abs=1e-9)


def test_each_notice_of_a_receive_is_acknowledged_by_a_packet_of_its_own() -> None:
    """Those of one rank to another were one message, with one acknowledgement for all."""
    plan = two_jobs()
    loads = loads_of_case(plan, plan.cases[0])
    program = free_program([[load] * 3 for load in loads], GAP_S).program
    notices = program.piece_bytes == plan.host_costs.notice_bytes
    assert sorted(program.acks[notices]) == sorted(2 * [load.schedule.n_microbatches for load in loads])


def test_jobs_of_different_lengths_drift_and_those_that_share_nothing_do_not_notice() -> None:
    plan = two_jobs()
    times = free_times(plan, plan.cases[0], loads_of_case(plan, plan.cases[0]), 30)
    alone = [row.alone_s for row in predict_jobs(plan, plan.cases[0])]
    for number in (0, 1):
        assert np.ptp(times.times_s(number)) > 0.01 * alone[number], "as if they were held in step"
        assert times.times_s(number).min() >= alone[number] - 1e-6
    apart = planned(job("a/0", "b/0", iterations="4"), job("b/1", "c/1", iterations="4", **{"pacing.F": "30 ms"}))
    loads = loads_of_case(apart, apart.cases[0])
    together = free_times(apart, apart.cases[0], loads, 6)
    for number, load in enumerate(loads):
        assert together.times_s(number) == pytest.approx(times_freely([[load] * 6], GAP_S).times_s(0))


def test_messages_of_one_iteration_meet_those_of_another_job_in_another_one() -> None:
    """A job with one long slot, and one whose iterations are a third as long: nobody waits at a barrier of all."""
    plan = planned(
        job("a/0", "b/0", microbatches="2", **{"pacing.F": "200 ms"}),
        job("a/1", "b/1", microbatches="2", **{"pacing.F": "5 ms", "pacing.I": "5 ms", "pacing.W": "5 ms"}),
    )
    times = free_times(plan, plan.cases[0], loads_of_case(plan, plan.cases[0]), 12)
    assert times.ends_s[1][1] < times.ends_s[0][0]


def test_all_train_until_each_has_what_was_asked_for() -> None:
    plan = freely(two_jobs())
    (case,) = plan.cases
    assert plan.rounds == "free"
    asked = [workload.iterations for workload in (each.workload for each in plan.jobs)]
    assert all(count >= least for count, least in zip(case.iterations, asked, strict=True))
    times = free_times(plan, case, loads_of_case(plan, case))
    ends_s = [ends[-1] for ends in times.ends_s]
    warmup = [each.workload.warmup for each in plan.jobs]
    until_s = max(times.ends_s[n][warmup[n] + asked[n] - 1] for n in (0, 1))
    assert min(ends_s) >= until_s, "one is left the network while another has to go on"
    assert all(begins[-1] < until_s for begins in times.begins_s), "more than is needed"
    assert [len(trained(plan, [case], number)) for number in (0, 1)] == [
        warm + count for warm, count in zip(warmup, case.iterations, strict=True)
    ]
    (phase,) = phases(plan, [case])
    assert own_phase(plan, case, phase, 1).measured == range(warmup[1], warmup[1] + case.iterations[1])


def test_a_prediction_is_the_mean_of_the_iterations_that_count() -> None:
    plan = freely(two_jobs())
    (case,) = plan.cases
    times = free_times(plan, case, loads_of_case(plan, case))
    parts = parts_of(plan, case, predict_training(plan, case).trace)
    for number, row in enumerate(predict_jobs(plan, case)):
        counted = own_phase(plan, case, phases(plan, [case])[0], number).measured
        mine = times.times_s(number)[counted]
        assert predicted_times_s(parts[number], counted) == pytest.approx(mine)
        assert row.together_s == pytest.approx(mine.mean()) == pytest.approx(iteration_times(plan, case)[number])
        assert row.p95_s == pytest.approx(np.percentile(mine, 95))
    assert len({*times.times_s(0).round(6)}) > 1


def test_ranges_are_of_means_and_hold_the_prediction() -> None:
    """Two equal jobs begin at one instant: who comes first is chance, in every iteration."""
    large = {"iterations": "6", "warmup": "1", "message": "900 kB"}
    plan = planned(*(job(f"a/{n}", f"b/{n}", seed=str(n), **large) for n in (0, 1)))
    plan = freely(replace(plan, jobs=tuple(replace(each, start_s=0.0) for each in plan.jobs)))
    (case,) = plan.cases
    ranges = free_ranges(plan, case, loads_of_case(plan, case))
    assert any(one is not None for one in ranges)
    for one, predicted in zip(ranges, iteration_times(plan, case), strict=True):
        assert one is None or one.low_s <= predicted <= one.high_s


def test_what_links_owe_messages_is_told_across_iterations_of_jobs() -> None:
    """The replay of a prediction takes what was predicted, though each job has iterations of its own."""
    plan = freely(two_jobs())
    (case,) = plan.cases
    loads = loads_of_case(plan, case)
    times, training = free_times(plan, case, loads), predict_training(plan, case)
    parts = parts_of(plan, case, training.trace)
    measured = [MeasuredIterations(*each, [0]) for each in zip(loads, parts, times.begins_s, strict=True)]
    for part, taken_s in zip(parts, freely_on_the_way_s(measured), strict=True):
        counted = part.without([0]).messages
        assert taken_s is not None
        off_s = np.abs(taken_s - (counted["arrived_s"] - counted["sent_s"]))
        assert np.percentile(off_s, 90) < 60e-6, "beyond what notices take, which were not replayed"


def test_a_plan_keeps_it_and_one_without_is_as_before(tmp_path: Path) -> None:
    plan = two_jobs()
    assert '"rounds"' not in file.to_json(plan)
    free = freely(plan)
    (tmp_path / "plan.json").write_text(file.to_json(free))
    assert file.read(tmp_path / "plan.json") == free
    document = json.loads(file.to_json(free))
    for iterations, expected in (([3], "a number for every job"), ([3, 0], "1 or more")):
        document["cases"][0]["iterations"] = iterations
        (tmp_path / "plan.json").write_text(json.dumps(document))
        with pytest.raises(BadInput, match=expected):
            file.read(tmp_path / "plan.json")
    del document["rounds"]
    document["cases"][0]["iterations"] = [3, 4]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(BadInput, match="where jobs run freely"):
        file.read(tmp_path / "plan.json")


def test_jobs_of_different_lengths_can_be_trained_freely_only() -> None:
    plan = two_jobs()
    with pytest.raises(BadInput, match="rounds free"):
        require_trainable(plan)
    require_trainable(freely(plan))
    unpaced = replace(plan.jobs[0], workload=plan.jobs[0].workload.model_copy(update={"pacing": None}))
    with pytest.raises(BadInput, match="unpaced jobs"):
        require_free(replace(plan, jobs=(unpaced, plan.jobs[1])))


@pytest.mark.parametrize(
    ("command", "beside"),
    [
        ("predict", ["--event", "link paris--warsaw rate 50 % at iteration 1"]),
        ("plan", ["--alone"]),
        ("plan", ["--depart", f"{Path(PP4).stem}@2"]),
        ("plan", ["--adapt", "ski-rental"]),
        ("run", ["--swap", "zb-h1@2"]),
        ("run", ["--control"]),
    ],
)
def test_one_clear_error_beside_what_goes_by_rounds(command: str, beside: Sequence[str], tmp_path: Path) -> None:
    jobs = [PP4, PP4] if beside[0] in ("--alone", "--depart") else [PP4]
    where = ["-o", str(tmp_path / "plan.json")] if command == "plan" else []
    done = run_testbed(command, LONGHAUL, *jobs, "--rounds", "free", *beside, *where)
    assert done.returncode == 2, done.stdout
    assert "rounds" in done.stderr
    assert ("events" if beside[0] in ("--event", "--depart", "--swap") else beside[0]) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_predict_says_what_each_takes_freely() -> None:
    words = "predict", LONGHAUL, PP4, "--schedule", "1f1b", "--rounds", "free", "--json"
    done = run_testbed(*words)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["schedules"]
    alone = json.loads(run_testbed(*words[:-3], "--json").stdout)["schedules"][0]
    assert row["predicted_s"] == pytest.approx(alone["predicted_s"], rel=1e-9), "a job alone does not drift"


def test_the_iteration_that_is_drawn_is_one_that_every_job_has() -> None:
    rows = [(0, 1, 1.0), (0, 2, 1.1), (1, 1, 2.4), (1, 2, 2.2), (1, 3, 2.0)]
    measured = pd.DataFrame(rows, columns=["job", "iteration", "makespan_s"])
    compared = [{"job": "a", "measured_s": 1.1}, {"job": "b", "measured_s": 2.0}]
    assert typical_iteration(measured.to_dict("records"), compared, ["a", "b"]) == 2
