"""A kept baseline run again in a guest: found the same, and a longer slot on one rank is caught."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.spec import load_topology, load_workload
from testbed.vm.kernel import Kernel

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]  # a boot takes minutes on a machine that has much to do

ROOT = Path(__file__).parents[2]
SMALL = "small-longhaul"
DEADLINE_S = 240


def baseline(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "testbed", "baseline", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_a_kept_run_is_found_the_same_and_can_be_kept_again(time_travel_kernel: Kernel, tmp_path: Path) -> None:
    runs, kept = tmp_path / "runs", tmp_path / "baselines"
    done = baseline("check", SMALL, "--out", runs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("within tolerance: 1 baseline, 2 schedules")
    done = baseline("save", "again", "--run", runs / SMALL, "--baselines", kept)
    assert done.returncode == 0, done.stderr
    original = ROOT / "results/baselines" / SMALL
    before, now = (json.loads((place / "baseline.json").read_text()) for place in (original, kept / "again"))
    assert now["environment"]["kernel"]["sha256"] == time_travel_kernel.sha256
    assert {key: now[key] for key in ("mode", "seed", "shaper", "tolerances")} == {
        key: before[key] for key in ("mode", "seed", "shaper", "tolerances")
    }
    # a run keeps its plan, which has no word for fibre: delays are the same, and so is all that follows from them
    directions = [load_topology(place / "topology.yaml").directions() for place in (original, kept / "again")]
    assert [(d.delay_s, d.rate_bps) for d in directions[0]] == [(d.delay_s, d.rate_bps) for d in directions[1]]
    workloads = [load_workload(place / "workload.yaml") for place in (original, kept / "again")]
    assert workloads[0].model_copy(update={"description": ""}) == workloads[1].model_copy(update={"description": ""})
    assert baseline("check", "--predict-only", "--baselines", kept).returncode == 0


def test_a_slot_lengthened_by_half_a_per_cent_on_one_rank_is_caught(time_travel_kernel: Kernel) -> None:
    done = baseline("check", SMALL, "--set", "pacing.F=[20 ms, 20 ms, 20.1 ms, 20 ms]", "--json", "--quiet")
    assert done.returncode == 1, done.stdout + done.stderr
    findings = json.loads(done.stdout)["baselines"][0]["findings"]
    slower = {finding["schedule"] for finding in findings if finding["quantity"] == "measured"}
    assert slower == {"1f1b", "crosspipe-greedy"}
    assert all(finding["verdict"] == "slower" for finding in findings)
