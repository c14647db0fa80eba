"""Several jobs in rounds whose starts a controller shifts: what it believes, when it shifts, what a plan keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import adapting_starts
import numpy as np
import pytest
import yaml
from harness.plans import Document
from in_process import run_testbed
from parts.modelled_lab import adapted

from testbed.adaptation import controller
from testbed.adaptation.adapting_plan import SHIFT_S
from testbed.adaptation.believed_problem import believed_together
from testbed.adaptation.estimates import PathEstimate, exactly
from testbed.adaptation.jobs_in_rounds import JobsInRounds, StartProspects, jobs_in_rounds
from testbed.adaptation.rehearsal import Rehearsal, rehearse_jobs
from testbed.adaptation.rehearsal_changes import change
from testbed.adaptation.rehearsal_world import AS_PACED, SlotVariation
from testbed.errors import BadInput, ExitCode
from testbed.model.shifted import ShiftedJobs
from testbed.model.simulate import ends_of_jobs
from testbed.plan.events import starts_of
from testbed.plan.plan import Plan
from testbed.plan.timeline import StartShifted
from testbed.planning import file
from testbed.planning.prediction import iteration_times, loads_of_case, predict_training
from testbed.routing.rerouting import with_shift

HALF, HALF_AT = "rate / 2", "link shared rate x0.5 at"
VIRTUAL = ("--clock", "virtual")


def plan_of(name: str = HALF, iterations: int = 35) -> Plan:
    return adapting_starts.planned(*adapting_starts.own(name, iterations))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of()


@pytest.fixture(scope="module")
def jobs(plan: Plan) -> JobsInRounds:
    return jobs_in_rounds(plan, 8)


@pytest.fixture(scope="module")
def training(plan: Plan) -> dict[str, Any]:
    """What the lab's controller makes of it in the model."""
    return adapted(plan)


@pytest.fixture(scope="module")
def halved(training: dict[str, Any]) -> list[dict[str, Any]]:
    """Its iterations."""
    rows: list[dict[str, Any]] = training["iterations"]
    return rows


# --- the model of it ------------------------------------------------------------------------------


@pytest.mark.parametrize("unit_s", [1.0, 0.3e-3])
def test_jobs_that_are_lowered_once_take_what_they_take_lowered_anew(unit_s: float) -> None:
    """Replicas, late receives, streams and turns; starts that are no whole number of the model's ticks."""
    shapes: list[dict[str, Any]] = [
        {"parallelism": {"pipeline": 2, "data": 2}, "receives": "late", "streams": 2, "name": "first"},
        {"parallelism": {"pipeline": 2}, "placement": ["east/4", "west/4"], "name": "second"},
        {
            "parallelism": {"pipeline": 2, "tensor": 2},
            "placement": ["east/5", "east/6", "west/5", "west/6"],
            "name": "third",
        },
    ]
    topology, (workload, _) = adapting_starts.own(HALF, 4)
    topology = {**topology, "events": [], "datacenters": {site: {"nodes": 7} for site in topology["datacenters"]}}
    own = {key: value for key, value in workload.items() if key not in ("placement", "data_parallel")}
    plan = adapting_starts.planned(topology, [own | shape for shape in shapes])
    loads, random = loads_of_case(plan, plan.cases[0]), np.random.default_rng(4)
    shifted = ShiftedJobs(loads)
    for _ in range(8):
        starts_s = (unit_s * random.random(len(loads))).tolist()
        anew = [load._replace(start_s=start_s) for load, start_s in zip(loads, starts_s, strict=True)]
        expected = [end_s - start_s for end_s, start_s in zip(ends_of_jobs(anew), starts_s, strict=True)]
        assert shifted.times_s(starts_s) == expected


# --- what is believed -----------------------------------------------------------------------------


def test_what_is_believed_as_planned_is_the_plan(jobs: JobsInRounds) -> None:
    for problem, job in zip(jobs.believed(jobs.belief()), jobs.jobs, strict=True):
        assert problem == job.recipes[0].problem
    assert {rank for rank, _ in jobs.belief().slots} == {0, 1, 2, 3}, "ranks as the plan counts them"


def test_a_link_that_is_slower_is_so_for_all_jobs(jobs: JobsInRounds) -> None:
    belief = jobs.belief()
    (there, back) = belief.paths
    slow = replace(belief, paths={**belief.paths, there: PathEstimate(exactly(4e-3), exactly(150e6))})
    for problem in believed_together([(job, job.recipes[0]) for job in jobs.jobs], belief, slow):
        costs = problem.links[there.route[0]], problem.links[back.route[0]]
        assert [8 / cost.seconds_per_byte for cost in costs] == [pytest.approx(150e6), pytest.approx(300e6)]


def test_an_iteration_is_read_until_what_is_believed_says_the_same_of_it() -> None:
    """With all messages of a job behind each other: a first look takes the link for a third faster than it is."""
    topology, workloads = adapting_starts.drawn(1, 2, 8)
    assert topology["events"] == ["link shared rate x0.37 at iteration 5"]
    rows = adapted(adapting_starts.planned(topology, workloads))["iterations"]
    assert rows[4]["rate_bps"] == {"east -> west": pytest.approx(194e6), "west -> east": pytest.approx(194e6)}
    assert list(rows[5]["rate_bps"].values()) == [pytest.approx(0.37 * 194e6, rel=0.01)] * 2
    assert rows[6]["measured_s"] == pytest.approx(rows[5]["expected_s"], rel=5e-3)


def test_a_slower_rank_is_its_jobs_alone(jobs: JobsInRounds) -> None:
    belief = jobs.belief()
    slots = {which: exactly(2 * slot.value) if which[0] == 3 else slot for which, slot in belief.slots.items()}
    before, after = jobs.believed(belief), jobs.believed(replace(belief, slots=slots))
    assert after[0] == before[0]
    assert [now / was for was, now in zip(before[1].forward_s, after[1].forward_s, strict=True)] == [1.0, 2.0]


def test_messages_of_the_job_with_the_longest_tell_of_a_link(jobs: JobsInRounds) -> None:
    assert {jobs.watched(path) for path in jobs.paths} == {1}, "280 kB against 250"
    assert {jobs.nodes_of(path) for path in jobs.paths} == {("east/1", "west/1"), ("west/1", "east/1")}


def test_what_messages_take_alone_does_not_hang_on_starts(jobs: JobsInRounds) -> None:
    """They wait for each other's otherwise, which must not look like another link."""
    prospects, belief = StartProspects(jobs), jobs.belief()
    found = [
        prospects.alone(belief, jobs.starting(starts_s)) for starts_s in (jobs.begins.setting.starts_s, (0.0, 0.0))
    ]
    assert all(0 < share <= 1 for shares in found for share in shares.values())


# --- when it shifts -------------------------------------------------------------------------------


def test_jobs_begin_when_that_is_best(plan: Plan) -> None:
    (case,) = plan.cases
    assert case.starts_s != ()
    at_once = replace(case, starts_s=(0.0, 0.0))
    assert sum(iteration_times(plan, case)) < sum(iteration_times(plan, at_once))


def test_starts_are_shifted_when_a_link_changes_and_not_before(halved: list[dict[str, Any]]) -> None:
    rows = halved
    assert [row["iteration"] for row in rows if row["swapped_to"]] == [5], "one look at what has changed"
    assert [row["iteration"] for row in rows if row["alarms"]] == [5], "no shift is a change of a link or a rank"
    assert rows[5]["swap"] == "starts"
    for row in rows[6:]:
        assert row["measured_s"] == pytest.approx(rows[5]["expected_s"], rel=1e-6), "as it was expected"
        assert row["measured_s"] < 0.99 * row["never_predicted_s"]
        assert row["measured_s"] == pytest.approx(row["oracle_predicted_s"], rel=2e-3)


@pytest.mark.parametrize("name", ["nothing", "nothing, slots of 3 % CV"])
def test_nothing_is_shifted_while_nothing_happens(name: str) -> None:
    assert not any(row["swapped_to"] or row["changes"] for row in adapted(plan_of(name, 10))["iterations"])


def test_the_benchmark_draws_by_seed_and_says_what_is_gained(training: dict[str, Any]) -> None:
    one, same, other = (adapting_starts.drawn(seed, 3, 9) for seed in (1, 1, 2))
    assert one == same != other
    found = adapting_starts.Adapted("half", False, training)
    assert found.share is not None
    assert adapting_starts.shares("gain", [found]).passed
    steady = found._replace(steady=True)
    assert not adapting_starts.shares("gain", [steady]).passed, "a shift too many"


# --- rehearsed ------------------------------------------------------------------------------------


def rehearsed(topology: Document, workloads: list[Document], drawn: SlotVariation = AS_PACED) -> Rehearsal:
    """What `testbed adapt` makes of jobs and what happens to them."""
    plan = adapting_starts.planned({**topology, "events": []}, workloads)
    changes, chosen = [change(event, plan) for event in topology["events"]], controller.choose("ski-rental")
    iterations = plan.jobs[0].workload.iterations
    return rehearse_jobs(jobs_in_rounds(plan, 8), changes, iterations, chosen, swap_s=SHIFT_S, drawn=drawn)


@pytest.fixture(scope="module")
def found() -> Rehearsal:
    return rehearsed(*adapting_starts.own(HALF, 35))


def test_a_rehearsal_decides_as_the_labs_controller_does(found: Rehearsal, halved: list[dict[str, Any]]) -> None:
    """Of both the same code; what they are told of iterations is the model's, found in two ways."""
    for row, known in zip(found.rows, halved, strict=True):
        decided = None if row.step.swapped_to is None else row.step.swapped_to.label
        assert decided == known["swapped_to"]
        assert row.step.learnt.alarms == known["alarms"]
        mean_s = sum(job.adapted_s for job in row.jobs) / len(row.jobs)
        assert mean_s == pytest.approx(known["measured_s"], rel=1e-6)
        assert row.never_s == pytest.approx(known["never_predicted_s"], rel=1e-6)
    mean_s = sum(job.adapted_s for job in found.rows[6].jobs) / 2
    assert found.rows[6].adapted_s == pytest.approx(mean_s + SHIFT_S), "it is paid for"
    assert found.swaps == [6]
    assert found.total_s("oracle") <= found.total_s("adapted") <= found.total_s("never")


def test_the_order_in_which_jobs_are_named_decides_nothing(found: Rehearsal) -> None:
    topology, workloads = adapting_starts.own(HALF, 35)
    other = rehearsed(topology, workloads[::-1])
    assert [row.adapted_s for row in found.rows] == pytest.approx([row.adapted_s for row in other.rows], rel=1e-3)


def test_nothing_is_shifted_in_a_rehearsal_of_slots_that_vary() -> None:
    found = rehearsed(*adapting_starts.own("nothing", 12), SlotVariation(0.03, 1))
    assert (found.swaps, found.gain_s) == ([], 0.0)
    assert len({row.adapted_s for row in found.rows}) == 12
    one, other = found.rows[0].jobs
    assert one != other


def test_a_command_rehearses_several_jobs(tmp_path: Path) -> None:
    words: tuple[str | Path, ...]
    words = "adapt", *written(tmp_path), "--vary", "starts=4", "--iterations", "4", "--picture", tmp_path / "a.svg"
    done = run_testbed(*words, "--event", f"{HALF_AT} 2", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert "every job, from its own start" in done.stdout
    assert "a [s]" in (tmp_path / "a.svg").read_text(), "each job has curves of its own"
    done = run_testbed(*words, "--event", f"{HALF_AT} 2", "--json")
    document = json.loads(done.stdout)
    assert document["workloads"] == [job["job"] for job in document["jobs"]] == ["a", "b"]
    for who in ("never_s", "oracle_s"):
        assert sum(job[who] for job in document["jobs"]) / 2 == pytest.approx(document[who], abs=2 * SHIFT_S)
    assert [len(row["jobs"]) for row in document["iterations"]] == [2] * 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "jobs: got 2, expected --vary starts=N alone, of several jobs"),
        (("--vary", "routes=2"), "expected --vary starts=N alone, of several jobs"),
        (("--vary", "starts=8", "--event", "rank 1 slower x2 at 5"), "expected JOB rank 1 ..., of jobs a, b"),
        (("--vary", "starts=8", "--event", "c rank 1 slower x2 at 5"), "got 'c', expected one of the jobs (a, b)"),
        (("--vary", "starts=8", "--event", "b rank 2 slower x2 at 5"), "got 2, expected 0 to 1"),
        (("--vary", "starts=8", "--event", "link shared lost at 5"), "no lost link: several jobs keep their routes"),
        (("--vary", "starts=8", "--begin", "1f1b"), "several have one schedule each, and keep it"),
        (("--vary", "starts=8", "--schedule", "1f1b", "--schedule", "zb-h1"), "expected one schedule and one policy"),
    ],
)
def test_what_several_jobs_cannot_rehearse(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    done = run_testbed("adapt", *written(tmp_path), *words, "--picture", tmp_path / "a.svg")
    assert done.returncode == ExitCode.BAD_INPUT
    assert expected in " ".join(done.stderr.split())
    assert not (tmp_path / "a.svg").exists()


# --- plans ----------------------------------------------------------------------------------------


def shifted(plan: Plan) -> Plan:
    bare = replace(plan, adaptation=None)
    after, case = with_shift(bare, bare.cases[0], (0.0, 0.01), "b 10 ms later", 7)
    assert case.label == "zb-h1 + 1f1b, b 10 ms later from 7"
    return after


def test_a_plan_keeps_what_was_decided(plan: Plan) -> None:
    after = shifted(plan)
    assert [type(event) for event in after.events if event.between_iterations] == [StartShifted] * 2
    assert file.from_json(file.to_json(after), "plan.json") == after
    before, case = (sum(iteration_times(after, case)) for case in after.cases)
    assert before != case
    predicted = [predict_training(after, case) for case in after.cases]
    assert [one.trace.iterations().tolist()[0] for one in predicted] == [0, 8], "one warms up"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda one: one["cases"][1].update(starts_s=[0.02, 0.0]), "expected the starts of the case before it, but"),
        (lambda one: one["cases"][1].pop("starts_s"), "expected the starts of the case before it, but"),
        (lambda one: one["events"][-1].update(name="c"), "expected one of the jobs"),
        (lambda one: one["events"].append(one["events"][-1]), "expected one start at a time"),
        (lambda one: one["events"][-1].update(start_s="soon"), "start_s: got 'soon'"),
    ],
)
def test_a_damaged_plan_is_refused(plan: Plan, change: Callable[[Any], None], expected: str) -> None:
    written = json.loads(file.to_json(shifted(plan)))
    change(written)
    with pytest.raises(BadInput, match=expected):
        file.from_json(json.dumps(written), "plan.json")


@pytest.mark.parametrize("starts", [0, 65])
def test_a_plan_of_several_jobs_says_at_how_many_places(plan: Plan, starts: int) -> None:
    written = json.loads(file.to_json(plan))
    assert written["adaptation"]["starts"] == 8
    written["adaptation"]["starts"] = starts
    with pytest.raises(BadInput, match=r"adaptation.starts: got \d+, expected 1 to 64 where there are several jobs"):
        file.from_json(json.dumps(written), "plan.json")


def written(directory: Path) -> list[str]:
    topology, workloads = adapting_starts.own("nothing", 4)
    names = []
    for name, document in zip("nab", (topology, *workloads), strict=True):
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(document))
        names.append(str(directory / f"{name}.yaml"))
    return names


def test_a_command_makes_such_a_plan(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = run_testbed("plan", *written(tmp_path), "--adapt", "never", "--vary", "starts=8", *VIRTUAL, "-o", out)
    assert done.returncode == 0, done.stderr
    assert starts_of(file.read(out), file.read(out).cases[0]) == plan_of("nothing", 4).cases[0].starts_s
    asked = "--policy", "interleave", "--adapt", "never", "--vary", "starts=8", *VIRTUAL
    done = run_testbed("plan", *written(tmp_path), *asked, "-o", out)
    assert done.returncode == 0, done.stderr
    alone = run_testbed("plan", *written(tmp_path), "--policy", "interleave", *VIRTUAL, "-o", tmp_path / "other.json")
    assert alone.returncode == 0, alone.stderr
    assert file.read(out).cases[0].starts_s == file.read(tmp_path / "other.json").cases[0].starts_s, (
        "as a policy has it"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--adapt", "never"), "--adapt: jobs: got 2, expected --vary starts=N alone, of several jobs"),
        (("--adapt", "never", "--vary", "routes=2"), "--vary: jobs: got 2, expected --vary starts=N alone"),
        (("--adapt", "never", "--vary", "starts=8", "--vary", "stages"), "expected --vary starts=N alone"),
        (("--adapt", "never", "--vary", "starts=0"), "got 'starts=0', expected microbatches=N,N"),
        (("--adapt", "never", "--vary", "starts=65"), "of several jobs starts=N (1 to 64)"),
        (("--adapt", "never", "--vary", "starts"), "got 'starts'"),
        (("--vary", "starts=8"), "--adapt beside it"),
        (
            ("--adapt", "never", "--vary", "starts=8", "--policy", "ecmp", "--policy", "shortest"),
            "one schedule and one",
        ),
        (("--adapt", "never", "--vary", "starts=8", "--depart", "a@2"), "no --depart a@2 beside it"),
        (("--adapt", "never", "--vary", "starts=8", "--rounds", "free"), "--adapt"),
    ],
)
def test_what_cannot_be_shifted(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    done = run_testbed("plan", *written(tmp_path), *words, "-o", tmp_path / "plan.json")
    assert done.returncode == ExitCode.BAD_INPUT
    assert expected in " ".join(done.stderr.split())
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("command", ["plan", "adapt"])
def test_one_job_has_nobody_to_make_room_for(tmp_path: Path, command: str) -> None:
    words = ("--adapt", "never", "-o", tmp_path / "plan.json") if command == "plan" else ()
    done = run_testbed(command, "two-dc-longhaul", "tiny-gpt-pp4", "--vary", "starts=8", *words)
    assert done.returncode == ExitCode.BAD_INPUT
    assert "several jobs: one alone" in " ".join(done.stderr.split())


def test_names_of_jobs_are_whole_in_80_columns(tmp_path: Path) -> None:
    pair = "two-dc-longhaul", "tiny-gpt-pp4", "tiny-gpt-pp4", "--schedule", "1f1b"
    words = "--vary", "starts=1", "--iterations", "2", "--picture", tmp_path / "a.svg"
    done = run_testbed("adapt", *pair, *words, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout
    assert "│ tiny-gpt-pp4- │" in done.stdout
