"""The engine's constants, measured again on the virtual clock, are what the model is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.vm import kernel

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
DEADLINE_S = 280


def test_the_constants_of_the_model_are_those_that_are_measured(time_travel_kernel: kernel.Kernel) -> None:
    command = [sys.executable, "-m", "testbed", "calibrate", "topologies/two-dc-longhaul.yaml", "--clock", "virtual"]
    command += ["--engine", "workloads/tiny-gpt-pp4.yaml", "--size", "70 kB", "--json", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["clock"] == "virtual"
    (measured,) = document["sizes"]
    assert measured["message_bytes"] == 70_000
    assert abs(measured["across_s"]["median"]) <= 2e-6
    assert abs(measured["inside_s"]["median"]) <= 2e-6
    assert abs(measured["gloo_bytes"] - document["model"]["gloo_bytes"]) <= 10
    assert measured["ready_wait_s"]["p99"] < document["model"]["unnoticed_wait_s"]
