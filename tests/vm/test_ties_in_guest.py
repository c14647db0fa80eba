"""A prediction that hangs on who comes first, under the virtual clock: a range from prediction to verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.vm import kernel

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import ranges

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
NUMBER, SEED, SCHEDULE = 1, 1, "dualpipe-v"
"""A plan of the benchmark with tensor ranks: who comes first decides over 3 %."""


def test_a_run_is_judged_by_the_range_and_says_so(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    files, out = ranges.files(tmp_path, NUMBER, SEED), tmp_path / "results"
    words = ["run", *map(str, files), "--schedule", SCHEDULE, "--clock", "virtual", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "who comes first" in done.stderr  # before it is measured
    assert " s by who comes first; trusted" in " ".join(done.stdout.split())  # lines are of 80 columns
    (row,) = json.loads((out / "comparison.json").read_text())["schedules"]
    low_s, high_s = row["predicted_low_s"], row["predicted_high_s"]
    assert high_s > low_s * 1.01
    assert low_s * 0.9995 <= row["measured_s"] <= high_s * 1.0005
    assert row["trusted"], row["reasons"]
