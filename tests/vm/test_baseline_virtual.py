"""A kept baseline run again in a guest: found the same, and a longer slot on one rank is caught."""

from __future__ import annotations

import json
import shutil
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


def test_a_kept_run_is_found_the_same_and_a_longer_slot_is_caught(time_travel_kernel: Kernel, tmp_path: Path) -> None:
    """Both in one boot: the kept plan, and one with the same figures for a slot half a per cent longer on a rank."""
    original, longer, runs = ROOT / "results/baselines" / SMALL, tmp_path / "longer", tmp_path / "runs"
    shutil.copytree(original, longer)
    plan = (longer / "workload.yaml").read_text()
    assert "F: 0.02 s," in plan
    (longer / "workload.yaml").write_text(plan.replace("F: 0.02 s,", "F: [20 ms, 20 ms, 20.1 ms, 20 ms],"))
    done = baseline("check", SMALL, longer, "--out", runs, "--json", "--quiet")
    assert done.returncode == 1, done.stdout + done.stderr
    same, slower = json.loads(done.stdout)["baselines"]
    assert {finding["verdict"] for finding in same["findings"]} == {"same"}
    assert {finding["schedule"] for finding in same["findings"]} == {"1f1b", "crosspipe-greedy"}
    measured = {f["schedule"]: f["verdict"] for f in slower["findings"] if f["quantity"] == "measured"}
    assert measured == {"1f1b": "slower", "crosspipe-greedy": "slower"}
    require_kept_again(runs / SMALL, original, tmp_path / "kept", time_travel_kernel)


def require_kept_again(run: Path, original: Path, kept: Path, kernel: Kernel) -> None:
    """The run is saved as a baseline that says what the original says."""
    done = baseline("save", "again", "--run", run, "--baselines", kept)
    assert done.returncode == 0, done.stderr
    before, now = (json.loads((place / "baseline.json").read_text()) for place in (original, kept / "again"))
    assert now["environment"]["kernel"]["sha256"] == kernel.sha256
    assert {key: now[key] for key in ("mode", "seed", "shaper", "tolerances")} == {
        key: before[key] for key in ("mode", "seed", "shaper", "tolerances")
    }
    # a run keeps its plan, which has no word for fibre: delays are the same, and so is all that follows from them
    directions = [load_topology(place / "topology.yaml").directions() for place in (original, kept / "again")]
    assert [(d.delay_s, d.rate_bps) for d in directions[0]] == [(d.delay_s, d.rate_bps) for d in directions[1]]
    workloads = [load_workload(place / "workload.yaml") for place in (original, kept / "again")]
    assert workloads[0].model_copy(update={"description": ""}) == workloads[1].model_copy(update={"description": ""})
    assert baseline("check", "--predict-only", "--baselines", kept).returncode == 0
