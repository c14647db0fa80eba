"""Every schedule, run by real processes over gloo, trains exactly as one process does: losses and every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_workers import (
    OPTIMIZERS,
    TOLERANCE,
    Scheduled,
    require_equally_trained,
    require_memory_as_predicted,
    scheduled,
    trained,
    workers,
)

from testbed.pipeline.ir import Schedule
from testbed.plan.costs import problem
from testbed.planning.resolve import make_plan
from testbed.schedule.registry import FAMILIES
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import Workload, load_topology, load_workload
from testbed.spec.choice import ScheduleChoice
from testbed.train.data import load_corpus
from testbed.train.reference import Reference, train_reference

ROOT = Path(__file__).parents[2]
ITERATIONS = 3
PATIENCE = Deadline(60, "a test")
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
        "optimizer": OPTIMIZERS[dtype],
        "receives": "late" if variant == "late" else "early",
        "recompute": "true" if variant == "recompute" else "false",
    }
    return load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)


@pytest.fixture(scope="module")
def launcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    with workers(request.param, tmp_path_factory.mktemp("workers"), PATIENCE) as loop:
        yield loop


@pytest.fixture(scope="module")
def references() -> dict[tuple[int, str], Reference]:
    corpus = load_corpus()
    return {
        (ranks, dtype): train_reference(workload(ranks, dtype, "early"), corpus, ITERATIONS)
        for ranks in SHAPES
        for dtype in TOLERANCE
    }


@pytest.fixture(scope="module")
def searched() -> dict[tuple[int, str], Schedule]:
    """By ranks and family, what was found for the variant that came first: the others train with the same rows."""
    return {}


EVERY = sorted(FAMILIES)
EACH_FORM = ["gpipe", "1f1b", "zb-h1", "crosspipe-greedy", "interleaved-1f1b", "zb-v", "dualpipe-v", "pipemorph"]
"""Whole backwards and split ones, parts of blocks, two stages to a rank in a loop and in a V."""
CASES = [
    *((2, "float64", "late", name) for name in EVERY),
    *((2, "float64", "early", name) for name in ("1f1b", "crosspipe-greedy", "zb-v")),
    *((4, "float64", "early", name) for name in EVERY),
    *((4, "float64", "recompute", name) for name in EACH_FORM),
    *((4, "float32", "early", name) for name in ("gpipe", "zb-h1", "crosspipe-greedy", "zb-v")),
]
"""What is trained by every schedule, with one receive after the other and with all ahead; what of that hangs on how
computation is cut up, or on the sums' rounding alone, by schedules of every form."""


@pytest.mark.parametrize(("launcher", "dtype", "variant", "name"), CASES, indirect=["launcher"])
def test_a_pipeline_trains_as_one_process_does(
    launcher: Loop,
    references: dict[tuple[int, str], Reference],
    searched: dict[tuple[int, str], Schedule],
    name: str,
    dtype: str,
    variant: str,
) -> None:
    ranks = len(launcher.launchers[0].workers)
    plan = make_plan(load_topology(ROOT / "topologies/two-dc-longhaul.yaml"), workload(ranks, dtype, variant))
    if (ranks, name) in searched:
        case = Scheduled(plan, searched[ranks, name], problem(plan, ScheduleChoice(schedule=name)))
    else:
        limit_s = 0.2 if "time_limit_s" in FAMILIES[name].option_names() else None
        case = scheduled(plan, ScheduleChoice(schedule=name, time_limit_s=limit_s))
        searched[ranks, name] = case.schedule
    got = trained(launcher, case, ITERATIONS, PATIENCE)
    require_equally_trained(got, references[ranks, dtype], TOLERANCE[dtype])
    require_memory_as_predicted(got, case)


def test_sub_blocks_were_among_them() -> None:
    """The greedy's parts of blocks are really executed above, not only whole blocks."""
    plan = make_plan(load_topology(ROOT / "topologies/two-dc-longhaul.yaml"), workload(4, "float64", "early"))
    schedule = scheduled(plan, "crosspipe-greedy").schedule
    assert any(action.part.of > 1 for _, action in schedule.actions())


def test_one_process_takes_the_first_microbatches_of_a_batch_where_replicas_are_away() -> None:
    corpus, settings = load_corpus(), {"parallelism.pipeline": "2", "microbatches": "3", "microbatch_size": "1"}
    settings |= {"model.layers": "2", "model.d_model": "16", "model.sequence": "8"}
    three, one = (
        load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings | {"parallelism.data": str(count)})
        for count in (3, 1)
    )
    fewer = train_reference(three, corpus, 3, (2,), replicas=(3, 1, 1))
    alone = train_reference(one, corpus, 3)
    whole = train_reference(three, corpus, 3)
    assert fewer.losses[0] == whole.losses[0]
    assert fewer.losses[1] != pytest.approx(whole.losses[1], rel=1e-6), "of other samples"
    all_along = train_reference(three, corpus, 3, replicas=(1, 1, 1))
    assert all_along.losses == pytest.approx(alone.losses, rel=1e-6)
    for norms, expected in zip(all_along.gradient_norms, alone.gradient_norms, strict=True):
        assert norms == pytest.approx(expected, rel=1e-4)
