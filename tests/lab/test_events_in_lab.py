"""A job arrives and another departs while a lab trains on the real clock: who trained when, and on whose links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jobs_that_move
import pandas as pd
import pytest
from data_format import documented

from testbed.results.load import load_traces
from testbed.results.recheck import name_of, recheck

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240
RELAY = f"{Path(__file__).with_name('measured_once.py')}:Relay"
OPTIONS = (
    *("--policy", "greedy", "--elephants-from", "100 kB", "--arrive", "second@1", "--depart", "first@4"),
    "--no-picture",
    "--again=0",
)


def test_jobs_come_and_go(tmp_path: Path) -> None:
    files, out = jobs_that_move.files(tmp_path, slot="20 ms"), tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "run", *files, *OPTIONS, "--out", str(out), "--shaper", RELAY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in (0, 5), done.stderr  # a busy machine may not be trusted
    assert "1f1b with second without first: " in " ".join(done.stdout.split())  # what the event cost, in the sentence
    document = json.loads((out / "comparison.json").read_text())
    assert [(row["label"], row["job"]) for row in document["schedules"]] == [
        ("1f1b", "first"),
        ("1f1b with second", "first"),
        ("1f1b with second", "second"),
        ("1f1b with second without first", "second"),
    ]
    again = recheck(out)
    for row in document["schedules"]:
        assert not [check for check in row["checks"] if "one process" in check["question"] and not check["ok"]]
        assert not [check for check in row["checks"] if "off the plan" in check["question"] and not check["ok"]]
        found = [check._asdict() | {"ok": check.ok} for check in again[name_of(row)]]
        assert json.loads(json.dumps(found)) == row["checks"]
    require_rounds(out)
    events = document["events"]
    where_stages_move = {"weights"}
    assert set(events[0]) == documented("comparison.json: an entry of `events`") - where_stages_move
    assert set(events[0]["iterations"][0]) == documented("comparison.json: an entry of `iterations`")
    assert all(one["choosing_s"] > 0 and one["enforcing_s"] > 0 for one in events)


def require_rounds(out: Path) -> None:
    """Round 0 warms up, as does the one in which the second job arrives."""
    rows = pd.read_parquet(out / "iterations.parquet")
    counted = rows[~rows["warmup"]].groupby(["schedule", "job"])["iteration"].apply(list).to_dict()
    assert counted == {
        ("1f1b", 0): [1],
        ("1f1b with second", 0): [3, 4],
        ("1f1b with second", 1): [3, 4],
        ("1f1b with second without first", 1): [5, 6],
    }
    of_second = rows[rows["schedule"] == "1f1b with second without first"]
    assert of_second["iteration"].tolist() == [2, 3, 4, 5, 6]  # all that it trained: what numerics compare
    traces = load_traces(out)
    ranks = {label: set(trace.actions["rank"].tolist()) for (label, _), trace in traces.items()}
    assert ranks == {"1f1b": {0, 1, 2, 3}, "1f1b with second": set(range(6)), "1f1b with second without first": {4, 5}}
