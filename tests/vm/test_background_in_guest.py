"""Traffic beside a job under the virtual clock: real datagrams, as predicted under both shapers, counted as planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from one_boot import MARKS, Asked, Measured, planned

from testbed.planning.prediction import iteration_times
from testbed.results.run_files import RunFiles

pytestmark = MARKS

TOPOLOGY = """
name: beside
datacenters: {a: {nodes: 1}, b: {nodes: 1}}
links:
  - {between: [a, b], delay: 4 ms, rate: 200 Mbit/s}
"""
JOB = """
name: job
model: {layers: 2, d_model: 32, heads: 2, sequence: 32}
parallelism: {pipeline: 2}
microbatches: 4
microbatch_size: 2
pacing: {F: 9 ms, I: 9 ms, W: 9 ms}
message: 330 kB
memory: 4
schedules: [gpipe]
iterations: 2
warmup: 1
"""
TRAFFIC = "from,to,rate\na,b,131 Mbit/s\nb,a,143 Mbit/s\n"


def asked(place: Path) -> dict[str, Asked]:
    for name, text in (("net.yaml", TOPOLOGY), ("job.yaml", JOB), ("traffic.csv", TRAFFIC)):
        (place / name).write_text(text)
    plan = planned(place, place / "net.yaml", place / "job.yaml", "--background", place / "traffic.csv")
    return {f"beside, {shaper}": Asked(plan, shaper) for shaper in ("netem", "relay")}


@pytest.mark.parametrize("shaper", ["netem", "relay"])
def test_iterations_are_as_predicted_and_counters_have_all_datagrams(
    shaper: str, measured: Mapping[str, Measured]
) -> None:
    plan, document, out, _ = measured[f"beside, {shaper}"]
    (row,) = document["schedules"]
    assert row["trusted"], row["reasons"]
    assert abs(row["error"]) <= 5e-4
    (without_s,) = iteration_times(replace(plan, background=()), plan.cases[0])
    assert row["predicted_s"] > 1.1 * without_s
    for direction, flow in zip(RunFiles(out).traffic(row["label"])[:2], plan.background, strict=True):
        assert direction.counted_bytes == pytest.approx(direction.planned_bytes, rel=0.01)
        # of all three iterations, at least as long as predicted
        assert direction.planned_bytes > 3 * flow.rate_bps / 8 * row["predicted_s"]
