"""A queue that holds less than is under way: the gate's probe of the rate is paced, and readers are woken late.

And queues that are full while ranks connect: what TCP makes of that is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from one_boot import MARKS, Asked, Measured, planned

pytestmark = MARKS


def asked(place: Path) -> dict[str, Asked]:
    words = ("two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--iterations", "1", "--set", "message=100 kB")
    short = planned(place, *words, "--set", "links.0.queue=400 kB")
    (place / "unlike.yaml").write_text(UNLIKE)
    crossed = planned(
        place, place / "unlike.yaml", "tiny-gpt-pp4", *(word for one in CROSSED for word in ("--set", one))
    )
    return {"short-queue": Asked(short), "full while connecting": Asked(crossed)}


UNLIKE = """
name: unlike
datacenters: {ams: {nodes: 12, inside: {rate: 197 Mbit/s, delay: 20 us}}, ber: {nodes: 12}}
links:
- between: [ams, ber]
  delay: 22.962 ms
  rate: 113 Mbit/s
  queue: 399304 B
  reverse: {delay: 19.357 ms, rate: 143 Mbit/s, queue: 814000 B}
"""
CROSSED = (
    "model={kind: gpt, layers: 4, d_model: 16, heads: 2, sequence: 8}",
    "parallelism={pipeline: 2, data: 2}",
    "placement=[ber/0, ams/1]",
    "data_parallel={parameters: 865 kB, replicas: [[ber/2, ber/3]]}",
    "microbatches=7",
    "microbatch_size=1",
    "pacing={F: 16.247 ms, I: 33.089 ms, W: 12.319 ms}",
    "message=400 kB",
    "memory=16",
    "schedules=[1f1b]",
    "iterations=4",
    "warmup=1",
)


def test_a_link_with_a_short_queue_is_as_asked(measured: Mapping[str, Measured]) -> None:
    (row,) = measured["short-queue"].document["schedules"]
    assert row["trusted"], row["reasons"]


def test_a_queue_that_was_full_while_ranks_connected_is_named(measured: Mapping[str, Measured]) -> None:
    """Both messages of a rank that began early come at once; iterations lose nothing, over narrower windows."""
    (row,) = measured["full while connecting"].document["schedules"]
    assert not row["trusted"]
    assert any("while ranks connected a queue was full: ams->ber dropped" in reason for reason in row["reasons"])
    assert not any("should lose none" in reason for reason in row["reasons"])
