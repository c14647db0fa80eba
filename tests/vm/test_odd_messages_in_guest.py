"""Messages whose size is no whole number of elements, on a link where a byte takes 80 us."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from one_boot import MARKS, Asked, Measured, planned

pytestmark = MARKS

SLOW = """
name: slow
datacenters: {a: {nodes: 1}, b: {nodes: 1}}
links:
  - {between: [a, b], delay: 1 ms, rate: 100 kbit/s}
"""
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
    for name, text in (("slow.yaml", SLOW), ("odd.yaml", JOB)):
        (place / name).write_text(text)
    return {"odd messages": Asked(planned(place, place / "slow.yaml", place / "odd.yaml"), light=False)}


def test_what_travels_is_what_is_predicted(measured: Mapping[str, Measured]) -> None:
    (row,) = measured["odd messages"].document["schedules"]
    assert row["trusted"], row["reasons"]
