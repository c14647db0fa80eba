"""Every schedule, run by real processes over gloo, trains exactly as one process does: losses and every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_workers import local_workers, require_memory_as_predicted, require_trained_alike

from testbed.plan.costs import problem as problem_of
from testbed.plan.resolve import generate, make_plan
from testbed.schedule.registry import FAMILIES
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import Workload, load_topology, load_workload
from testbed.spec.choice import ScheduleChoice
from testbed.train.data import load_corpus
from testbed.train.job import Job
from testbed.train.reference import Reference, train_reference

ROOT = Path(__file__).parents[2]
ITERATIONS = 3
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
SOLVER_LIMIT_S = 1.0
SHAPES = {2: 5, 4: 8}
"""Ranks -> microbatches."""


def workload(ranks: int, dtype: str, variant: str) -> Workload:
    settings = {
        "parallelism.pipeline": str(ranks),
        "microbatches": str(SHAPES[ranks]),
        "model": f"{{layers: 8, d_model: 32, heads: 2, sequence: 16, dtype: {dtype}}}",
        "microbatch_size": "2",
        "message": "20 kB",
        "pacing": "{F: 0.3 ms, I: 0.2 ms, W: 0.4 ms}",
        "memory": str(SHAPES[ranks]),
        # AdamW divides by the gradient's own size, which turns float32's rounding (the order in which microbatches are
        # added) into steps of its own; it is tested in float64
        "optimizer": "{kind: adamw}" if dtype == "float64" else "{kind: sgd, learning_rate: 0.1}",
        "receives": "late" if variant == "late" else "early",
        "recompute": "true" if variant == "recompute" else "false",
    }
    return load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)


@pytest.fixture(scope="module", params=sorted(SHAPES))
def launcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    with local_workers(request.param, tmp_path_factory.mktemp("workers")) as loop:
        yield loop


@pytest.fixture(scope="module")
def references() -> dict[tuple[int, str], Reference]:
    corpus = load_corpus()
    return {
        (ranks, dtype): train_reference(workload(ranks, dtype, "early"), corpus, ITERATIONS)
        for ranks in SHAPES
        for dtype in TOLERANCE
    }


@pytest.mark.parametrize("variant", ["early", "late", "recompute"])
@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_pipeline_trains_as_one_process_does(
    launcher: Loop, references: dict[tuple[int, str], Reference], name: str, dtype: str, variant: str
) -> None:
    ranks = launcher.launchers[0].n_ranks
    job_workload = workload(ranks, dtype, variant)
    plan = make_plan(load_topology(ROOT / "topologies/two-dc-longhaul.yaml"), job_workload)
    choice = ScheduleChoice(schedule=name, time_limit_s=SOLVER_LIMIT_S if FAMILIES[name].solver else None)
    schedule, problem = generate(plan, choice).schedule, problem_of(plan, choice)
    durations = tuple(tuple(problem.duration(action) for action in row) for row in schedule.rows)
    losses, gradients = [], {}
    job = Job(schedule, job_workload, durations, ITERATIONS, keep_gradients=True, count_memory=True)
    for (records,) in launcher.run([job], Deadline(60, "a test")):
        require_memory_as_predicted(records, plan.jobs[0], schedule)
        losses += [record.loss for record in records if record.loss is not None]
        for record in records:
            gradients |= record.gradients
    expected = references[ranks, dtype]
    tolerance = TOLERANCE[dtype]
    require_trained_alike(losses, gradients, expected, tolerance)


def test_sub_blocks_were_among_them() -> None:
    """The greedy's parts of blocks are really executed above, not only whole blocks."""
    plan = make_plan(load_topology(ROOT / "topologies/two-dc-longhaul.yaml"), workload(4, "float64", "early"))
    schedule = generate(plan, ScheduleChoice(schedule="crosspipe-greedy")).schedule
    assert any(action.part.of > 1 for _, action in schedule.actions())
