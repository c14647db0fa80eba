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
STATES = "every=2,to=neighbour,state=1 MB,save=0"


def asked(place: Path) -> dict[str, Asked]:
    (place / "slow.yaml").write_text(NETWORK)
    for name, parameters in (("large.yaml", "2.3 MB"), ("small.yaml", "100 kB")):
        (place / name).write_text(JOB % parameters)
    return {
        "collectives": Asked(planned(place, place / "slow.yaml", place / "large.yaml")),
        "states": Asked(planned(place, place / "slow.yaml", place / "small.yaml", "--checkpoint", STATES)),
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
