"""A schedule is trained again where the machine was busy otherwise; what was measured meanwhile is told, not kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pandas as pd
import pytest

from testbed.results.recheck import recheck
from testbed.thresholds import DISTURBED_SHARE

pytestmark = [pytest.mark.root, pytest.mark.alone]

ROOT = Path(__file__).parents[2]
PLAN = ("topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml")
SMALL = (
    *("--set=microbatches=4", "--set=pacing={F: 10 ms, I: 10 ms, W: 10 ms}", "--set=schedules=[1f1b]"),
    *("--set=warmup=1", "--iterations=3", "--no-picture"),
)
ELASTIC = (
    *("--set=parallelism.data=2", "--set=parallelism.pipeline=2"),
    *("--elastic=restart=1 s", "--failure=rank 3 at 0.6 s"),
)
BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(60))
while os.getppid() == int(sys.argv[2]):
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
    time.sleep(0.03)
"""
"""Takes two fifths of a processor from workers that run at a lower real-time priority."""


def test_a_schedule_is_trained_again_and_the_first_time_is_told(tmp_path: Path) -> None:
    trained_twice(tmp_path / "out")


def test_a_replica_that_was_lost_is_there_again(tmp_path: Path) -> None:
    trained_twice(out := tmp_path / "out", *ELASTIC)
    (goodput,) = json.loads((out / "comparison.json").read_text())["goodput"]
    there = [span["replicas"] for span in goodput["spans"] if span["what"] == "train"]
    assert [replicas for replicas, _ in groupby(there)] == [[0, 1], [0]]


def trained_twice(out: Path, *more: str) -> None:
    """A run, disturbed while it trains for the first time, whose results are those of the second time alone."""
    busy = list[subprocess.Popen[bytes]]()
    command = [sys.executable, "-m", "testbed", "run", *PLAN, *SMALL, *more, "--again=1", "--out", str(out)]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    try:
        assert run.stderr is not None
        for line in run.stderr:
            said.append(line.strip())
            if line.startswith("training 1f1b") and not busy:
                begun = [sys.executable, "-c", BUSY]
                busy = [subprocess.Popen([*begun, str(core), str(os.getpid())]) for core in os.sched_getaffinity(0)]
            elif line.startswith("  the machine was busy otherwise, which could explain"):
                if any(one.poll() is not None for one in busy):
                    pytest.skip("no process may have a real-time priority here")
                end(busy)
        assert run.wait(timeout=120) in (0, 5), "\n".join(said)
    finally:
        end(busy)
        run.kill()
        run.wait()
    assert said.count("training 1f1b ...") == 2
    entry = json.loads((out / "evidence.json").read_text())["1f1b"]["jobs"]["tiny-gpt-pp4"]
    ((explained, measured_s),) = [(one["explained"], one["measured_s"]) for one in entry["disturbed_before"]]
    assert explained > DISTURBED_SHARE.value
    (row,) = json.loads((out / "comparison.json").read_text())["schedules"]
    assert measured_s > row["predicted_s"]
    (note,) = [note for note in row["notes"] if note.startswith("trained 2 times: ")]
    assert f"disturbances could explain {explained:.1%} of the " in note
    (checks,) = recheck(out).values()
    assert note in [one for check in checks for one in check.notes]
    iterations, actions, links = (
        pd.read_parquet(out / f"{name}.parquet") for name in ("iterations", "actions", "links")
    )
    assert iterations["iteration"].tolist() == [0, 1, 2, 3]
    assert len(actions[actions["source"] == "measured"]) == iterations["actions"].sum()
    assert links["label"].is_unique


def end(busy: list[subprocess.Popen[bytes]]) -> None:
    for one in busy:
        one.kill()
        one.wait()
