"""A baseline on the real clock: kept with its control, and repeated in a lab here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import ExitCode

pytestmark = [pytest.mark.root, pytest.mark.alone]

ROOT = Path(__file__).parents[2]
PLAN = ("topologies/two-dc-metro.yaml", "workloads/tiny-gpt-pp4.yaml")
LINK = "{between: [wuqing, runze], delay: 5 ms, rate: 200 Mbit/s}"  # a busy machine carries this, too
SMALL = (
    *("--set", f"topology.links=[{LINK}]", "--set", "message=100 kB", "--set", "schedules=[zb-h1]"),
    *("--set", "microbatches=4", "--set", "model.layers=4", "--iterations", "3"),
    *("--set=model.d_model=16", "--set=model.sequence=16"),
    *("--set", "pacing={F: 15 ms, I: 15 ms, W: 15 ms}", "--set", "warmup=1"),
)
DEADLINE_S = 240


def baseline(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "testbed", "baseline", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_a_run_on_the_real_clock_is_kept_and_repeated(tmp_path: Path) -> None:
    kept = tmp_path / "baselines"
    done = baseline("save", "metro", *PLAN, *SMALL, "--clock", "real", "--baselines", kept)
    if done.returncode == ExitCode.UNTRUSTED:
        assert not (kept / "metro").exists()
        pytest.skip(f"this machine is too busy for a run that can be trusted: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    rows = json.loads((kept / "metro/comparison.json").read_text())["schedules"]
    assert all(row["control_s"] > 0 for row in rows)
    done = baseline("check", "--baselines", kept, "--json")
    assert done.returncode in (ExitCode.OK, ExitCode.REGRESSION, ExitCode.UNTRUSTED), done.stderr
    (checked,) = json.loads(done.stdout)["baselines"]
    assert checked["mode"] == "real"
    assert {finding["schedule"] for finding in checked["findings"]} == {"zb-h1"}
    # how far a busy machine moves them is not asserted; by what they are judged is
    assert {"measured", "control"} < set(checked["tolerances"])
    assert not {"speed-up", "error", "bubble"} & set(checked["tolerances"])
    assert {finding["verdict"] for finding in checked["findings"]} <= {
        "same",
        "slower",
        "faster",
        "machine",
        "untrusted",
    }
