"""Tensor ranks, beside replicas and stages, train as one process does; `benchmarks/parity.py` has every cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tensor_ranks_train_as_one_process_does() -> None:
    """Split backward, sub-blocks, two stages to a rank, late receives; beside replicas, and four of them."""
    quick = ["--mesh=2,2,2", "--mesh=1,2,4", "--family=zb-v", "--family=crosspipe-greedy", "--variant=late"]
    command = [sys.executable, "benchmarks/parity.py", *quick]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert len(rows) == 2 * 2
    for variant, dtype, family, *differences in rows:
        assert len(differences) == 2, (variant, family)
        assert all(0 < float(cell) < {"float64": 1e-12, "float32": 1e-5}[dtype] for cell in differences)
