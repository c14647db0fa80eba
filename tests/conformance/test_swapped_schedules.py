"""A training goes on with another schedule between two iterations, and trains what one process does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from local_workers import TOLERANCE, require_equally_trained, scheduled, trained, workers

from testbed.judge.execution import executed_rows, planned_rows
from testbed.judge.iterations import trace
from testbed.plan.exchange import exchange_at
from testbed.plan.microbatches import resized
from testbed.plan.plan import Plan
from testbed.planning.resolve import make_plan
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import load_topology, load_workload
from testbed.train.data import load_corpus
from testbed.train.reference import Reference, train_reference

ROOT = Path(__file__).parents[2]
ITERATIONS = 4
RANKS = 4
PATIENCE = Deadline(60, "a test")
NETWORK = """
name: pair
datacenters: {a: {nodes: 4}, b: {nodes: 4}}
links: [{between: [a, b], delay: 1 ms, rate: 1 Gbit/s}]
"""
ADAMW, SGD = "{kind: adamw}", "{kind: sgd, learning_rate: 0.1}"
MESHES = {
    "four stages": ("{pipeline: 4}", "[a/0, a/1, b/0, b/1]", "{}", ADAMW),
    "two replicas": ("{pipeline: 2, data: 2}", "[a/0, b/0]", "{replicas: [[a/1, b/1]]}", SGD),
    "two whole replicas": (
        "{pipeline: 2, data: 2}",
        "[a/0, b/0]",
        "{sharding: none, replicas: [[a/1, b/1]]}",
        SGD,
    ),
    "two in two levels": (
        "{pipeline: 2, data: 2}",
        "[a/0, b/0]",
        "{algorithm: hierarchical, chunks: 3, replicas: [[b/1, b/2]]}",
        SGD,
    ),
    "three in two levels": (
        "{pipeline: 2, data: 3}",
        "[a/0, b/0]",
        "{algorithm: hierarchical, chunks: 2, replicas: [[a/1, a/2], [b/1, a/3]]}",
        SGD,
    ),
    "two tensor ranks": ("{pipeline: 2, tensor: 2}", "[a/0, a/1, b/0, b/1]", "{}", ADAMW),
}
"""What is parallel, where the first replica and the others are, and the optimizer.

AdamW turns the rounding of replicas' sums, in another order than one process has, into 1e-12 within four steps, swapped
or not; SGD, which keeps momenta too, does not.
"""


def plan_of(mesh: str, receives: str, directory: Path, **other: str) -> Plan:
    parallelism, placement, data_parallel, optimizer = MESHES[mesh]
    settings = {
        "parallelism": parallelism,
        "placement": placement,
        "data_parallel": data_parallel,
        "receives": receives,
        "microbatches": "4",
        "model": "{layers: 8, d_model: 16, heads: 2, sequence: 8, dtype: float64}",
        "microbatch_size": "1",
        "message": "20 kB",
        "pacing": "{F: 0.3 ms, I: 0.2 ms, W: 0.4 ms}",
        "memory": "8",
        "optimizer": optimizer,
        **other,
    }
    (directory / "pair.yaml").write_text(NETWORK)
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)
    return make_plan(load_topology(directory / "pair.yaml"), workload)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    with workers(RANKS, tmp_path_factory.mktemp("workers"), PATIENCE) as found:
        yield found


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    directory = tmp_path_factory.mktemp("plans")
    workloads = {mesh: plan_of(mesh, "early", directory).jobs[0].workload for mesh in MESHES}
    return {mesh: train_reference(workload, load_corpus(), ITERATIONS) for mesh, workload in workloads.items()}


@pytest.mark.parametrize(
    ("mesh", "receives", "names"),
    [
        ("four stages", "early", ("1f1b", "zb-h1", "1f1b")),
        ("four stages", "late", ("1f1b", "zb-h1", "1f1b")),
        ("four stages", "early", ("gpipe", "crosspipe-greedy", "zb-h2")),
        ("four stages", "early", ("zb-v", "dualpipe-v", "zb-v")),
        ("two replicas", "early", ("1f1b", "zb-h1", "1f1b")),
        ("two tensor ranks", "early", ("1f1b", "zb-h1", "1f1b")),
    ],
)
def test_training_goes_on_with_the_same_weights(
    loop: Loop, references: dict[str, Reference], mesh: str, receives: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    plan = plan_of(mesh, receives, tmp_path)
    first, second, third = (scheduled(plan, name) for name in names)
    assert first.schedule.rows != second.schedule.rows
    got = trained(loop, first, ITERATIONS, PATIENCE, {1: second, 3: third})
    planned = planned_rows(plan.jobs[0].mesh, third.schedule.rows)
    assert {one.rank: one.row for one in executed_rows(trace(got.records))} == planned
    require_equally_trained(got, references[mesh], TOLERANCE["float64"])


@pytest.mark.parametrize(
    ("mesh", "receives", "counts"),
    [
        ("four stages", "early", {1: 6, 2: 4, 3: 3}),
        ("four stages", "early", {1: 1, 3: 12}),
        ("four stages", "late", {1: 6, 2: 4}),
        ("two replicas", "early", {1: 2, 2: 12}),
        ("two tensor ranks", "early", {1: 6, 3: 2}),
    ],
)
def test_training_goes_on_with_other_microbatches(
    loop: Loop, mesh: str, receives: str, counts: dict[int, int], tmp_path: Path
) -> None:
    """The batch of twelve samples is cut also where the workload's own microbatches, of three, are not."""
    plan = plan_of(mesh, receives, tmp_path, microbatch_size="3", optimizer=SGD)
    (job,) = plan.jobs
    swaps = {
        after: scheduled(replace(plan, jobs=(replace(job, workload=resized(job.workload, count)),)), "zb-h1")
        for after, count in counts.items()
    }
    expected = train_reference(job.workload, load_corpus(), ITERATIONS, resized=True)
    got = trained(loop, scheduled(plan, "1f1b"), ITERATIONS, PATIENCE, swaps)
    last = swaps[max(swaps)].schedule
    assert {one.rank: one.row for one in executed_rows(trace(got.records))} == planned_rows(job.mesh, last.rows)
    require_equally_trained(got, expected, TOLERANCE["float64"])


@pytest.mark.parametrize(
    ("mesh", "receives", "layers", "names", "optimizer"),
    [
        ("four stages", "early", 8, ("1f1b", "zb-v", "1f1b"), ADAMW),
        ("four stages", "early", 13, ("zb-v", "interleaved-1f1b", "dualpipe-v"), ADAMW),
        ("four stages", "late", 9, ("interleaved-1f1b", "zb-h1", "zb-v"), SGD),
        ("two tensor ranks", "early", 5, ("1f1b", "zb-v", "interleaved-1f1b"), ADAMW),
        ("two whole replicas", "early", 7, ("1f1b", "zb-v", "interleaved-1f1b"), SGD),
        ("two whole replicas", "late", 8, ("zb-v", "1f1b", "zb-v"), SGD),
        ("two replicas", "early", 8, ("1f1b", "zb-v", "1f1b"), SGD),
        ("two replicas", "late", 7, ("zb-v", "interleaved-1f1b", "zb-h1"), SGD),
        ("two in two levels", "early", 9, ("interleaved-1f1b", "1f1b", "zb-v"), SGD),
    ],
)
def test_training_goes_on_where_its_stages_have_moved(
    loop: Loop, mesh: str, receives: str, layers: int, names: tuple[str, ...], optimizer: str, tmp_path: Path
) -> None:
    """Also where layers are no equal shares of stages, so that what is cut apart differs before and after."""
    model = f"{{layers: {layers}, d_model: 16, heads: 2, sequence: 8, dtype: float64}}"
    plan = plan_of(mesh, receives, tmp_path, model=model, optimizer=optimizer)
    first, second, third = (scheduled(plan, name) for name in names)
    stages = [one.schedule.stage_to_rank for one in (first, second, third)]
    assert stages[0] != stages[1]
    got = trained(loop, first, ITERATIONS, PATIENCE, {1: second, 3: third})
    expected = train_reference(plan.jobs[0].workload, load_corpus(), ITERATIONS)
    require_equally_trained(got, expected, TOLERANCE["float64"])
    assert {one.rank: one.row for one in executed_rows(trace(got.records))} == planned_rows(
        plan.jobs[0].mesh, third.schedule.rows
    )


def test_shards_move_where_ranks_have_theirs_in_another_order(tmp_path: Path) -> None:
    """Two of the three are in one datacenter, of the second rank other two than of the first: so are their cells."""
    model = "{layers: 7, d_model: 16, heads: 2, sequence: 8, dtype: float64}"
    plan = plan_of("three in two levels", "early", tmp_path, model=model)
    owners = [exchange_at(plan.jobs[0], rank).shards for rank in range(2)]
    assert owners[0] != owners[1]
    with workers(plan.jobs[0].mesh.size, tmp_path, PATIENCE) as loop:
        swaps = {1: scheduled(plan, "interleaved-1f1b"), 2: scheduled(plan, "1f1b")}
        got = trained(loop, scheduled(plan, "zb-v"), ITERATIONS, PATIENCE, swaps)
    require_equally_trained(
        got, train_reference(plan.jobs[0].workload, load_corpus(), ITERATIONS), TOLERANCE["float64"]
    )


def test_stages_move_while_the_batch_is_cut_anew(loop: Loop, tmp_path: Path) -> None:
    plan = plan_of("four stages", "early", tmp_path, microbatch_size="3", optimizer=SGD)
    (job,) = plan.jobs
    cut = replace(plan, jobs=(replace(job, workload=resized(job.workload, 6)),))
    got = trained(loop, scheduled(plan, "1f1b"), ITERATIONS, PATIENCE, {2: scheduled(cut, "zb-v")})
    require_equally_trained(got, train_reference(job.workload, load_corpus(), ITERATIONS), TOLERANCE["float64"])
