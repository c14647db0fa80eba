"""A job that adapts may cut its batch into other microbatches: what it then costs, sees and believes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.adaptation import controller
from testbed.adaptation.adaptable_job import AdaptableJob, adaptable_job, planned_belief
from testbed.adaptation.adapting import adapting_job
from testbed.adaptation.believed_problem import believed
from testbed.adaptation.controller import Decide, Outlook
from testbed.adaptation.may_change import MayChange
from testbed.adaptation.prospects import Prospects
from testbed.adaptation.rehearsal import rehearse
from testbed.adaptation.rehearsal_changes import change
from testbed.adaptation.rehearsal_world import AS_PACED, OneJobsWorld, SlotVariation
from testbed.adaptation.sightings import sighting
from testbed.errors import BadInput, ExitCode
from testbed.plan import costs
from testbed.plan.microbatches import job_in, resized, samples
from testbed.plan.traffic import planned_traffic
from testbed.planning import file
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
COUNTS = (16, 4)
LINK = "paris--warsaw"


def job_of(*settings: str, counts: tuple[int, ...] = COUNTS) -> AdaptableJob:
    plan = load_plan(LONGHAUL, PP4, settings=["memory=8", *settings])
    return adaptable_job(plan, choose(plan, ["1f1b", "crosspipe-greedy"]), MayChange(counts))


@pytest.fixture(scope="module")
def job() -> AdaptableJob:
    return job_of()


def in_turn(*labels: str) -> Decide:
    """Swaps after every iteration, whatever that brings."""
    waiting = list(labels)

    def decide(outlook: Outlook) -> object:
        wanted = waiting.pop(0) if waiting else outlook.running.label
        return next(each for each in outlook.prospects if each.label == wanted)

    return decide  # type: ignore[return-value]


# --- what other microbatches are ------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 16, 32])
def test_the_batch_is_the_same_and_all_else_follows(count: int) -> None:
    settings = ["memory=[8, 7, 6, 5]", "pacing.B=30 ms", "pacing.I={median: 10 ms, p95: 13 ms}"]
    own = load_plan(LONGHAUL, PP4, settings=settings).jobs[0].workload
    made, larger = resized(own, count), own.microbatches / count
    assert (samples(made), made.microbatches) == (samples(own), count)
    assert made.message_bytes() == pytest.approx(own.message_bytes() * larger)
    assert made.memory_limits() == pytest.approx([limit / larger for limit in own.memory_limits()])
    assert made.pacing is not None
    assert own.pacing is not None
    for kind in ("F", "I", "W", "B"):
        assert made.pacing.of(kind, 2) == pytest.approx(own.pacing.of(kind, 2) * larger)
    spread = made.pacing.spread("I")
    assert spread is not None
    assert spread.sigma(1) == pytest.approx(own.pacing.I.sigma(1))  # type: ignore[union-attr]
    assert resized(own, own.microbatches) is own


@pytest.mark.parametrize(
    ("settings", "count", "said"),
    [
        ((), 5, "a divisor of 32, the samples"),
        ((), 64, "a divisor of 32, the samples"),
        (("memory=2",), 2, "no memory for one so large"),
        (("message=900 MB",), 4, "too large"),
    ],
)
def test_a_number_that_cannot_be_is_refused(settings: tuple[str, ...], count: int, said: str) -> None:
    plan = load_plan(LONGHAUL, PP4, settings=["microbatches=8", *settings])
    with pytest.raises(BadInput, match=said):
        adaptable_job(plan, choose(plan, ["1f1b"]), MayChange((count,)))


def test_a_job_without_slots_has_no_other_microbatches() -> None:
    plan = load_plan(LONGHAUL, PP4, settings=["pacing=none"])
    with pytest.raises(BadInput, match="a job with times for F, I and W"):
        adaptable_job(plan, choose(plan, ["1f1b"]), MayChange((16,)))


# --- what a job sees and believes -----------------------------------------------------------------


@pytest.mark.parametrize("receives", ["early", "late"])
@pytest.mark.parametrize(
    "event", [f"link {LINK} delay x3 at 0", f"link {LINK} rate x0.4 at 0", "rank 2 slower x1.4 at 0"]
)
def test_what_is_believed_predicts_every_number_of_them(event: str, receives: str) -> None:
    """Whatever runs while it is seen."""
    job = job_of(f"receives={receives}")
    world = OneJobsWorld(job, [change(event, job.plan)], AS_PACED)
    for begin in ("1f1b with 4 microbatches", "1f1b", "crosspipe-greedy with 16 microbatches"):
        adapting = adapting_job(job, controller.never(), 0.0, begin)
        for iteration in range(3):
            seen = sighting(
                world.trace(adapting.running, iteration), job.ranks, world.probes_s(iteration, adapting.running.setting)
            )
            belief = adapting.after(iteration, seen).belief
        for prospect in Prospects(job).under(belief):
            assert prospect.predicted_s == pytest.approx(world.iteration_s(prospect, 0), rel=3e-3), (
                begin,
                prospect.label,
            )


def test_other_microbatches_are_no_other_links_or_ranks(job: AdaptableJob) -> None:
    """Messages and slots take other times after each swap, and nothing has changed."""
    decide = in_turn(
        "1f1b with 16 microbatches", "1f1b with 4 microbatches", "crosspipe-greedy", "1f1b with 4 microbatches"
    )
    world, adapting = OneJobsWorld(job, [], SlotVariation(0.02, 3)), adapting_job(job, decide, 0.0, "1f1b")
    ran = []
    for iteration in range(8):
        running = adapting.running
        ran.append(running.label)
        step = adapting.after(
            iteration, sighting(world.trace(running, iteration), job.ranks, world.probes_s(iteration, running.setting))
        )
        assert step.learnt == ((), ()), iteration
    assert len(set(ran)) == 4


def test_as_planned_every_number_is_believed_as_planned(job: AdaptableJob) -> None:
    assert {recipe.setting.microbatches for recipe in job.recipes} == {8, 16, 4}
    for recipe in job.recipes:
        assert believed(job, recipe, planned_belief(job)) == recipe.problem
        assert recipe.problem.n_microbatches == recipe.setting.microbatches


def test_it_cuts_its_batch_anew_where_that_is_worth_it(job: AdaptableJob) -> None:
    found = rehearse(
        job,
        [change(f"link {LINK} delay x6 at 6", job.plan)],
        40,
        controller.choose("ski-rental"),
        swap_s=0.02,
        begin="1f1b",
    )
    assert any(row.step.swapped_to is not None and "16 microbatches" in row.step.swapped_to.label for row in found.rows)
    assert found.share is not None
    assert 0.9 <= found.share <= 1.0


# --- plans ----------------------------------------------------------------------------------------


def test_a_case_has_the_microbatches_that_it_says() -> None:
    plan = load_plan(LONGHAUL, PP4, settings=["memory=8"])
    chosen = choose(plan, ["1f1b"])
    plan = with_cases(plan, chosen, make(plan, chosen).made)
    (case,) = plan.cases
    cut = replace(case, jobs=(replace(case.jobs[0], rows=None, microbatches=16),))
    there, then = (sum(each.wire_bytes for each in planned_traffic(plan, one)) for one in (case, cut))
    assert then == pytest.approx(there, rel=0.01), "as many bytes in all, but for headers and notices"
    assert then > there
    problem = costs.problem_of_case(plan, cut)
    assert problem == costs.problem(replace(plan, jobs=(job_in(plan.jobs[0], cut.jobs[0]),)), chosen[0])
    with pytest.raises(BadInput, match=r"jobs\.0\.microbatches: got 5"):
        file.check(replace(plan, cases=(replace(case, jobs=(replace(case.jobs[0], microbatches=5),)),)), "plan.json")


def test_the_command_has_them_beside_schedules(tmp_path: Path) -> None:
    words = ("plan", "two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "-o", tmp_path / "plan.json")
    done = run_testbed(*words, "--adapt", "ski-rental", "--vary", "microbatches=16,8")
    assert done.returncode == 0, done.stderr
    plan = file.read(tmp_path / "plan.json")
    assert plan.adaptation is not None
    assert plan.adaptation.microbatches == (16,), "beside the workload's own"
    assert file.from_json(file.to_json(plan), "plan.json") == plan
    done = run_testbed(*words, "--vary", "microbatches=16")
    assert done.returncode == ExitCode.BAD_INPUT
    assert "--adapt beside it" in " ".join(done.stderr.split())
