"""Links that are full both ways to the end: acknowledgements wait behind the last messages, and are to be through
before anything else begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from one_boot import MARKS, Asked, Measured, planned

from testbed.plan.traffic import acknowledgements_s
from testbed.thresholds import MODEL_SHARE

pytestmark = MARKS

NETWORK = """
name: slow
datacenters: {a: {nodes: 2}, b: {nodes: 2}}
links:
  - {between: [a, b], delay: 300 us, rate: 7 Mbit/s}
"""
JOB = """
name: replicas-apart
model: {kind: linear, layers: 2, d_model: 8, sequence: 4}
parallelism: {pipeline: 2, data: 2}
placement: [a/0, a/1]
data_parallel: {parameters: %s, replicas: [[b/0, b/1]]}
microbatches: 2
microbatch_size: 1
pacing: {F: 11 ms, I: 13 ms, W: 9 ms}
message: 30 kB
schedules: [zb-h1]
iterations: 4
warmup: 1
"""
CROSSED = (
    JOB.replace("layers: 2", "layers: 4")
    .replace("[a/0, a/1]", "[a/0, b/0]")
    .replace("[[b/0, b/1]]", "[[b/1, a/1]], sharding: none")
    .replace("schedules: [zb-h1]", "schedules: [zb-h1, zb-v]")
)
"""Pipelines go over the link that is full, there and back."""
STATES = "every=2,to=neighbour,state=1 MB,save=0"


def asked(place: Path) -> dict[str, Asked]:
    (place / "slow.yaml").write_text(NETWORK)
    for name, parameters in (("large.yaml", "2.3 MB"), ("small.yaml", "100 kB")):
        (place / name).write_text(JOB % parameters)
    (place / "crossed.yaml").write_text(CROSSED % "2.3 MB")
    crossed = place / "slow.yaml", place / "crossed.yaml"
    return {
        "collectives": Asked(planned(place, place / "slow.yaml", place / "large.yaml")),
        "states": Asked(planned(place, place / "slow.yaml", place / "small.yaml", "--checkpoint", STATES)),
        "probes": Asked(
            planned(place, *crossed, "--schedule", "zb-h1", "--adapt", "ski-rental", "--vary", "microbatches=1")
        ),
        "swap": Asked(planned(place, *crossed, "--swap", "zb-v@2")),
    }


@pytest.mark.parametrize("name", ["collectives", "states"])
def test_the_next_iteration_finds_links_free(measured: Mapping[str, Measured], name: str) -> None:
    """Its first messages waited behind acknowledgements of the last collectives, and of states."""
    run = measured[name]
    (row,) = run.document["schedules"]
    assert row["trusted"], row["reasons"]
    assert row["measured_s"] == pytest.approx(row["predicted_s"], rel=MODEL_SHARE.value)


def test_the_wait_is_worth_more_than_what_is_allowed(measured: Mapping[str, Measured]) -> None:
    run = measured["collectives"]
    (row,) = run.document["schedules"]
    assert acknowledgements_s(run.plan, run.plan.cases[0]) > 2 * MODEL_SHARE.value * row["predicted_s"]


def test_a_controller_s_probes_find_links_free(measured: Mapping[str, Measured]) -> None:
    """They waited behind acknowledgements, and links as planned were believed to be others."""
    rows = measured["probes"].document["adaptation"]["iterations"]
    assert [row["changes"] for row in rows] == [[] for _ in rows]
    for row in rows:
        assert list(row["probes_s"].values()) == pytest.approx([300e-6 + 1500 * 8 / 7e6] * 2, rel=1e-4)


def test_so_does_what_a_swap_sends(measured: Mapping[str, Measured]) -> None:
    """Its bytes had acknowledgements of the iteration before it among them."""
    (event,) = measured["swap"].document["events"]
    (weights,) = event["weights"]
    assert weights["wire_bytes"] == weights["planned_wire_bytes"] > 0
    assert weights["took_s"] == pytest.approx(weights["predicted_s"], rel=0.03)
