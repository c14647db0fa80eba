"""Links that are not what the topology says: a run that has to be strict fails, as does one whose link carries nothing.

That others go on untrusted is in test_broken_labs.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
SHAPERS = Path(__file__).with_name("wrong_shapers.py")


def run(out: Path, shaper: str, *options: str) -> subprocess.CompletedProcess[str]:
    plan = "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml"
    few = "--set=microbatches=4", "--set=schedules=[1f1b]", "--set=warmup=1", "--iterations=2", "--again=0"
    small = *few, "--set=model.d_model=16", "--set=model.sequence=16", "--no-picture"
    command = [sys.executable, "-m", "testbed", "run", *plan, *small, "--shaper", f"{SHAPERS}:{shaper}"]
    return subprocess.run(
        [*command, "--out", str(out), *options], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )


def test_strict_refuses_a_wrong_link(tmp_path: Path) -> None:
    done = run(tmp_path / "results", "SlowWayBack", "--strict")
    assert done.returncode == 4, done.stderr
    assert "warsaw->paris" in done.stderr
    assert not json.loads((tmp_path / "results" / "links.json").read_text())["links"][1]["ok"]


def test_a_link_that_carries_nothing_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path / "results", "NoWayBack")
    assert done.returncode == 4, done.stderr
    assert "carry no probes" in done.stderr
    assert "waiting for a quiet machine" not in done.stderr
