"""Links that change while jobs train, on the virtual clock: each iteration takes what was predicted of it, and nothing
is lost. The quick form of benchmarks/events_on_the_wire.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from one_boot import MARKS, Asked, Measured, planned

from testbed.results.run_files import RunFiles

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import injected_changes
from events_on_the_wire import LIMITS, iterations_of
from injected_changes import Change

pytestmark = MARKS

TOPOLOGY = """
name: changing
datacenters: {paris: {nodes: 1}, warsaw: {nodes: 1}, oslo: {nodes: 1}}
links:
  - {name: north, between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}
  - {name: south, between: [warsaw, oslo], delay: 3 ms, rate: 100 Mbit/s}
events:
  - link north rate 40 % at iteration 1 + 150 ms
  - link south oslo -> warsaw delay 20 ms at iteration 1 + 180 ms
  - link north down for 2 s then delay 9 ms then rate 150 % at iteration 2 + 170 ms
  - datacenter oslo down for 40 ms at iteration 4
  - link south down for 25 ms at iteration 4 + 20 ms
"""
WORKLOAD = """
name: three-stages
model: {layers: 3, d_model: 16, heads: 2, sequence: 8}
parallelism: {pipeline: 3}
placement: [paris/0, warsaw/0, oslo/0]
microbatches: 6
microbatch_size: 1
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
message: 150 kB
memory: 6
schedules: [zb-h1]
iterations: 5
warmup: 1
"""


UNNAMED = Change("delay", 0.4)
"""What no plan says: when about four measured iterations are over, the first link takes 10 ms more."""


def asked(place: Path) -> dict[str, Asked]:
    (place / "net.yaml").write_text(TOPOLOGY)
    (place / "job.yaml").write_text(WORKLOAD)
    files = place / "net.yaml", place / "job.yaml"
    named = ("--set", "topology.events=[link south rate 50 % at iteration 1 + 150 ms]")
    beside = planned(place, *files, *named, "--iterations", "9")
    shaper = injected_changes.shaper_of(beside, [UNNAMED], place / "shaper.py", "relay")
    netem = planned(place, *files, "--set", f"topology.events={list(UNDER_NETEM)}", "--set", "message=510 kB")
    slow = place / "slow.yaml", place / "many.yaml"
    for path, text in zip(slow, (SLOW, MANY), strict=True):
        path.write_text(text)
    return {
        "longer": Asked(planned(place, *slow, "--event", LONGER), "relay"),
        "between": Asked(planned(place, *slow, *(word for text in BETWEEN for word in ("--event", text))), "relay"),
        "changing": Asked(planned(place, *files), "relay"),
        "unnamed": Asked(beside, shaper),
        "netem": Asked(netem, "netem"),
        "the same, relay": Asked(netem, "relay"),
    }


SLOW = """
name: slow
datacenters: {paris: {nodes: 1}, warsaw: {nodes: 1}}
links: [{name: thin, between: [paris, warsaw], delay: 5 ms, rate: 20 Mbit/s}]
"""
MANY = """
name: many-microbatches
model: {layers: 2, d_model: 16, heads: 2, sequence: 8}
parallelism: {pipeline: 2}
microbatches: 24
microbatch_size: 1
pacing: {F: 2 ms, I: 2 ms, W: 2 ms}
message: 5 kB
memory: 24
schedules: [gpipe]
iterations: 5
warmup: 1
"""
LONGER = "link thin delay 60 ms at 1"
BETWEEN = [f"link thin down for 60 ms at {number} + 163 ms" for number in range(4)]
"""From when the last message of an iteration has come until the next one has begun."""


UNDER_NETEM = (
    "link north rate 40 % at iteration 1 + 167 ms",
    "link south oslo -> warsaw delay 20 ms at iteration 1 + 180 ms",
    "link north delay 1.3 ms at iteration 3 + 93 ms",
    "link south rate 190 % at iteration 3 + 111 ms",
    "link north down for 361 ms then rate 30 % at iteration 4 + 88 ms",
    "link south down for 37 ms at iteration 4 + 121 ms",
)


def test_every_iteration_takes_what_is_predicted_of_it(measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured["changing"]
    (row,) = document["schedules"]
    assert row["trusted"], row["reasons"]
    found = iterations_of("changing", out, "zb-h1")
    assert len({one.predicted_s for one in found}) == 5, "no two are alike"
    assert max(one.missed for one in found) <= LIMITS["virtual"], found


def test_netem_changes_links_for_what_comes_later(measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured["netem"]
    (row,) = document["schedules"]
    assert row["trusted"], row["reasons"]
    assert document["shaper"] == "netem"
    found, relayed = (iterations_of(name, measured[name].out, "zb-h1") for name in ("netem", "the same, relay"))
    assert max(one.missed for one in [*found, *relayed]) <= LIMITS["virtual"], found
    assert any(abs(a.measured_s / b.measured_s - 1) > 1e-3 for a, b in zip(found, relayed, strict=True))
    assert min(each[-1].measured_s - each[-2].measured_s for each in (found, relayed)) > 0.2, "both wait for a link"
    counted = RunFiles(out).network("zb-h1")
    assert (counted.drops, counted.retransmits, counted.other) == (0, 0, {})
    events = pd.read_parquet(out / "link_events.parquet")
    assert np.abs(events["happened_s"] - events["at_s"]).max() < 1e-6
    assert RunFiles(out).plan.changes_for == "comers"


@pytest.mark.parametrize("name", ["longer", "between"])
def test_what_is_posted_between_iterations_is_in_nobodys_way(measured: Mapping[str, Measured], name: str) -> None:
    """Notices of receives, which the model leaves out, are through before an iteration begins: over a link that has
    become longer, and over one that sends nothing while jobs train."""
    (row,) = measured[name].document["schedules"]
    assert row["trusted"], row["reasons"]
    assert row["notes"] == []
    found = iterations_of(name, measured[name].out, "gpipe")
    assert len({round(one.predicted_s, 6) for one in found}) > 1
    assert max(one.missed for one in found) <= LIMITS["virtual"] / 10, found
    events = pd.read_parquet(measured[name].out / "link_events.parquet")
    assert np.abs(events["happened_s"] - events["at_s"]).max() < 1e-6


def test_nothing_is_lost_and_what_happened_is_kept(measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured["changing"]
    counted = RunFiles(out).network("zb-h1")
    assert (counted.drops, counted.retransmits, counted.other) == (0, 0, {})
    events = pd.read_parquet(out / "link_events.parquet")
    assert len(events) == 2 + 1 + 3 * 2 * 2, "both ends of an outage, direction by direction"
    assert np.abs(events["happened_s"] - events["at_s"]).max() < 1e-6
    assert [entry["iteration"] for entry in document["link_events"]] == [2, 2, 3, 5, 5]
    assert {entry["iteration"] - entry["measured_iteration"] for entry in document["link_events"]} == {1}, (
        "warm-up, which events do not count"
    )
    outage = document["link_events"][2]
    assert outage["until_s"] - outage["at_s"] == pytest.approx(2)
    (job,) = outage["iterations"]
    assert job["measured_s"] == pytest.approx(job["predicted_s"], rel=5e-4)


def test_what_the_plan_does_not_name_is_still_found(measured: Mapping[str, Measured]) -> None:
    (row,) = measured["unnamed"].document["schedules"]
    assert not row["trusted"]
    assert "paris->warsaw" in row["reasons"][-1]
    (event,) = measured["unnamed"].document["link_events"]
    (job,) = event["iterations"]
    assert event["iteration"] == 2
    assert job["measured_s"] == pytest.approx(job["predicted_s"], rel=5e-4), "what it names is as predicted before"
