"""The control of a baseline on the real clock: a slower network is a regression, a slower machine is none.

Both are slower by far more than a busy machine makes any run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from slow_model import SLOWNESS

from testbed.baseline import store
from testbed.baseline.measure import of_run, with_remade
from testbed.baseline.tolerance import Mode, default_tolerances
from testbed.errors import ExitCode
from testbed.planning import file

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TOPOLOGY = """
name: pair
datacenters: {a: {nodes: 1}, b: {nodes: 1}}
links: [{between: [a, b], delay: 5 ms, rate: 50 Mbit/s}]
"""
WORKLOAD = """
name: slowed
model: {{kind: "{model}:Slowed", layers: 2}}
parallelism: {{pipeline: 2}}
microbatches: 3
microbatch_size: 1
message: 10 kB
pacing: {{F: 20 ms, I: 20 ms, W: 20 ms}}
schedules: [1f1b]
iterations: 2
warmup: 1
"""
DEADLINE_S = 240
CRAWL_S = 0.15
"""Of a layer's forward on the slower machine; its slot has 0.02 s."""


class Kept(NamedTuple):
    """A baseline."""

    directory: Path

    def check(self, slowness_s: float = 0.0) -> tuple[int, dict[str, Any]]:
        """Exit code and the only finding of its time, on a machine that is so much slower."""
        done = called("baseline", "check", str(self.directory), "--json", "--quiet", slowness_s=slowness_s)
        assert done.stdout, done.stderr
        document = json.loads(done.stdout)
        assert document["within_tolerance"] == (done.returncode == ExitCode.OK)
        (timed,) = [one for one in document["baselines"][0]["findings"] if one["quantity"] == "measured"]
        return done.returncode, timed


def called(*words: str, slowness_s: float = 0.0) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-m", "testbed", *words], {**os.environ, SLOWNESS: str(slowness_s)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Of a run that may be untrusted: how far a busy machine moves it does not matter here."""
    place = tmp_path_factory.mktemp("control")
    run = place / "run"
    topology, workload = place / "pair.yaml", place / "slowed.yaml"
    topology.write_text(TOPOLOGY)
    workload.write_text(WORKLOAD.format(model=HERE / "slow_model.py"))
    done = called("run", str(topology), str(workload), "--control", "--again=0", "--shaper", "relay", "--out", str(run))
    assert done.returncode in (ExitCode.OK, ExitCode.UNTRUSTED), done.stderr
    found = with_remade(of_run(run), file.read(run))
    (figures,) = found.figures
    assert figures.control_s is not None
    baseline = store.Baseline(
        name="kept",
        mode=Mode.real,
        saved="2026-01-01T00:00:00+00:00",
        reason="",
        quick=False,
        shaper="relay",
        tolerances=default_tolerances(Mode.real, paced=True, controlled=True),
        environment=dict(found.environment),
        figures=(replace(figures, trusted=True, reasons=()),),
    )
    directory = place / "kept"
    directory.mkdir()
    store.write(directory, baseline, file.read(run))
    return Kept(directory)


def test_a_slower_network_is_a_regression(kept: Kept, tmp_path: Path) -> None:
    """It is longer once the links have been measured: the link gate cannot see it."""
    slower = tmp_path / "slower"
    slower.mkdir()
    baseline = replace(store.read(kept.directory), shaper=f"{HERE / 'wrong_shapers.py'}:LongerLater")
    store.write(slower, baseline, store.plan_of(kept.directory))
    code, found = Kept(slower).check()
    assert (code, found["verdict"]) == (ExitCode.REGRESSION, "slower"), found
    assert "control" in found["note"]


def test_a_slower_machine_is_none_and_cannot_be_trusted(kept: Kept) -> None:
    code, found = kept.check(CRAWL_S)
    assert (code, found["verdict"]) == (ExitCode.UNTRUSTED, "machine"), found
    assert found["now"] > 2 * found["before"]
    assert "control moved" in found["note"]
