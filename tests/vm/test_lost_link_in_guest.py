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
HEADER_S = 66 * 8 / 20e6


def asked(place: Path) -> dict[str, Asked]:
    (place / "detour.yaml").write_text(DETOUR)
    settings = [word for setting in (*SETTINGS, *LATE) for word in ("--set", setting)]
    words = ("--schedule", "1f1b", "--iterations", "3", "--lose", "a--b@1", *settings)
    return {"lost": Asked(planned(place, place / "detour.yaml", "tiny-gpt-pp4", *words))}


def test_the_first_iteration_over_a_new_route_takes_as_long_as_the_next(measured: Mapping[str, Measured]) -> None:
    found = measured["lost"]
    assert all(row["trusted"] for row in found.document["schedules"]), found.document["schedules"]
    rows = pd.read_parquet(found.out / "iterations.parquet")
    first, second = rows[rows["schedule"].str.contains("without") & ~rows["warmup"]]["makespan_s"]
    assert abs(first - second) < HEADER_S / 10
