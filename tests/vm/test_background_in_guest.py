"""Traffic beside jobs under the virtual clock: real datagrams, as predicted under both shapers, counted as planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from one_boot import MARKS, Asked, Measured, planned

from testbed.planning.prediction import iteration_times
from testbed.results.run_files import RunFiles
from testbed.trace.predictions import predicted_times_s

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
LONGER = """
name: longer
datacenters: {a: {nodes: 2}, b: {nodes: 2}, c: {nodes: 2}}
links:
  - {between: [a, b], delay: 3.1 ms, rate: 170 Mbit/s}
  - {between: [b, c], delay: 7.7 ms, forward: {rate: 130 Mbit/s}, reverse: {rate: 210 Mbit/s}}
background:
  - {from: c, to: a, rate: 71 Mbit/s}
  - {from: a, to: c, rate: 23 Mbit/s}
  - {from: a, to: c, rate: 0 bit/s, at: 211 ms}
  - {from: a, to: c, rate: 109 Mbit/s, at: 317 ms}
"""
EVENTS = "link b--c rate 116 Mbit/s at iteration 1 + 37 ms", "link a--b down for 13 ms at iteration 0 + 21 ms"
LOSS = "link a--b loss 40 % at iteration 1 + 5 ms for 120 ms"
NAMES = "netem", "relay, events", "two jobs, freely"


def asked(place: Path) -> dict[str, Asked]:
    files = ("net.yaml", TOPOLOGY), ("job.yaml", JOB), ("traffic.csv", TRAFFIC), ("longer.yaml", LONGER)
    for name, text in files:
        (place / name).write_text(text)
    plan = planned(place, place / "net.yaml", place / "job.yaml", "--background", place / "traffic.csv")
    found = {f"beside, {shaper}": Asked(plan, shaper) for shaper in ("netem", "relay")}
    over = [place / "longer.yaml", place / "job.yaml"]
    longer = ["--iterations", "4", "--schedule", "1f1b"]
    a_to_c = [*longer, "--set", "placement=[a/0, c/0]"]
    happens = [word for text in EVENTS for word in ("--event", text)]
    (place / "other.yaml").write_text(JOB.replace("name: job", "name: other").replace("9 ms", "7 ms"))
    plans = {
        NAMES[0]: planned(place, *over, *a_to_c),
        NAMES[1]: planned(place, *over, *a_to_c, *happens),
        NAMES[2]: planned(place, *over, place / "other.yaml", *longer, "--rounds", "free"),
    }
    lossy = planned(place, *over, *longer, "--set", "placement=[a/0, a/1]", "--event", LOSS)
    found |= {f"lost, {shaper}": Asked(lossy, shaper) for shaper in ("netem", "relay")}
    return found | {name: Asked(one, "relay" if name == NAMES[1] else "netem") for name, one in plans.items()}


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


@pytest.mark.parametrize("name", NAMES)
def test_over_several_links_with_rates_that_change(name: str, measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured[name]
    files = RunFiles(out)
    for number, row in enumerate(document["schedules"]):
        assert row["trusted"], row["reasons"]
        rows = [each for each in files.rows(row["label"], number) if not each.warmup]
        expected_s = predicted_times_s(
            files.parts(row["label"], "predicted")[number], [each.iteration for each in rows]
        )
        if name == NAMES[2]:
            assert abs(row["error"]) <= 5e-4
            continue
        assert len({round(time_s, 7) for time_s in expected_s.tolist()}) > 1, "iterations differ"
        assert [each.makespan_s for each in rows] == pytest.approx(expected_s.tolist(), rel=5e-4)
    for direction in files.traffic(document["schedules"][0]["label"]):
        assert direction.counted_bytes == pytest.approx(direction.planned_bytes, rel=0.01)


@pytest.mark.parametrize("shaper", ["netem", "relay"])
def test_datagrams_that_an_event_loses_are_no_traffic_elsewhere(shaper: str, measured: Mapping[str, Measured]) -> None:
    """Nobody sends them again: what links carried was too little for their routes."""
    _, document, out, _ = measured[f"lost, {shaper}"]
    (row,) = document["schedules"]
    assert row["trusted"], row["reasons"]
    found = {direction.direction: direction for direction in RunFiles(out).traffic(row["label"])}
    sent, left = found["c->b"].counted_bytes, found["b->a"].counted_bytes
    assert left < 0.95 * sent, "or none of them was lost"
    assert found["b->a"].planned_bytes == pytest.approx(left, rel=0.01)
