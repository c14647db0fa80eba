"""A run over links that are not what the topology says: it goes on untrusted, or fails if it has to be strict."""

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
    small = "--set=microbatches=4", "--set=schedules=[1f1b, gpipe]", "--set=warmup=1", "--iterations=2"
    command = [sys.executable, "-m", "testbed", "run", *plan, *small, "--shaper", f"{SHAPERS}:{shaper}"]
    return subprocess.run(
        [*command, "--out", str(out), *options], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_wrong_link_leaves_every_schedule_untrusted(tmp_path: Path) -> None:
    done = run(tmp_path / "results", "SlowWayBack")
    assert done.returncode == 5, done.stderr
    document = json.loads((tmp_path / "results" / "comparison.json").read_text())
    assert document["complete"]
    assert len(document["schedules"]) == 2
    for row in document["schedules"]:
        assert not row["trusted"]
        assert any("warsaw->paris" in reason and "one-way delay" in reason for reason in row["reasons"])
    assert "--clock virtual" in done.stderr
    kept = json.loads((tmp_path / "results" / "links.json").read_text())
    assert not kept["links"][1]["ok"]
    manifest = json.loads((tmp_path / "results" / "manifest.json").read_text())
    assert manifest["links"]["as_asked"] is False
    assert manifest["links"]["attempts"]["warsaw->paris"] == 6


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
