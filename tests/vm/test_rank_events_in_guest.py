"""Ranks that become slower while they train, on the virtual clock: each iteration takes what was predicted of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from one_boot import MARKS, ROOT, Asked, Measured, planned

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from events_on_the_wire import LIMITS, iterations_of

pytestmark = MARKS

TWO, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
LINK = "paris--warsaw"
FEW = ("--iterations", "6", "--set", "warmup=1")
SPREAD = "pacing={F: {median: 20 ms, p95: 30 ms}, I: 20 ms, W: {samples: [18 ms, 20 ms, 27 ms], each: microbatch}}"
REPLICAS = (
    "--set",
    "parallelism={pipeline: 2, data: 2, tensor: 1}",
    "--set",
    "data_parallel.parameters=1 MB",
    "--set",
    "pacing={F: 20 ms, I: 20 ms, W: 20 ms}",
)
EVENTS = {
    "ranks-uniform": (("rank 2 slower x1.5 at iteration 2 to 4", "rank 0 slower x1.3 at 3"), ()),
    "ranks-varying": (("rank 1 slower x1.7 at 2", f"link {LINK} rate 40 % at iteration 3 + 170 ms"), ("--set", SPREAD)),
    "ranks-replicas": (("rank 3 slower x1.5 at 3",), REPLICAS),
    "ranks-swap": (("rank 1 slower x1.5 at 2 to 5",), ("--swap", "zb-h1@3", "--schedule", "zb-h1")),
}
ADAPTING = "ranks-adapting"


def asked(place: Path) -> dict[str, Asked]:
    found = {}
    for name, (events, more) in EVENTS.items():
        (place / name).mkdir()
        words = [word for event in events for word in ("--event", event)]
        plan = planned(place / name, TWO, PP4, *FEW, "--schedule", "1f1b", *more, *words)
        found[name] = Asked(plan, "relay")
    schedules = ("--schedule", "zb-h1", "--schedule", "crosspipe-greedy")
    adapting = ("--iterations", "8", "--set", "warmup=1", "--adapt", "ski-rental", "--event", "rank 2 slower x1.8 at 3")
    found[ADAPTING] = Asked(planned(place, TWO, PP4, *schedules, *adapting), "relay")
    return found


@pytest.mark.parametrize("name", EVENTS)
def test_every_iteration_takes_what_is_predicted_of_it(measured: Mapping[str, Measured], name: str) -> None:
    _, document, out, _ = measured[name]
    for row in document["schedules"]:
        assert row["trusted"], row["reasons"]
    found = [one for row in document["schedules"] for one in iterations_of(name, out, row["label"])]
    times = sorted(one.predicted_s for one in found)
    assert times[-1] > 1.1 * times[0], "they differ on purpose"
    assert max(one.missed for one in found) <= LIMITS["virtual"], found


def test_when_they_became_slower_is_told(measured: Mapping[str, Measured]) -> None:
    told = measured["ranks-uniform"].document["link_events"]
    first, second = EVENTS["ranks-uniform"][0]
    assert [(one["iteration"], one["event"]) for one in told] == [(3, first), (4, second), (5, f"{first}: over")]
    assert all(job["measured_s"] == pytest.approx(job["predicted_s"], rel=5e-4) for job in told[0]["iterations"])


def test_a_job_that_adapts_notices_a_rank_that_is_slower(measured: Mapping[str, Measured]) -> None:
    document = measured[ADAPTING].document
    rows = document["adaptation"]["iterations"]
    assert not any(row["alarms"] for row in rows[:3])
    assert any("rank 2" in alarm for row in rows[3:6] for alarm in row["alarms"]), rows
    for row in document["schedules"]:
        assert row["trusted"], row["reasons"]
