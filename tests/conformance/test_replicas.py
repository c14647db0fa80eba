"""Pipelines trained side by side, with sharded optimizers, train exactly as one process does with the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from local_workers import (
    OPTIMIZERS,
    TOLERANCE,
    require_equally_trained,
    require_memory_as_predicted,
    scheduled,
    trained,
    workers,
)

from testbed.judge.iterations import trace
from testbed.model.simulate import simulate
from testbed.planning.resolve import make_plan
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import Workload, load_topology, load_workload
from testbed.trace.tables import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Trace
from testbed.train.data import load_corpus
from testbed.train.reference import train_reference

ROOT = Path(__file__).parents[2]
ITERATIONS, MICROBATCHES = 3, 3
RANKS = 4
PATIENCE = Deadline(60, "a test")
SHAPES = [(2, 2), (4, 1)]
"""Replicas x pipeline ranks."""
CASES = [
    ("ring", "1f1b"),
    ("ring", "crosspipe-greedy"),
    ("ring", "zb-v"),
    ("unsharded", "1f1b"),
    ("two-levels", "zb-v"),
    ("two-levels-unsharded", "crosspipe-greedy"),
    ("direct", "1f1b"),
    ("torch", "1f1b"),
]
"""What the replicas exchange, and the schedule."""
WAYS = {
    "ring": "",
    "unsharded": "sharding: none",
    "two-levels": "algorithm: hierarchical, chunks: 2",
    "two-levels-unsharded": "algorithm: hierarchical, sharding: none, chunks: 2",
    "direct": "algorithm: direct, sharding: none",
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
        "optimizer": OPTIMIZERS[dtype],
    }
    return load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    with workers(RANKS, tmp_path_factory.mktemp("workers"), PATIENCE) as found:
        yield found


@pytest.mark.parametrize(("way", "name"), CASES)
@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize(("replicas", "ranks"), SHAPES)
def test_replicas_train_as_one_process_does(
    loop: Loop, replicas: int, ranks: int, dtype: str, way: str, name: str, tmp_path: Path
) -> None:
    job_workload = workload(replicas, ranks, dtype, way)
    (tmp_path / "pair.yaml").write_text(NETWORK)
    case = scheduled(make_plan(load_topology(tmp_path / "pair.yaml"), job_workload), name)
    got = trained(loop, case, ITERATIONS, PATIENCE)
    require_equally_trained(got, train_reference(job_workload, load_corpus(), ITERATIONS), TOLERANCE[dtype])
    require_memory_as_predicted(got, case)
    _require_as_predicted(trace(got.records), simulate(case.problem, case.schedule), whole=way != "torch")


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
