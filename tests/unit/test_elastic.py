"""Jobs that go on with the replicas that are left: how it is foretold, what is refused, what it is worth."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from in_process import run_testbed

from testbed.errors import BadInput
from testbed.goodput.elastic_goodput import ElasticSetting, expected_elastic_goodput
from testbed.goodput.elastic_spans import ElasticTimes, continued, ends_early, foretold_elastic, sets_of_rounds
from testbed.goodput.elastic_training import elastic_training, lost_replicas
from testbed.goodput.recovering_plan import require_replicas_left
from testbed.goodput.spans import Span, Spending, shares_of
from testbed.judge.evidence import CaseEvidence
from testbed.judge.execution import ExecutedRow, execution_check
from testbed.judge.fidelity import NetworkEvidence
from testbed.judge.iterations import IterationRow
from testbed.pipeline.ir import parse_action
from testbed.plan.mesh import Mesh
from testbed.plan.plan import Plan
from testbed.plan.recovery import Elastic, Failure, drawn_failures
from testbed.plan.state_exchange import joining
from testbed.plan.traffic import planned_traffic
from testbed.planning import file
from testbed.planning.fewer_replicas import job_of, ranks_of, with_replicas
from testbed.planning.prediction import predict_training
from testbed.planning.resolve import load_plan
from testbed.results.recheck import require_goodput
from testbed.trace.predictions import predicted_times_s
from testbed.trace.renumbered import counted_anew, numbered_as
from testbed.train.assignment import ReferenceOutcome
from testbed.units import show_time

TRAIN, _, RESTART = Spending
ROOT = Path(__file__).parents[2]
PLAIN = ElasticTimes(lambda replicas, number: 1.0, lambda there, new, kept_by: 0.5)


def replica(failure: Failure) -> Collection[int]:
    assert failure.rank is not None
    return {failure.rank}


def foretold(
    *failures: tuple[int, float], iterations: int = 4, replicas: int = 3, repair_s: float | None = None
) -> list[Span]:
    came = [Failure(number, at_s) for number, at_s in failures]
    return foretold_elastic(PLAIN, iterations, replicas, Elastic(2.0, repair_s), came, replica)


def short(spans: list[Span]) -> list[tuple[str, int, float, float, tuple[int, ...]]]:
    return [(span.what.value, span.iteration, span.begin_s, span.end_s, span.replicas) for span in spans]


def test_only_the_iteration_under_way_is_lost_and_the_others_begin_it_again() -> None:
    spans = foretold((1, 1.25))
    assert short(spans) == [
        ("train", 0, 0, 1, (0, 1, 2)),
        ("train", 1, 1, 1.25, (0, 1, 2)),
        ("restart", 1, 1.25, 3.25, (0, 2)),
        ("train", 1, 3.25, 4.25, (0, 2)),
        ("train", 2, 4.25, 5.25, (0, 2)),
        ("train", 3, 5.25, 6.25, (0, 2)),
    ]
    assert sets_of_rounds(spans) == [(0, 1, 2), (0, 2), (0, 2), (0, 2)]
    assert continued(spans) == [1]
    shares = shares_of(spans, 3)
    assert shares == pytest.approx((1 + 3 * 2 / 3, 0.25, 0.0, 2.0, 3 * 1 / 3))
    assert shares.goodput == pytest.approx(3 / 6.25)


def test_who_is_repaired_is_taken_in_at_the_next_boundary_and_gets_its_state() -> None:
    spans = foretold((1, 1.25), repair_s=2.5)
    assert short(spans)[3:] == [
        ("train", 1, 3.25, 4.25, (0, 2)),
        ("restart", 2, 4.25, 6.75, (0, 1, 2)),
        ("train", 2, 6.75, 7.75, (0, 1, 2)),
        ("train", 3, 7.75, 8.75, (0, 1, 2)),
    ]
    assert [span.joining for span in spans if span.what is RESTART] == [(), (1,)]
    assert continued(spans) == [1, 2]


def test_nobody_is_sent_a_state_before_anything_is_trained() -> None:
    spans = foretold((1, 0.5), (0, 2.25), repair_s=1.0)
    assert short(spans)[1:4] == [
        ("restart", 0, 0.5, 2.25, (0, 2)),
        ("restart", 0, 2.25, 4.25, (1, 2)),
        ("train", 0, 4.25, 5.25, (1, 2)),
    ]


def test_a_failure_while_workers_restart_has_them_begin_anew_with_those_left_and_one_of_who_is_away_does_nothing() -> (
    None
):
    spans = foretold((1, 1.25), (1, 1.5), (2, 2.0))
    assert short(spans)[2:5] == [
        ("restart", 1, 1.25, 2.0, (0, 2)),
        ("restart", 1, 2.0, 4.0, (0,)),
        ("train", 1, 4.0, 5.0, (0,)),
    ]
    # who is back and fails again has no state, and who gives it one may fail as well
    back = foretold((1, 1.25), (0, 4.5), (2, 5.0), repair_s=2.5)
    assert short(back)[4:6] == [("restart", 2, 4.25, 4.5, (0, 1, 2)), ("restart", 2, 4.5, 5.0, (1, 2))]
    assert ends_early(back) == Failure(2, 5.0), "rank 1 is there, and has no state"


def test_without_a_replica_it_ends_and_says_by_which_failure() -> None:
    assert ends_early(foretold((0, 0.5), (2, 4.0), (1, 20.0))) is None
    spans = foretold((0, 0.5), (2, 4.0), (1, 6.5))
    assert ends_early(spans) == Failure(1, 6.5)
    assert spans[-1].failure is not None
    assert ends_early(foretold((0, 3.5), (1, 4.0), (2, 4.1))) == Failure(2, 4.1)
    assert ends_early(foretold((0, 0.5), (1, 3.5), (2, 8.25))) == Failure(2, 8.25), "in the last iteration"


SHARING = ElasticTimes(lambda replicas, number: 1.0, lambda there, new, kept_by: 0.5, lambda there: 0.25)


def shared(*failures: tuple[int, float], repair_s: float | None = None) -> list[Span]:
    came = [Failure(number, at_s) for number, at_s in failures]
    return foretold_elastic(SHARING, 6, 4, Elastic(2.0, repair_s, every=2), came, replica)


def test_where_an_optimizer_is_shared_training_goes_on_from_where_shards_were_copied() -> None:
    assert short(shared((1, 3.75))) == [
        ("train", 0, 0, 1, (0, 1, 2, 3)),
        ("train", 1, 1, 2, (0, 1, 2, 3)),
        ("save", 2, 2, 2.25, (0, 1, 2, 3)),
        ("train", 2, 2.25, 3.25, (0, 1, 2, 3)),
        ("train", 3, 3.25, 3.75, (0, 1, 2, 3)),
        ("restart", 2, 3.75, 6.25, (0, 2, 3)),
        ("train", 2, 6.25, 7.25, (0, 2, 3)),
        ("train", 3, 7.25, 8.25, (0, 2, 3)),
        ("save", 4, 8.25, 8.5, (0, 2, 3)),
        ("train", 4, 8.5, 9.5, (0, 2, 3)),
        ("train", 5, 9.5, 10.5, (0, 2, 3)),
    ]
    shares = shares_of(shared((1, 3.75)), 4)
    assert (shares.lost_s, shares.saving_s, shares.restarting_s) == (1.5, 0.5, 2.5)
    assert short(shared((1, 1.5)))[2:4] == [("restart", 0, 1.5, 3.5, (0, 2, 3)), ("train", 0, 3.5, 4.5, (0, 2, 3))]
    # what is broken off while it is copied is not there, what was copied before is
    assert short(shared((1, 4.3)))[5:7] == [
        ("save", 4, 4.25, 4.3, (0, 1, 2, 3)),
        ("restart", 2, 4.3, 6.8, (0, 2, 3)),
    ]


def test_replicas_that_are_back_wait_until_shards_are_copied() -> None:
    spans = shared((1, 2.5), repair_s=2.5)
    assert short(spans)[4:] == [
        ("restart", 2, 2.5, 5.0, (0, 2, 3)),
        ("train", 2, 5.0, 6.0, (0, 2, 3)),
        ("train", 3, 6.0, 7.0, (0, 2, 3)),
        ("save", 4, 7.0, 7.25, (0, 2, 3)),
        ("restart", 4, 7.25, 9.75, (0, 1, 2, 3)),
        ("train", 4, 9.75, 10.75, (0, 1, 2, 3)),
        ("train", 5, 10.75, 11.75, (0, 1, 2, 3)),
    ]
    assert [span.joining for span in spans if span.what is RESTART] == [(), (1,)]


def test_a_shard_that_is_lost_with_its_copy_ends_it() -> None:
    assert ends_early(shared((1, 2.5), (3, 3.0))) is None
    assert ends_early(shared((1, 2.5), (2, 3.0))) == Failure(2, 3.0), "replica 2 had the copy of replica 1's"
    assert ends_early(shared((0, 2.5), (3, 3.0))) == Failure(3, 3.0), "replica 0 has that of the last one's"
    assert ends_early(shared((1, 2.5), (2, 5.5))) is None, "behind the restart each is in two memories again"
    assert ends_early(shared((1, 0.5), (2, 1.0), (3, 1.5))) is None, "nothing is trained yet"


def planned(tmp_path: Path, *words: str, sharding: str = "none", replicas: int = 3) -> Plan:
    out = tmp_path / "plan.json"
    done = run_testbed("plan", "two-dc-longhaul", "tiny-gpt-pp4", *settings(sharding, replicas), *words, "-o", out)
    assert done.returncode == 0, done.stderr
    return file.read(out)


def settings(sharding: str, replicas: int, beside: tuple[str, ...] = ()) -> list[str]:
    """Without what the words `beside` them set."""
    found = ["--schedule", "1f1b", "--iterations", "5", "--set", "warmup=1", "--set", "microbatches=4"]
    for one in (f"parallelism.data={replicas}", "parallelism.pipeline=2", f"data_parallel.sharding={sharding}"):
        if not any(word.startswith(f"{one.partition('=')[0]}=") for word in beside):
            found += ["--set", one]
    return found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--elastic", "restart=2 s", "--checkpoint", "every=2"), "got 'restart=2 s', expected no --checkpoint beside"),
        (("--elastic", "repair=0"), "got '0', expected a time from 1e-06"),
        (("--elastic", "for=5"), "got 'for=5', expected restart, repair, every, each once"),
        (("--elastic", "every=5"), "got 'every=5', expected 1: with data_parallel.sharding none each rank has all"),
        (("--elastic", "every=0"), "got '0', expected 1 iteration or more"),
        (
            (
                *("--elastic", "restart=1 s", "--set", "data_parallel.sharding=zero-1"),
                *("--failure", "rank 0 at 600 ms", "--failure", "rank 2 at 700 ms"),
            ),
            "'rank 2 at 0.7 s, with which a shard is lost', expected a replica left that has each shard, its own or",
        ),
        (("--elastic", "restart=1 s", "--set", "parallelism.data=1"), "'one replica', expected parallelism.data of 2"),
        (("--elastic", "restart=1 s", "--set", "data_parallel.algorithm=torch"), "gloo's own is not in the model"),
        (("--elastic", "restart=1 s", "--schedule", "gpipe"), "'2 cases', expected one case"),
        (("--elastic", "restart=1 s", "--failure", "datacenter paris cut off at 1 s for 2 s"), "none that is cut off"),
        (("--elastic", "restart=1 s", "--failure", "datacenter paris at 1 s"), "'datacenter paris at 1 s, with which"),
        (("--elastic", "restart=1 s", "--chaos", "mtbf=300 ms,seed=4"), "--chaos: option: got 'rank"),
        (("--elastic", "restart=1 s", "--event", "rank 1 slower x2 at iteration 2"), "no events and no controller"),
    ],
)
def test_what_cannot_be_is_one_clear_error(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    out = tmp_path / "plan.json"
    done = run_testbed("plan", "two-dc-longhaul", "tiny-gpt-pp4", *settings("none", 3, words), *words, "-o", out)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert not out.exists()


def test_slots_that_are_drawn_are_refused(tmp_path: Path) -> None:
    drawn = ("--set", "pacing.F={median: 20 ms, p95: 24 ms}", "--elastic", "restart=1 s")
    words = ("two-dc-longhaul", "tiny-gpt-pp4", *settings("none", 3), *drawn)
    done = run_testbed("plan", *words, "-o", tmp_path / "plan.json")
    assert done.returncode == 2, done.stderr
    assert "got 'slots that are drawn', expected slots in numbers" in " ".join(done.stderr.split())


def test_every_iteration_is_predicted_as_a_job_of_those_that_take_part(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--elastic", "restart=3 s")
    assert elastic_training(plan, plan.cases[0]).sets == [(0, 1, 2)] * 6, "nobody fails"
    plan = planned(tmp_path, "--elastic", "restart=3 s,repair=500 ms", "--failure", "rank 2 at 0.5 s")
    (job,), (case,) = plan.jobs, plan.cases
    assert plan.recovery == replace(plan.recovery, elastic=Elastic(3.0, 0.5))  # type: ignore[type-var]
    assert file.from_json(file.to_json(plan), "again") == plan
    assert lost_replicas(job, Failure(2, 0.5)) == {1}
    training = elastic_training(plan, case)
    assert training.sets == [(0, 1, 2), (0, 2), *[(0, 1, 2)] * 4]
    alone = planned(tmp_path, replicas=2)
    moved = replace(alone, jobs=(replace(alone.jobs[0], nodes=job_of(job, (0, 2)).nodes),))
    each = [predict_training(one, one.cases[0]).trace for one in (plan, moved)]
    full_s, fewer_s = (float(trace.makespans()[0]) for trace in each)
    times_s = predicted_times_s(training.prediction.trace, range(6))
    assert times_s == pytest.approx([full_s, fewer_s, *[full_s] * 4], rel=1e-12)
    assert abs(full_s / fewer_s - 1) > 1e-3
    assert planned_traffic(*with_replicas(plan, case, (0, 2))) == planned_traffic(moved, moved.cases[0])
    assert set(training.prediction.trace.of_iteration(1).actions["rank"].tolist()) == {0, 1, 4, 5}


def test_a_plan_of_a_file_that_loses_its_last_replica_is_refused_before_it_runs(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--elastic", "restart=3 s", "--failure", "rank 2 at 0.5 s")
    require_replicas_left(plan, "plan.json", "recovery.failures")
    assert plan.recovery is not None
    failures = (*plan.recovery.failures, Failure(None, 4.0, "paris"))
    with pytest.raises(BadInput, match=r"plan.json: recovery.failures: got 'datacenter paris at 4 s"):
        require_replicas_left(replace(plan, recovery=replace(plan.recovery, failures=failures)), "plan.json", FIELD)


FIELD = "recovery.failures"


def test_ranks_have_their_numbers_again(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (job,), (case,) = plan.jobs, plan.cases
    assert ranks_of(job, (0, 2)) == (0, 1, 4, 5)
    trace = predict_training(*with_replicas(plan, case, (0, 2))).trace
    named = numbered_as(trace, (0, 1, 4, 5), (0, 2), 6)
    assert set(named.actions["rank"].tolist()) == set(named.messages["source_rank"].tolist()) == {0, 1, 4, 5}
    assert set(named.actions["replica"].tolist()) == {0, 2}
    again = counted_anew(named, (0, 1, 4, 5), (0, 2))
    assert again.actions.tobytes() == trace.actions.tobytes()
    assert again.messages.tobytes() == trace.messages.tobytes()
    assert named.bubble_ratios() == pytest.approx(trace.bubble_ratios()), "who is away idles for nobody"


def test_slower_replicas_stay_slower_under_other_numbers(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--set", "pacing.factors=[[1, 1], [1.5, 1.2], [1, 2]]")
    pacing = job_of(plan.jobs[0], (1, 2)).workload.pacing
    assert pacing is not None
    assert [[pacing.factor(replica, rank) for rank in range(2)] for replica in range(2)] == [[1.5, 1.2], [1, 2]]


def test_states_come_from_the_next_replica_that_has_one() -> None:
    mesh = Mesh(4, 2, 1)
    assert [one[:4] for one in joining(mesh, (10, 20) * 4, {1, 3})] == [
        (2, 4, 2, 10),
        (3, 5, 3, 20),
        (6, 0, 6, 10),
        (7, 1, 7, 20),
    ]


def test_a_rank_that_has_a_part_where_it_should_not_is_seen() -> None:
    row = (parse_action("0F0"), parse_action("0B0"))
    planned_rows, takes_part = {0: row, 1: row}, {0: [1, 2, 3], 1: [1, 3]}
    right = [ExecutedRow(0, row, (1, 2, 3)), ExecutedRow(1, row, (1, 3))]
    assert execution_check(right, planned_rows, takes_part).ok
    for wrong in ((1, 2, 3), (1,)):
        check = execution_check([right[0], ExecutedRow(1, row, wrong)], planned_rows, takes_part)
        assert check.reasons == (
            f"rank 1 {'had a part in iteration 2' if 2 in wrong else 'had no part in iteration 3'}, other than its "
            "replica was foretold to",
        )


def test_the_formula_at_its_ends() -> None:
    quick = ElasticSetting(8, 1e-6, 0.0, 0.0, 50.0, 100.0)
    assert expected_elastic_goodput(quick) == pytest.approx(100 / 150, rel=1e-4), "each replica's own share"
    seldom = ElasticSetting(8, 1.0, 10.0, 1.0, 100.0, 1e9)
    assert expected_elastic_goodput(seldom) == pytest.approx(1.0, abs=1e-6)
    one_by_one = [expected_elastic_goodput(seldom._replace(replica_mtbf_s=mtbf_s)) for mtbf_s in (500, 5000, 5e4)]
    assert one_by_one == sorted(one_by_one)


def test_the_model_has_what_the_formula_says() -> None:
    job = ElasticSetting(10, 1.0, 2.0, 1.0, 20.0, 400.0)
    times = ElasticTimes(lambda replicas, number: job.iteration_s, lambda there, new, kept_by: job.send_s)
    elastic, kept_s, total_s = Elastic(job.restart_s, job.repair_s), 0.0, 0.0
    for seed in random.Random(2).sample(range(1000), 4):
        failures = list(drawn_failures(job.replica_mtbf_s / job.replicas, 2e4, job.replicas, seed))
        shares = shares_of(foretold_elastic(times, 8000, job.replicas, elastic, failures, replica), job.replicas)
        kept_s, total_s = kept_s + shares.kept_s, total_s + shares.total_s
    assert kept_s / total_s == pytest.approx(expected_elastic_goodput(job), rel=0.01)


def evidence(*, real: bool) -> CaseEvidence:
    """Of six iterations, of which rank 1 has a part in the first three; those without it take less beyond the model."""
    times_s = (1.10, 1.11, 1.12, 0.90, 0.91, 0.93)
    peaks, network = (1.0,), NetworkEvidence(0, 0, {}, lossless=True)
    rows = [
        IterationRow(number, False, time_s, 0.4, 5.0, peaks, peaks, 0, 0.0, 4, 0.0)
        for number, time_s in enumerate(times_s)
    ]
    case = CaseEvidence(True, real, (), None, rows, (), network, (), ReferenceOutcome(), 1.0, None, [], 0.0, None)
    return case._replace(own_predicted_s=[1.0] * 6, takes_part={0: range(6), 1: range(3)})


def test_on_the_real_clock_iterations_are_compared_with_those_of_as_many_replicas() -> None:
    assert evidence(real=False).comparable_s.tolist() == [1.10, 1.11, 1.12, 0.90, 0.91, 0.93]
    median_s = (0.93 + 1.10) / 2
    expected = [median_s * share for share in (1.10 / 1.11, 1, 1.12 / 1.11, 0.90 / 0.91, 1, 0.93 / 0.91)]
    assert evidence(real=True).comparable_s == pytest.approx(expected), "what differs among them stays"


def test_a_control_needs_all_replicas(tmp_path: Path) -> None:
    words = ("two-dc-longhaul", "tiny-gpt-pp4", *settings("none", 3), "--elastic", "restart=1 s", "--control")
    done = run_testbed("run", *words, "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert "--control: option: got '--elastic', expected a job that ends with" in " ".join(done.stderr.split())


def test_predict_says_what_is_foretold_of_replicas_that_are_left(tmp_path: Path) -> None:
    job = [ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"]
    small = ["--set=parallelism.data=3", "--set=parallelism.pipeline=2", "--set=microbatches=3", "--schedule=1f1b"]
    fails = ["--elastic=restart=300 ms", "--failure=rank 5 at 0.3 s", "--failure=rank 0 at 0.3 s"]
    done = run_testbed("plan", *job, *small, *fails, "-o", tmp_path / "plan.json", "-q")
    assert done.returncode == 0, done.stderr
    said = json.loads(run_testbed("predict", tmp_path / "plan.json", "--json").stdout)
    of_plan = run_testbed("plan", *job, *small, *fails, "-o", tmp_path / "same.json", "-q", "--json")
    assert json.loads(of_plan.stdout)["goodput"] == said["goodput"]
    plan = file.read(tmp_path / "plan.json")
    training = elastic_training(plan, plan.cases[0])
    rounds = range(warmup := plan.jobs[0].workload.warmup, warmup + plan.jobs[0].workload.iterations)
    (row,), (goodput,) = said["schedules"], said["goodput"]
    assert row["predicted_s"] == pytest.approx(np.median(predicted_times_s(training.prediction.trace, rounds)))
    whole_s = np.median(predicted_times_s(predict_training(plan, plan.cases[0]).trace, rounds))
    assert row["predicted_s"] < whole_s, "one replica has nobody to exchange gradients with"
    shares = shares_of(training.spans, 3)
    assert (goodput["failures"], goodput["predicted"]["goodput"]) == (2, pytest.approx(shares.goodput))
    line = f"1f1b: goodput {shares.goodput:.2%} of {show_time(shares.total_s)} with 2 failures, predicted"
    assert run_testbed("predict", tmp_path / "plan.json").stdout.splitlines()[-1] == line
    assert line in done.stdout.splitlines()


def test_an_edited_goodput_is_noticed() -> None:
    """Of three iterations the second was lost, and two replicas of three trained it again."""
    (job,) = load_plan(
        ROOT / "topologies/two-dc-longhaul.yaml",
        ROOT / "workloads/tiny-gpt-pp4.yaml",
        settings=["parallelism.data=3", "parallelism.pipeline=2"],
    ).jobs
    spans = [("train", 0, 0.0, 1.0), ("train", 1, 1.0, 1.5), ("restart", 1, 1.5, 1.75), ("train", 1, 1.75, 2.75)]
    kept = [{"replicas": [0, 1, 2]}] * 2 + [{"replicas": [0, 1]}] * 2
    shares = {"kept_s": 5 / 3, "away_s": 1 / 3, "lost_s": 0.5, "saving_s": 0.0, "restarting_s": 0.25, "total_s": 2.75}
    shares["goodput"] = shares["kept_s"] / 2.75
    of_samples = job.workload.microbatches * job.workload.microbatch_size
    measured = shares | {"samples": 5 * of_samples, "samples_per_s": 5 * of_samples / 2.75}
    names = ("what", "iteration", "begin_s", "end_s")
    written = [dict(zip(names, span, strict=True)) | replicas for span, replicas in zip(spans, kept, strict=True)]
    entry = {"spans": written, "measured": measured, "predicted": shares}
    require_goodput(entry, job, "comparison.json", "goodput.0")
    for of, name in (("measured", "goodput"), ("measured", "lost_s"), ("predicted", "goodput")):
        edited = entry | {of: {**measured, name: 0.9}}
        with pytest.raises(BadInput, match=f"comparison.json: goodput.0.{of}.{name}: got 0.9, expected 0"):
            require_goodput(edited, job, "comparison.json", "goodput.0")
