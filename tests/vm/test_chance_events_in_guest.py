"""Loss and jitter for a while, on the virtual clock: iterations that they touch are told and not compared, the others
take what was predicted of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
from one_boot import MARKS, ROOT, Asked, Measured, planned

from testbed.results.run_files import RunFiles

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from events_on_the_wire import LIMITS, iterations_of

pytestmark = MARKS

TWO, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
LINK = "link paris--warsaw"
EVENTS = {
    "chance-loss": f"{LINK} loss 4 % for 500 ms at iteration 2 + 100 ms",
    "chance-jitter": f"{LINK} paris -> warsaw jitter 5 ms at iteration 2 + 100 ms for 500 ms",
    "chance-always": f"{LINK} jitter 3 ms at iteration 0",
}
COMPARED = {"chance-loss": ("iterations 2 to 5 are", [1, 2]), "chance-jitter": ("iteration 2 is", [1, 2, 4, 5, 6])}
"""TCP has smaller windows once something was lost."""


def asked(place: Path) -> dict[str, Asked]:
    found = {}
    for name, event in EVENTS.items():
        (place / name).mkdir()
        words = ("--iterations", "6", "--set", "warmup=1", "--schedule", "zb-h1", "--event", event)
        next_one = ("--schedule", "gpipe") if name == "chance-loss" else ()
        found[name] = Asked(planned(place / name, TWO, PP4, *words, *next_one), "relay")
    return found


@pytest.mark.parametrize("name", ["chance-loss", "chance-jitter"])
def test_what_is_touched_is_told_and_all_else_is_compared(measured: Mapping[str, Measured], name: str) -> None:
    _, document, out, _ = measured[name]
    row = document["schedules"][0]
    assert row["trusted"], row["reasons"]
    assert not row["covered"], "never a bare yes"
    touched, compared = COMPARED[name]
    assert f"{touched} not compared" in row["left_out"][0]
    found = iterations_of(name, out, "zb-h1")
    assert [one.number for one in found] == compared, "rounds, warm-up counted"
    assert max(one.missed for one in found) <= LIMITS["virtual"], found
    entries = document["link_events"]
    assert {entry["modelled"] for entry in entries} == {False}
    (job,) = entries[0]["iterations"]
    assert job["measured_s"] > 1.001 * job["predicted_s"], "it was really so"


def test_the_next_schedule_does_not_suffer_from_losses_of_the_one_before(measured: Mapping[str, Measured]) -> None:
    """It has connections of its own: over those of the first one gpipe took a third longer from its first iteration."""
    _, document, out, _ = measured["chance-loss"]
    row = document["schedules"][1]
    assert row["label"] == "gpipe"
    assert row["trusted"], row["reasons"]
    before = [one for one in iterations_of("chance-loss", out, "gpipe") if one.number <= 2]
    assert before
    assert max(one.missed for one in before) <= LIMITS["virtual"], before


def test_it_really_happened_and_is_recorded(measured: Mapping[str, Measured]) -> None:
    lost = {name: RunFiles(measured[name].out).network("zb-h1").drops for name in EVENTS}
    assert lost["chance-loss"] > 0
    assert lost["chance-jitter"] == lost["chance-always"] == 0, "jitter overtakes nothing and loses nothing"
    resent = RunFiles(measured["chance-jitter"].out).network("zb-h1").retransmits
    assert resent == 0, "what is out of order would be sent again"
    events = pd.read_parquet(measured["chance-loss"].out / "link_events.parquet")
    events = events[events["schedule"] == "zb-h1"]
    assert events["loss"].tolist() == [0.04, 0.04, 0.0, 0.0]
    assert (events["happened_s"] - events["at_s"]).abs().max() < 1e-6


def test_where_every_iteration_is_touched_none_is_compared(measured: Mapping[str, Measured]) -> None:
    (row,) = measured["chance-always"].document["schedules"]
    assert not row["covered"]
    assert "iterations 0 to 5 are not compared, and no other was measured" in row["left_out"][0]
    assert len(iterations_of("chance-always", measured["chance-always"].out, "zb-h1")) == 6
