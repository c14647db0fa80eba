"""Options mean the same under both shapers and in the model: two rows of the whole table, in one virtual boot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.vm import kernel

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
MODELLED, BY_CHANCE, FULL = "all that the model has", "loss and jitter one way", "queue that overflows"


def test_relay_netem_and_model_agree(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    """`benchmarks/option_conformance.py` alone measures every option; it fails where something disagrees."""
    command = [sys.executable, "benchmarks/option_conformance.py", "--out", str(tmp_path)]
    for row in (MODELLED, BY_CHANCE, FULL):
        command += ["--only", row]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "option-conformance.md").read_text()
    verdicts = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in table.splitlines() if "|" in line}
    assert verdicts[MODELLED] == "agree"
    assert verdicts[BY_CHANCE] == "shapers agree"
    assert verdicts[FULL] == "both drop, untrusted"
    lossy = next(line for line in table.splitlines() if BY_CHANCE in line)
    assert "relay" in lossy.split("|")[5]
    assert "netem" in lossy.split("|")[5]
    for shaper in ("relay", "netem"):  # who asks for losses is not told that something is wrong
        (row,) = json.loads(next(tmp_path.glob(f"loss*{shaper}*/comparison.json")).read_text())["schedules"]
        assert row["trusted"], row["reasons"]
