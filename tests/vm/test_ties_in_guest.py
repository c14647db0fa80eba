"""A prediction that hangs on who comes first, under the virtual clock: a range from prediction to verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.results.verdict import recheck
from testbed.vm import kernel

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
TOPOLOGY = """
name: clos
datacenters: {pod: {clos: {leaves: 2, spines: 3, hosts: 2, rate: 200 Mbit/s, delay: 100 us}}}
"""
WORKLOAD = """
name: tied
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2, tensor: 2}
placement: [pod-leaf0/0, pod-leaf0/1, pod-leaf1/0, pod-leaf1/1]
message: 300 kB
receives: late
microbatches: 4
microbatch_size: 2
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
memory: 4
schedules: [1f1b]
iterations: 2
warmup: 1
"""
"""Two tensor ranks send over one link at one instant: whose notice goes first decides over 18 ms."""


def test_a_run_is_judged_by_the_range_and_says_so(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    (tmp_path / "clos.yaml").write_text(TOPOLOGY)
    (tmp_path / "tied.yaml").write_text(WORKLOAD)
    out = tmp_path / "results"
    words = ["run", str(tmp_path / "clos.yaml"), str(tmp_path / "tied.yaml"), "--clock", "virtual", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "who comes first" in done.stderr  # before it is measured
    assert "by who comes first of messages that meet" in done.stdout
    (row,) = json.loads((out / "comparison.json").read_text())["schedules"]
    low_s, high_s = row["predicted_low_s"], row["predicted_high_s"]
    assert high_s > low_s * 1.01
    assert low_s * 0.9995 <= row["measured_s"] <= high_s * 1.0005
    assert row["trusted"], row["reasons"]
    (checks,) = recheck(out).values()
    assert all(check.ok for check in checks)
