"""Messages whose size is no whole number of elements, on a link where a byte takes 80 us, and on no link at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from in_process import run_testbed
from one_boot import MARKS, Asked, Measured, planned

from testbed.thresholds import MODEL_SHARE

pytestmark = MARKS

SLOW = """
name: slow
datacenters: {a: {nodes: 1}, b: {nodes: 1}}
links:
  - {between: [a, b], delay: 1 ms, rate: 100 kbit/s}
"""
NO_LINK = "{name: alone, datacenters: {a: {nodes: 2}}}"
JOB = """
name: odd-messages
model: {kind: linear, layers: 2, d_model: 3, sequence: 3, dtype: float64}
parallelism: {pipeline: 2}
microbatches: 2
microbatch_size: 1
pacing: {F: 2 ms, I: 2 ms, W: 2 ms}
message: 257 B
schedules: [1f1b]
iterations: 1
warmup: 1
"""


def asked(place: Path) -> dict[str, Asked]:
    for name, text in (("slow.yaml", SLOW), ("alone.yaml", NO_LINK), ("odd.yaml", JOB)):
        (place / name).write_text(text)
    return {
        "odd messages": Asked(planned(place, place / "slow.yaml", place / "odd.yaml"), light=False),
        "no link": Asked(planned(place, place / "alone.yaml", place / "odd.yaml")),
    }


def test_what_travels_is_what_is_predicted(measured: Mapping[str, Measured]) -> None:
    (row,) = measured["odd messages"].document["schedules"]
    assert row["trusted"], row["reasons"]


def test_a_network_without_a_link_is_measured(measured: Mapping[str, Measured], tmp_path: Path) -> None:
    """Nothing is counted there, so that no table of links is written: the run ended for that, when it was trained."""
    run = measured["no link"]
    (row,) = run.document["schedules"]
    assert row["trusted"], row["reasons"]
    assert row["measured_s"] == pytest.approx(row["predicted_s"], rel=MODEL_SHARE.value)
    assert not (run.out / "links.parquet").exists()
    for words in (("--recheck", "--details"), ("--html", tmp_path / "page.html")):
        done = run_testbed("report", run.out, *words)
        assert done.returncode == 0, done.stderr
