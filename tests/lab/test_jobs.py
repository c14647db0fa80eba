"""Two jobs in one lab on the real clock, the second case of which ends early: what was measured, and who is blamed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from data_format import documented
from processes import descendants

from testbed.results.load import load_run, load_traces
from testbed.results.recheck import name_of, recheck
from testbed.train.connected_workers import _CULPRIT_GRACE_S

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60
TOPOLOGY = """
name: shared
datacenters: {paris: {nodes: 3}, warsaw: {nodes: 3}}
links: [{between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}]
"""
WORKLOAD = """
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
microbatches: 4
microbatch_size: 2
pacing: {F: 30 ms, I: 30 ms, W: 30 ms}
message: 100 kB
memory: 4
iterations: 6
warmup: 1
"""
JOBS = {
    "wide": "name: wide\nparallelism: {pipeline: 2, data: 2}\nschedules: [1f1b, zb-h1]\n",
    "narrow": "name: narrow\nparallelism: {pipeline: 2}\nschedules: [1f1b, gpipe]\nseed: 2\n",
}


def worker_called(command: subprocess.Popen[str], name: str) -> int:
    """The process of one rank, which says so in its name."""
    for pid in sorted(descendants(command.pid)):
        if (Path("/proc") / str(pid) / "comm").read_text().startswith(f"{name} "):
            return pid
    raise AssertionError(f"no {name} found")


def parent_of(pid: int) -> int:
    return int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])


def test_every_job_has_its_own_results_and_a_dead_worker_is_named_with_its_job(tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text(TOPOLOGY)
    for name, text in JOBS.items():
        (tmp_path / f"{name}.yaml").write_text(text + WORKLOAD)
    files, out = [str(tmp_path / f"{name}.yaml") for name in ("shared", *JOBS)], tmp_path / "out"
    command = subprocess.Popen(
        [sys.executable, "-m", "testbed", "run", *files, "--again=0", "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert command.stderr is not None
        for line in command.stderr:
            if line.startswith("training zb-h1 + gpipe"):
                break
        else:
            raise AssertionError(f"it never began the second case, exit code {command.wait()}")
        worker = worker_called(command, "rank 5")
        waits_for_it = parent_of(worker)
        os.kill(waits_for_it, signal.SIGSTOP)  # as one that does not get its turn on a busy machine
        os.kill(worker, signal.SIGKILL)
        time.sleep(2 * _CULPRIT_GRACE_S)
        os.kill(waits_for_it, signal.SIGCONT)
        _, said = command.communicate(timeout=DEADLINE_S)
    finally:
        command.kill()
        command.communicate(timeout=DEADLINE_S)
    assert command.returncode == 4, said
    assert "rank 5 of narrow was killed by signal 9" in said, said
    assert "1 of 2 schedules finished" in said
    require_results(out)


def require_results(out: Path) -> None:
    """Of the case that was finished."""
    found = load_run(out)
    assert (found.schedules, found.asked, found.complete) == (["1f1b"], ["1f1b", "zb-h1 + gpipe"], False)
    rows = found.comparison["schedules"]
    assert [row["job"] for row in rows] == ["wide", "narrow"]
    again = recheck(out)
    for row in rows:
        checks = [check._asdict() | {"ok": check.ok} for check in again[name_of(row)]]
        assert json.loads(json.dumps(checks)) == row["checks"]
        assert not [check for check in row["checks"] if "one process" in check["question"] and not check["ok"]]
        assert row["predicted_on_this_host_s"] > 0
        # 4 microbatches there and back in every pipeline, and 2 collectives of 2 steps on both stages of two replicas
        assert sum(flow["messages"] for flow in row["messages"]) == found.comparison["iterations"] * (
            2 * (4 * 2) + 8 if row["job"] == "wide" else 4 * 2
        )
    trace = load_traces(out)["1f1b", "measured"]
    assert {job: set(trace.actions["rank"][trace.actions["job"] == job].tolist()) for job in (0, 1)} == {
        0: {0, 1, 2, 3},
        1: {4, 5},
    }
    iterations = pd.read_parquet(out / "iterations.parquet").query("schedule == '1f1b'")
    assert iterations["job"].tolist() == [0] * 7 + [1] * 7
    assert (iterations["makespan_s"] >= 4 * 0.09).all()
    links = pd.read_parquet(out / "links.parquet")
    assert (links["wire_bytes"] / links["planned_bytes"] - 1).abs().max() < 0.05
    for table in sorted(out.glob("*.parquet")):
        section = "iterations.parquet" if table.stem == "baseline_iterations" else table.name
        assert set(pq.read_schema(table).names) == documented(section), table.name
    assert set(found.manifest) == documented("manifest.json") - {"vm", "kept_guest", "workload_seed"}
    assert set(found.manifest["jobs"][0]) == documented("An entry of `jobs`")
