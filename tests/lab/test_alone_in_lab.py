"""Two jobs together and each alone on the real clock: measured, judged, shown, and told again from the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from data_format import documented

from testbed.cli.report import judged_again

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]  # on a machine that has much to do

ROOT = Path(__file__).parents[2]
DEADLINE_S = 200
RELAY = f"{Path(__file__).with_name('measured_once.py')}:Relay"
TOPOLOGY = """
name: shared
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}}
links: [{between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}]
"""
WORKLOAD = """
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2}
microbatches: 4
microbatch_size: 2
pacing: {F: 30 ms, I: 30 ms, W: 30 ms}
message: 100 kB
memory: 4
iterations: 5
warmup: 1
schedules: [1f1b]
"""


def test_jobs_are_measured_together_and_alone(tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text(TOPOLOGY)
    for number, name in enumerate(("one", "two")):
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\nplacement: [paris/{number}, warsaw/{number}]\n{WORKLOAD}"
        )
    files, out = [str(tmp_path / f"{name}.yaml") for name in ("shared", "one", "two")], tmp_path / "out"
    words = *files, "--alone", "--shaper", RELAY, "--no-picture", "--out", str(out)
    command = [sys.executable, "-m", "testbed", "run", "--again=0", *words]
    screen = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        command, cwd=ROOT, env=screen, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode in (0, 5), done.stderr  # 5: on a noisy machine
    assert max(len(line) for line in done.stdout.splitlines() if "untrusted" not in line and str(out) not in line) <= 80
    document = json.loads((out / "comparison.json").read_text())
    require_rows(document["schedules"])
    (case,) = document["fairness"]
    assert case["jobs"] == ["one", "two"]
    assert case["filled"]["rates_bps"] == [pytest.approx(100e6)] * 2
    assert case["filled"]["most_flows"] == case["measured"]["most_flows"] == 2
    assert all(1e6 < rate <= 200e6 for rate in case["measured"]["rates_bps"])
    links = pd.read_parquet(out / "links.parquet").groupby("schedule")["wire_bytes"].sum()
    assert links["1f1b, one alone"] + links["1f1b, two alone"] == pytest.approx(links["1f1b"], rel=0.05)
    costs = json.loads((out / "message_costs.json").read_text())
    assert set(costs["alone"]) == {"one", "two"}
    assert {flow["source_rank"] for flow in costs["alone"]["two"]["extra_s"]} == {2, 3}
    assert judged_again(out, document)[1] == []
    shown = subprocess.run(
        [sys.executable, "-m", "testbed", "report", str(out), "--details"],
        cwd=ROOT,
        env=screen,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    ).stdout
    assert "measured, alone and together" in shown
    assert "two-layer metric: most flows on a link" in shown


def require_rows(rows: list[dict[str, object]]) -> None:
    """One of every job together, and one alone."""
    assert [(row["label"], row["job"], row["alone_of"]) for row in rows] == [
        ("1f1b", "one", None),
        ("1f1b", "two", None),
        ("1f1b, one alone", "one", "1f1b"),
        ("1f1b, two alone", "two", "1f1b"),
    ]
    several = documented("An entry of `schedules` in comparison.json: of several jobs")
    for row, alone in zip(rows, [*rows[2:], *rows[2:]], strict=True):
        assert several <= set(row)
        assert row["measured_alone_s"] == alone["measured_s"]
        assert row["slowdown_measured"] == row["measured_s"] / alone["measured_s"]  # type: ignore[operator]
        assert row["predicted_on_this_host_s"]
