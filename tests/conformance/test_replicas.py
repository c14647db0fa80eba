"""Pipelines trained side by side, with sharded optimizers, train exactly as one process does with the whole batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from local_workers import local_workers, require_memory_as_predicted, require_trained_alike

from testbed.judge.iterations import trace
from testbed.model.simulate import simulate
from testbed.plan.costs import problem as problem_of
from testbed.plan.exchange import sites_of
from testbed.plan.resolve import generate, make_plan
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import Workload, load_topology, load_workload
from testbed.spec.choice import ScheduleChoice
from testbed.trace.tables import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Trace
from testbed.train.data import load_corpus
from testbed.train.job import Job
from testbed.train.reference import train_reference

ROOT = Path(__file__).parents[2]
ITERATIONS, MICROBATCHES = 3, 3
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
RANKS = 4
SHAPES = [(2, 2), (4, 1)]
"""Replicas x pipeline ranks."""
CASES = [
    ("ring", "1f1b"),
    ("ring", "crosspipe-greedy"),
    ("ring", "zb-v"),
    ("unsharded", "1f1b"),
    ("two-levels", "zb-v"),
    ("two-levels-unsharded", "crosspipe-greedy"),
    ("torch", "1f1b"),
]
"""What the replicas exchange, and the schedule."""
WAYS = {
    "ring": "",
    "unsharded": "sharding: none",
    "two-levels": "algorithm: hierarchical, chunks: 2",
    "two-levels-unsharded": "algorithm: hierarchical, sharding: none, chunks: 2",
    "torch": "algorithm: torch, sharding: none",
}
"""The same as a workload says it."""
SITES = {2: ["a/0", "b/0"], 4: ["a/0", "a/1", "a/2", "b/0"]}
"""Where the first ranks of so many replicas are: datacenters of unequal numbers of members."""
NETWORK = """
name: pair
datacenters: {a: {nodes: 4}, b: {nodes: 4}}
links: [{between: [a, b], delay: 1 ms, rate: 1 Gbit/s}]
"""


def workload(replicas: int, ranks: int, dtype: str, way: str) -> Workload:
    placed = [SITES[replicas]] + ([["a/1", "b/1"]] if ranks == 2 else [])
    first, *others = [f"[{', '.join(nodes)}]" for nodes in zip(*placed, strict=True)]
    exchange = ", ".join(part for part in (WAYS[way], f"replicas: [{', '.join(others)}]") if part)
    settings = {
        "parallelism": f"{{pipeline: {ranks}, data: {replicas}}}",
        "placement": first,
        "data_parallel": f"{{{exchange}}}",
        "microbatches": str(MICROBATCHES),
        "model": f"{{layers: 5, d_model: 16, heads: 2, sequence: 8, dtype: {dtype}}}",
        "microbatch_size": "1",
        "message": "20 kB",
        "pacing": "{F: 0.3 ms, I: 0.2 ms, W: 0.4 ms}",
        "memory": str(2 * MICROBATCHES),
        # AdamW turns float32's rounding into steps of its own
        "optimizer": "{kind: adamw}" if dtype == "float64" else "{kind: sgd, learning_rate: 0.1}",
    }
    return load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    with local_workers(RANKS, tmp_path_factory.mktemp("workers")) as loop:
        yield loop


@pytest.mark.parametrize(("way", "name"), CASES)
@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize(("replicas", "ranks"), SHAPES)
def test_replicas_train_as_one_process_does(
    workers: Loop, replicas: int, ranks: int, dtype: str, way: str, name: str, tmp_path: Path
) -> None:
    job_workload = workload(replicas, ranks, dtype, way)
    (tmp_path / "pair.yaml").write_text(NETWORK)
    plan = make_plan(load_topology(tmp_path / "pair.yaml"), job_workload)
    choice = ScheduleChoice(schedule=name)
    schedule, problem = generate(plan, choice).schedule, problem_of(plan, choice)
    durations = tuple(tuple(problem.duration(action) for action in row) for row in schedule.rows)
    losses, gradients, squares = [], {}, {}
    sites = sites_of(plan.jobs[0])
    job = Job(schedule, job_workload, durations, ITERATIONS, keep_gradients=True, sites=sites, count_memory=True)
    for (records,) in workers.run([job], Deadline(60, "a test")):
        require_memory_as_predicted(records, plan.jobs[0], schedule)
        losses.append(sum(record.loss for record in records if record.loss is not None))
        for record in records:
            for parameter, part in record.gradients.items():
                gradients[parameter] = gradients.get(parameter, 0.0) + part
        seen = trace(records)
    for record in records:
        for layer, part in record.gradient_squares.items():
            squares[layer] = squares.get(layer, 0.0) + part
    tolerance = TOLERANCE[dtype]
    expected = train_reference(job_workload, load_corpus(), ITERATIONS)
    require_trained_alike(losses, gradients, expected, tolerance)
    norms = [math.sqrt(squares[layer]) for layer in sorted(squares)]
    assert norms == pytest.approx(expected.gradient_norms[-1], rel=10 * tolerance)
    _require_as_predicted(seen, simulate(problem, schedule), whole=way != "torch")


def _require_as_predicted(seen: Trace, predicted: Trace, *, whole: bool) -> None:
    """The messages of collectives are those of the model, or some of them, and each was sent before it was taken."""
    names = ["kind", "stage", "microbatch", "source_rank", "target_rank", "payload_bytes"]
    mine, theirs = [
        one.messages[np.isin(one.messages["kind"], (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE))]
        for one in (seen, predicted)
    ]
    assert len(mine)
    assert (mine["taken_s"] > mine["sent_s"]).all()
    sent, expected = (sorted(one[names].tolist()) for one in (mine, theirs))
    assert sent == expected if whole else set(sent) < set(expected)
