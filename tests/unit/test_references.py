"""The training in one process that schedules are held against is trained once in a boot, for equal jobs only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from testbed.plan.plan import Plan
from testbed.planning.resolve import generate, load_plan, with_cases
from testbed.session.references import References, all_kept
from testbed.spec import Workload
from testbed.spec.choice import ScheduleChoice
from testbed.train.assignment import ReferenceOutcome
from testbed.train.data import load_corpus
from testbed.train.launcher import Launcher
from testbed.train.projections import projections
from testbed.train.protocol import TrainReference
from testbed.train.reference import train_reference

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SMALL = ["microbatches=2", "microbatch_size=1", "iterations=1", "warmup=1", "model.layers=4"]


def plan_of(*settings: str) -> Plan:
    files = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
    others = {setting.partition("=")[0] for setting in settings}
    plan = load_plan(*files, settings=[*(one for one in SMALL if one.partition("=")[0] not in others), *settings])
    choice = ScheduleChoice(schedule="1f1b")
    return with_cases(plan, [choice], {choice.label: generate(plan, choice)})


def reference(plan: Plan, kept: Path) -> tuple[ReferenceOutcome, bool]:
    """And whether it was trained for this plan."""
    with Launcher() as launcher:
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
    as_much = (
        "message=3 MB",
        "pacing.F=7 ms",
        "memory=2",
        "streams=3",
        "receives=late",
        "name=other",
        "recompute=true",
    )
    in_another_lab, again = reference(plan_of(*as_much), tmp_path)
    assert not again
    assert in_another_lab == first
    other, of_its_own = reference(plan_of("seed=2"), tmp_path)
    assert of_its_own
    assert other.losses != first.losses


OTHERS = (
    *("microbatches=3", "microbatch_size=2", "model.layers=8", "model.dtype=float64", "iterations=2"),
    *("optimizer.kind=sgd", "optimizer.learning_rate=0.01", "parallelism={pipeline: 2, data: 2}"),
)


def test_every_other_training_has_a_file_of_its_own(tmp_path: Path) -> None:
    for settings in [(), *((setting,) for setting in OTHERS)]:
        assert not all_kept(plan_of(*settings), tmp_path), settings
        References(plan_of(*settings), [_Asked()], tmp_path).outcomes()
        assert all_kept(plan_of(*settings), tmp_path), settings
    assert len(list(tmp_path.iterdir())) == 1 + len(OTHERS)


class _Asked(Launcher):
    """A fork server's, that is told nothing: who asks for a training has an empty one."""

    def __init__(self) -> None:
        pass

    def ask_for_reference(self, request: TrainReference) -> None:
        pass

    def reference(self) -> ReferenceOutcome:
        return ReferenceOutcome()


def test_a_training_in_one_process_looks_at_nothing_that_its_file_is_not_named_by() -> None:
    """Whatever else a workload has is not there to be looked at."""
    workload = plan_of("iterations=2").jobs[0].workload
    named = {name: getattr(workload, name) for name in ("name", "model", "microbatches", "microbatch_size", "seed")}
    bare = SimpleNamespace(**named, optimizer=workload.optimizer, parallelism=SimpleNamespace(data=1))
    corpus = load_corpus()
    trained = train_reference(cast(Workload, bare), corpus, 2, (1,), resized=True)
    assert trained.losses == train_reference(workload, corpus, 2, (1,), resized=True).losses


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
