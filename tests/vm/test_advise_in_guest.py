"""`testbed advise --confirm` on the smallest job: the best is trained, and takes what was predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.vm.kernel import Kernel

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

TOPOLOGY = """
name: two
datacenters: {paris: {nodes: 1}, warsaw: {nodes: 1}}
links: [{between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}]
"""
WORKLOAD = """
name: smallest
model: {layers: 4, d_model: 16, heads: 1, sequence: 16}
parallelism: {pipeline: 2}
microbatches: 4
microbatch_size: 2
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
message: 100 kB
memory: 4
schedules: [1f1b, zb-h1]
iterations: 2
warmup: 1
"""


def test_the_best_takes_what_was_predicted(tmp_path: Path, time_travel_kernel: Kernel) -> None:
    for name, text in (("net", TOPOLOGY), ("job", WORKLOAD)):
        (tmp_path / f"{name}.yaml").write_text(text)
    words = ("--axes", "2x1x1", "--axes", "1x1x2/data", "--confirm", "1", "--out", "confirmed", "--json", "-q")
    done = run_testbed("advise", "net.yaml", "job.yaml", *words, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    best, *others = json.loads(done.stdout)["candidates"]
    assert best["measured"]["trusted"], best
    assert best["measured"]["measured_s"] == pytest.approx(best["predicted_s"], rel=1e-3)
    assert all(one["predicted_s"] >= best["predicted_s"] and "measured" not in one for one in others)
    # kept as any run is
    shown = run_testbed("report", tmp_path / "confirmed/best-01")
    assert shown.returncode == 0, shown.stderr
    assert "trusted" in shown.stdout
