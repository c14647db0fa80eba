"""Jobs together and each alone under the virtual clock: what they cost each other; nothing where nothing is shared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from in_process import run_testbed
from one_boot import MARKS, Asked, Measured, planned

from testbed.cli.report import judged_again

pytestmark = MARKS

TOPOLOGY = """
name: two-links
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}, rome: {nodes: 1}, oslo: {nodes: 1}}
links:
  - {between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}
  - {between: [rome, oslo], delay: 5 ms, rate: 200 Mbit/s}
"""
WORKLOAD = """
model: {layers: 2, d_model: 32, heads: 2, sequence: 32}
parallelism: {pipeline: 2}
microbatches: 6
microbatch_size: 2
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
message: 300 kB
memory: 6
schedules: [gpipe]
iterations: 2
warmup: 1
"""
JOBS = {"first": "[paris/0, warsaw/0]", "second": "[paris/1, warsaw/1]", "apart": "[rome/0, oslo/0]"}


def asked(place: Path) -> dict[str, Asked]:
    (place / "net.yaml").write_text(TOPOLOGY)
    for name, nodes in JOBS.items():
        (place / f"{name}.yaml").write_text(f"name: {name}\nplacement: {nodes}\n{WORKLOAD}")
    files = [place / f"{name}.yaml" for name in ("net", *JOBS)]
    return {"jobs": Asked(planned(place, *files, "--alone"))}


def test_what_jobs_cost_each_other_is_measured_and_nothing_where_nothing_is_shared(
    measured: Mapping[str, Measured],
) -> None:
    _, document, out, _ = measured["jobs"]
    shown = run_testbed("report", out, COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    assert max(len(line) for line in shown.stdout.splitlines() if str(out) not in line) <= 80
    together = [row for row in document["schedules"] if row["alone_of"] is None]
    assert [row["job"] for row in together] == list(JOBS)
    for row in document["schedules"]:
        assert row["trusted"], row
        assert abs(row["error"]) <= 0.001, row
    for row in together:
        assert row["slowdown_measured"] == pytest.approx(row["slowdown_predicted"], rel=1e-3)
    *sharing, apart = (row["slowdown_measured"] for row in together)
    assert min(sharing) > 1.1
    assert apart == pytest.approx(1.0, abs=1e-3)
    (case,) = document["fairness"]
    assert case["filled"]["rates_bps"] == [pytest.approx(rate) for rate in (100e6, 100e6, 200e6)]
    assert case["measured"]["most_flows"] == case["filled"]["most_flows"] == 2
    assert case["measured"]["rates_bps"] == pytest.approx(case["predicted"]["rates_bps"], rel=2e-3)
    assert case["measured"]["fct_worst_s"] == pytest.approx(case["predicted"]["fct_worst_s"], rel=2e-3)
    assert judged_again(out, document)[1] == []
