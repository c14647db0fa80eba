"""The training in one process that schedules are held against is trained once in a boot, for equal jobs only."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.plan.plan import Plan
from testbed.planning.resolve import generate, load_plan, with_cases
from testbed.session.references import References
from testbed.spec.choice import ScheduleChoice
from testbed.train.assignment import ReferenceOutcome
from testbed.train.launcher import Launcher
from testbed.train.projections import projections

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SMALL = ["microbatches=2", "microbatch_size=1", "iterations=1", "warmup=1", "model.layers=4"]


def plan_of(*settings: str) -> Plan:
    files = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
    plan = load_plan(*files, settings=[*SMALL, *settings])
    choice = ScheduleChoice(schedule="1f1b")
    return with_cases(plan, [choice], {choice.label: generate(plan, choice)})


def reference(plan: Plan, kept: Path) -> tuple[ReferenceOutcome, bool]:
    """And whether it was trained for this plan."""
    with Launcher(plan.jobs[0].mesh.size) as launcher:
        references = References(plan, [launcher], kept)
        (outcome,) = references.outcomes()
        return outcome, launcher.asked_for_reference


def test_a_job_that_was_trained_in_this_boot_is_not_trained_again_and_another_one_is(tmp_path: Path) -> None:
    first, trained = reference(plan_of(), tmp_path)
    assert trained
    assert not first.refused
    assert first.parameters
    on_another_link, again = reference(plan_of("topology.links.0.delay=33 ms"), tmp_path)
    assert not again
    assert on_another_link == first
    other, of_its_own = reference(plan_of("seed=2"), tmp_path)
    assert of_its_own
    assert other.losses != first.losses


def test_a_reference_knows_what_rounding_does_to_its_training(tmp_path: Path) -> None:
    usual, _ = reference(plan_of("iterations=3"), tmp_path)
    fast, _ = reference(plan_of("iterations=3", "optimizer.learning_rate=0.05"), tmp_path)
    assert 0 < usual.loss_rounding < 1e-6
    assert fast.loss_rounding > 2 * usual.loss_rounding
    assert fast.norm_rounding > 0


def test_projections_depend_on_name_and_shape_alone_in_whatever_order_they_are_asked_for() -> None:
    small, large = torch.arange(12.0), torch.linspace(0.0, 1.0, 1 << 18)
    begun = [projections("0.a", small), projections("0.b", small), projections("0.a", large)]
    assert [projections("0.a", large), projections("0.b", small), projections("0.a", small)] == begun[::-1]
    assert len({*begun}) == 3
    assert projections("0.a", 2 * small) == tuple(2 * value for value in begun[0])
    assert projections("0.a", small.reshape(3, 4)) == begun[0]
