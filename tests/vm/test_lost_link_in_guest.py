"""A link that is lost on the virtual clock: what a connection sends first over its new route is cut as everything else.

The kernel asks the route that a connection had for the size of its segments, once more, when that is gone: without an
interface it had one for segments of 36 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from one_boot import MARKS, Asked, Measured, planned

pytestmark = MARKS

DETOUR = """
name: detour
datacenters: {a: {nodes: 1}, b: {nodes: 1}, c: {nodes: 0}}
links:
  - {between: [a, b], delay: 2 ms, rate: 200 Mbit/s}
  - {between: [a, c], delay: 3 ms, rate: 20 Mbit/s}
  - {between: [c, b], delay: 1 ms, rate: 200 Mbit/s}
"""
SETTINGS = ("warmup=1", "parallelism.pipeline=2", "placement=[a/0,b/0]", "microbatches=2", "message=70 kB")
LATE = ("memory=4", "receives=late", "streams=3", "pacing={F: 1 ms, I: 1 ms, W: 1 ms}")
SHORT = (
    "model={kind: linear, layers: 2, d_model: 8, sequence: 4}",
    "message=1 kB",
    "pacing={F: 9 ms, I: 9 ms, W: 9 ms}",
)
DOWN = "datacenter b down for 3 ms at iteration 2"
HEADER_S = 66 * 8 / 20e6


def asked(place: Path) -> dict[str, Asked]:
    (place / "detour.yaml").write_text(DETOUR)
    settings = [word for setting in (*SETTINGS, *LATE) for word in ("--set", setting)]
    words = ("--schedule", "1f1b", "--iterations", "3", "--lose", "a--b@1", *settings)
    short = [word for setting in (*SETTINGS[:-1], *SHORT) for word in ("--set", setting)]
    early = ("--schedule", "1f1b", "--iterations", "3", "--lose", "a--b@1", *short)
    return {
        "lost": Asked(planned(place, place / "detour.yaml", "tiny-gpt-pp4", *words)),
        "early": Asked(planned(place, place / "detour.yaml", "tiny-gpt-pp4", *early)),
        "down": Asked(planned(place, place / "detour.yaml", "tiny-gpt-pp4", *early, "--event", DOWN)),
    }


def test_the_first_iteration_over_a_new_route_takes_as_long_as_the_next(measured: Mapping[str, Measured]) -> None:
    found = measured["lost"]
    assert all(row["trusted"] for row in found.document["schedules"]), found.document["schedules"]
    rows = pd.read_parquet(found.out / "iterations.parquet")
    first, second = rows[rows["schedule"].str.contains("without") & ~rows["warmup"]]["makespan_s"]
    assert abs(first - second) < HEADER_S / 10


def test_receives_that_are_posted_ahead_are_counted_where_they_are_posted(measured: Mapping[str, Measured]) -> None:
    """An iteration before the link is lost, those of the one behind that: their notices cross it."""
    links = pd.read_parquet(measured["early"].out / "links.parquet")
    used = links[links["planned_bytes"] > 0]
    assert len(used) == 6, "there and back: before over one link, behind that over two"
    assert (used["wire_bytes"] / used["planned_bytes"] - 1).abs().max() < 0.03


def test_a_lost_link_that_is_down_for_a_while_stays_lost(measured: Mapping[str, Measured]) -> None:
    """Its interface takes nothing that would wait there."""
    rows = measured["down"].document["schedules"]
    assert len(rows) == 2
    for row in rows:
        assert row["trusted"], row["reasons"]
        assert abs(row["error"]) <= 5e-4
