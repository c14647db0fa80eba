"""What is sent in parts over several connections trains exactly, to the last bit, as what is sent whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from local_workers import Trained, scheduled, trained, workers

from testbed.plan.microbatches import resized
from testbed.planning.resolve import make_plan
from testbed.session.deadlines import Deadline
from testbed.spec import load_topology, load_workload
from testbed.spec.document import validate
from testbed.spec.topology import Topology

ROOT = Path(__file__).parents[2]
ITERATIONS = 3
PATIENCE = Deadline(60, "a test")
NETWORK = {
    "name": "pair",
    "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}},
    "links": [{"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"}],
}
REPLICAS = {
    "parallelism": "{pipeline: 2, data: 2}",
    "placement": "[a/0, b/0]",
    "data_parallel": "{replicas: [[a/1, b/1]], algorithm: hierarchical, chunks: 2}",
}
TENSOR = {"parallelism": "{pipeline: 2, tensor: 2}"}
SHAPES = {"pipeline": {"parallelism": "{pipeline: 4}"}, "replicas": REPLICAS, "tensor ranks": TENSOR}


def taken(directory: Path, shape: str, streams: int, receives: str, *, swapping: bool = False) -> Trained:
    settings = {
        **SHAPES[shape],
        "streams": str(streams),
        "receives": receives,
        "microbatches": "4",
        "model": "{layers: 8, d_model: 16, heads: 2, sequence: 8}",
        "microbatch_size": "1",
        "message": "20003 B",
        "pacing": "{F: 0.3 ms, I: 0.2 ms, W: 0.4 ms}",
        "memory": "8",
    }
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)
    network = (
        validate(Topology, NETWORK, "pair.yaml")
        if shape != "pipeline"
        else load_topology(ROOT / "topologies/two-dc-longhaul.yaml")
    )
    plan = make_plan(network, workload)
    swaps = {}
    if swapping:
        cut = replace(plan, jobs=(replace(plan.jobs[0], workload=resized(workload, 2)),))
        swaps = {1: scheduled(cut, "1f1b"), 2: scheduled(plan, "zb-v")}
    directory.mkdir()
    with workers(4, directory, PATIENCE, streams) as loop:
        return trained(loop, scheduled(plan, "1f1b"), ITERATIONS, PATIENCE, swaps)


@pytest.mark.parametrize("shape", SHAPES)
def test_several_streams_train_as_one_does(tmp_path: Path, shape: str) -> None:
    whole = taken(tmp_path / "whole", shape, 1, "early")
    for streams, receives in ((3, "early"), (16, "late")):
        parts = taken(tmp_path / str(streams), shape, streams, receives)
        assert parts.losses == whole.losses
        assert parts.gradients.keys() == whole.gradients.keys()
        for name, gradient in whole.gradients.items():
            assert np.array_equal(parts.gradients[name], gradient), name
        assert parts.memory == whole.memory  # parts are sent from where the whole lies


def test_swaps_send_in_parts_as_well(tmp_path: Path) -> None:
    """What uses up receives that are posted, one for each part, and weights that move."""
    whole = taken(tmp_path / "whole", "pipeline", 1, "early", swapping=True)
    parts = taken(tmp_path / "parts", "pipeline", 3, "early", swapping=True)
    assert parts.losses == whole.losses
    for name, gradient in whole.gradients.items():
        assert np.array_equal(parts.gradients[name], gradient), name
