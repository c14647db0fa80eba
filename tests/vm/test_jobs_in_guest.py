"""Two different jobs on one link under the virtual clock: each as predicted beside the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from in_process import run_testbed
from one_boot import MARKS, Asked, Measured, planned

from testbed.planning import file
from testbed.results.recheck import name_of, recheck

pytestmark = MARKS

TOPOLOGY = """
name: shared
datacenters: {paris: {nodes: 3}, warsaw: {nodes: 3}}
links: [{between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}]
"""
COMMON = "microbatch_size: 2\nmemory: 8\niterations: 2\nwarmup: 1\n"
WIDE = """
name: wide
model: {layers: 4, d_model: 32, heads: 2, sequence: 32}
parallelism: {pipeline: 2, data: 2}
microbatches: 6
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
message: 400 kB
schedules: [zb-h1]
"""
NARROW = """
name: narrow
model: {layers: 2, d_model: 32, heads: 2, sequence: 32}
parallelism: {pipeline: 2}
microbatches: 8
pacing: {F: 8 ms, I: 8 ms, W: 8 ms}
message: 250 kB
schedules: [gpipe]
seed: 2
"""


def asked(place: Path) -> dict[str, Asked]:
    for name, text in (("shared", TOPOLOGY), ("wide", WIDE + COMMON), ("narrow", NARROW + COMMON)):
        (place / f"{name}.yaml").write_text(text)
    return {"jobs": Asked(planned(place, *(place / f"{name}.yaml" for name in ("shared", "wide", "narrow"))))}


def test_jobs_take_what_is_predicted_beside_each_other(measured: Mapping[str, Measured]) -> None:
    plan, document, out, _ = measured["jobs"]
    shown = run_testbed("report", out, COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    assert max(len(line) for line in shown.stdout.splitlines() if str(out) not in line) <= 80
    assert [row["job"] for row in document["schedules"]] == ["wide", "narrow"]
    for row in document["schedules"]:
        assert row["trusted"], row
        assert abs(row["error"]) <= 0.001, row
        assert row["slowdown_predicted"] > 1.2
        assert row["measured_s"] > 1.2 * row["predicted_alone_s"]
    assert {name_of(row): True for row in document["schedules"]} == {
        name: all(check.ok for check in checks) for name, checks in recheck(out).items()
    }
    counted = pd.read_parquet(out / "links.parquet")
    assert (counted["wire_bytes"] / counted["planned_bytes"] - 1).abs().max() <= 0.01
    actions = pd.read_parquet(out / "actions.parquet").query("source == 'measured'")
    assert {job: set(rows["rank"]) for job, rows in actions.groupby("job")} == {0: {0, 1, 2, 3}, 1: {4, 5}}
    picture = (out / "timeline.svg").read_text()
    assert "next job" in picture
    assert file.read(out) == plan, "what would be repeated is not what was run"
