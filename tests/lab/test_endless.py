"""A link that stays down under a real clock: the run ends within its deadline, and says what was down since when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
LINK = "wuqing--runze"
SMALL = (
    *("--set", "microbatches=4", "--set", "pacing={F: 10 ms, I: 10 ms, W: 10 ms}", "--set", "message=100 kB"),
    *("--set", "warmup=1", "--iterations", "3", "--schedule", "1f1b", "--no-picture"),
    *("--set=model.d_model=16", "--set=model.sequence=16", "--set=model.layers=2", "--set=parallelism.pipeline=2"),
    "--set=topology.datacenters={wuqing: {nodes: 1}, runze: {nodes: 1}}",
    f"--set=topology.links=[{{name: {LINK}, between: [wuqing, runze], delay: 5 ms, rate: 50 Mbit/s}}]",
)


@pytest.mark.parametrize(
    ("event", "down"),
    [
        (f"link {LINK} down at iteration 1 + 50 ms", "wuqing->runze, runze->wuqing send nothing"),
        ("datacenter runze down at iteration 1", "wuqing->runze, runze->wuqing send nothing"),
    ],
)
def test_it_is_an_error_with_all_names(event: str, down: str, tmp_path: Path) -> None:
    files = "topologies/two-dc-metro.yaml", "workloads/tiny-gpt-pp4.yaml"
    command = [sys.executable, "-m", "testbed", "run", *files, *SMALL, "--event", event, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 4, done.stderr
    said = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert said.startswith(f"error: {down} since ")
    assert "into measured iteration 1 (" in said
    assert "did not finish iteration 2 of 1f1b within 1" in said
    assert "rank 0" in said
