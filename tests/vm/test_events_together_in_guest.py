"""Links and ranks that change while other links are lost and jobs come and go, on the virtual clock: each iteration of
each job takes what was predicted of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from one_boot import MARKS, Asked, Measured, planned

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from events_on_the_wire import LIMITS, iterations_of

pytestmark = MARKS

SHARED = """
name: shared
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}, oslo: {nodes: 1}}
links:
  - {name: direct, between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}
  - {name: first, between: [paris, oslo], delay: 4 ms, rate: 150 Mbit/s}
  - {name: second, between: [oslo, warsaw], delay: 7 ms, rate: 150 Mbit/s}
"""
COMMON = """
model: {layers: 2, d_model: 32, heads: 2, sequence: 32}
parallelism: {pipeline: 2}
placement: [paris/PLACE, warsaw/PLACE]
microbatches: 6
microbatch_size: 2
memory: 8
message: 250 kB
schedules: [zb-h1]
iterations: 7
warmup: 1
"""
WIDE = "name: wide\npacing: {F: 10 ms, I: 10 ms, W: 10 ms}" + COMMON.replace("PLACE", "0")
NARROW = "name: narrow\nseed: 2\npacing: {F: 8 ms, I: 9 ms, W: 8 ms}" + COMMON.replace("PLACE", "1")
STEP = "link direct rate 60 % at iteration 5 + 50 ms"
ASKED: dict[str, tuple[tuple[str, ...], int]] = {
    "together-lose": (("--lose", "direct@2", "--event", "link first delay 9 ms at iteration 4 + 70 ms"), 1),
    "together-arrive": (("--arrive", "narrow@2", "--event", STEP, "--event", "wide rank 1 slower x1.4 at 1 to 6"), 2),
    "together-depart": (("--depart", "wide@3", "--event", STEP, "--event", "link direct down for 90 ms at 4"), 2),
    "together-alone": (("--alone", "--event", STEP), 2),
}


def asked(place: Path) -> dict[str, Asked]:
    files = [place / f"together-{name}.yaml" for name in ("net", "wide", "narrow")]
    for path, text in zip(files, (SHARED, WIDE, NARROW), strict=True):
        path.write_text(text)
    found = {}
    for name, (words, jobs) in ASKED.items():
        (place / name).mkdir()
        found[name] = Asked(planned(place / name, files[0], *files[1 : 1 + jobs], *words), "relay")
    return found


@pytest.mark.parametrize("name", ASKED)
def test_every_iteration_takes_what_is_predicted_of_it(measured: Mapping[str, Measured], name: str) -> None:
    plan, document, out, _ = measured[name]
    names = [job.name for job in plan.jobs]
    found = []
    for row in document["schedules"]:
        assert row["trusted"], row["reasons"]
        found += iterations_of(name, out, row["label"], names.index(row["job"]) if "job" in row else 0)
    assert max(one.missed for one in found) <= LIMITS["virtual"], found
    assert document["link_events"]


def test_a_job_by_itself_trains_without_events(measured: Mapping[str, Measured]) -> None:
    document = measured["together-alone"].document
    assert {entry["label"] for entry in document["link_events"]} == {"zb-h1"}
    assert [row["label"] for row in document["schedules"]][2:] == ["zb-h1, wide alone", "zb-h1, narrow alone"]
