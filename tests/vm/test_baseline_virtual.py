"""A kept baseline run again in a guest: found the same, and a longer slot on one rank is caught."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.baseline.settings import with_settings
from testbed.planning import file
from testbed.vm.kernel import Kernel

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]  # a boot takes minutes on a machine that has much to do

ROOT = Path(__file__).parents[2]
SMALL, JOBS = "small-longhaul", "two-jobs"


def test_a_kept_run_is_found_the_same_and_a_longer_slot_is_caught(time_travel_kernel: Kernel, tmp_path: Path) -> None:
    """In one boot: the kept plan, one with the same figures for a slot half a per cent longer on a rank, two jobs."""
    original, longer, runs = ROOT / "results/baselines" / SMALL, tmp_path / "longer", tmp_path / "runs"
    shutil.copytree(original, longer)
    plan = with_settings(file.read(longer), ["pacing.F=[20 ms, 20 ms, 20.1 ms, 20 ms]"], str(longer))
    file.write(plan, longer / file.NAME)
    done = run_testbed("baseline", "check", SMALL, longer, JOBS, "--out", runs, "--json", "--quiet")
    assert done.returncode == 1, done.stdout + done.stderr
    same, slower, jobs = json.loads(done.stdout)["baselines"]
    assert {finding["verdict"] for finding in jobs["findings"]} == {"same"}
    assert {finding["schedule"].partition(": ")[2] for finding in jobs["findings"]} == {"wide", "narrow"}
    assert {finding["verdict"] for finding in same["findings"]} == {"same"}
    assert {finding["schedule"] for finding in same["findings"]} == {"1f1b", "crosspipe-greedy"}
    measured = {f["schedule"]: f["verdict"] for f in slower["findings"] if f["quantity"] == "measured"}
    assert measured == {"1f1b": "slower", "crosspipe-greedy": "slower"}
    for name in (SMALL, JOBS):
        kept = tmp_path / f"kept-{name}"
        require_kept_again(runs / name, ROOT / "results/baselines" / name, kept, time_travel_kernel)


def require_kept_again(run: Path, original: Path, kept: Path, kernel: Kernel) -> None:
    """The run is saved as a baseline that says what the original says."""
    done = run_testbed("baseline", "save", "again", "--run", run, "--baselines", kept)
    assert done.returncode == 0, done.stderr
    before, now = (json.loads((place / "baseline.json").read_text()) for place in (original, kept / "again"))
    assert now["environment"]["kernel"]["sha256"] == kernel.sha256
    assert {key: now[key] for key in ("mode", "shaper", "tolerances")} == {
        key: before[key] for key in ("mode", "shaper", "tolerances")
    }
    assert file.read(kept / "again") == file.read(original)
    assert run_testbed("baseline", "check", "--predict-only", "--baselines", kept).returncode == 0
