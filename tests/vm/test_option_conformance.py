"""Options mean the same under both shapers and in the model: two rows of the whole table, in one virtual boot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.lab.loss import likely_losses
from testbed.thresholds import LOSS_CHANCE
from testbed.vm import kernel, machine

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
    assert verdicts[BY_CHANCE] == "losses as chance allows"
    assert verdicts[FULL] == "both drop, untrusted"
    lossy = next(line for line in table.splitlines() if BY_CHANCE in line)
    assert "relay" in lossy.split("|")[5]
    assert "netem" in lossy.split("|")[5]
    for shaper in ("relay", "netem"):  # who asks for losses is not told that something is wrong
        (row,) = json.loads(next(tmp_path.glob(f"loss*{shaper}*/comparison.json")).read_text())["schedules"]
        assert row["trusted"], row["reasons"]


def test_netem_in_real_time_has_queue_and_losses(packaged_machine: machine.Machine, tmp_path: Path) -> None:
    """Nothing here hangs on the time that a busy host takes: how many packets are lost, and that none is dropped."""
    (tmp_path / "lossy.yaml").write_text(
        "name: lossy\ndatacenters: {a: {nodes: 1}, b: {nodes: 1}}\n"
        "links: [{between: [a, b], delay: 5 ms, rate: 50 Mbit/s, queue: 1 MB, forward: {loss: 0.2}}]\n"
    )
    command = [sys.executable, "-m", "testbed", "calibrate", str(tmp_path / "lossy.yaml"), "--vm", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 5), done.stderr
    forward, _ = json.loads(done.stdout)["links"]
    sent, lost = forward["measured"]["losses"]["sent"], forward["measured"]["losses"]["lost"]
    fewest, most = likely_losses(sent, 0.2, LOSS_CHANCE)
    assert fewest <= lost <= most, forward
    assert forward["measured"]["dropped"] == 0, forward
