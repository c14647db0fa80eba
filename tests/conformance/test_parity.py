"""Tensor ranks, beside replicas and stages, train as one process does; `benchmarks/parity.py` has every cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tensor_ranks_train_as_one_process_does() -> None:
    """Split backward, sub-blocks, two stages to a rank, late receives; beside replicas, and four of them."""
    quick = ["--mesh=2,2,2", "--mesh=1,2,4", "--family=zb-v", "--family=crosspipe-greedy", "--variant=late"]
    command = [sys.executable, "benchmarks/parity.py", *quick, "--dtype=float64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert len(rows) == 2
    for *_, replicas, four in rows:
        assert 0 < float(replicas) < 1e-12
        assert 0 < float(four) < 1e-12
