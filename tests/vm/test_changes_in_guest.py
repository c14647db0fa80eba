"""Links and interfaces that change while a schedule is trained, on the virtual clock: no such run is quoted as true."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from one_boot import MARKS, Asked, Measured

from testbed.plan.plan import Clock
from testbed.planning.resolve import with_clock
from testbed.results.load import load_run
from testbed.thresholds import MODEL_SHARE

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import injected_changes
from injected_changes import Change

pytestmark = MARKS

CHANGES = (
    *(Change("delay", 0.35), Change("rate", 0.35), Change("interface", 0.35)),
    *(Change("everywhere", 0.0), Change("blip", 0.5)),
)
FROM_THE_START = (Change("delay", 0.0), Change("sooner", 0.2), Change("delay", 2.0))
"""The last one when all iterations are over."""


def asked(place: Path) -> dict[str, Asked]:
    found = {}
    for name, changes in {"two": CHANGES, "losing": FROM_THE_START, "jittery": FROM_THE_START}.items():
        plan = with_clock(injected_changes.plan_of(name, changes), Clock("virtual"))
        found[name] = Asked(plan, injected_changes.shaper_of(plan, changes, place / f"{name}.py"))
    return found


@pytest.fixture(scope="module")
def out(measured: Mapping[str, Measured]) -> Path:
    return measured["two"].out


@pytest.fixture(scope="module")
def rows(out: Path) -> Mapping[str, dict[str, Any]]:
    return {row["label"]: row for row in load_run(out).comparison["schedules"]}


@pytest.mark.parametrize(
    ("label", "named"),
    [
        ("delay at 35", ("a->b", "b->a", "activations from rank 1 to 2")),
        ("rate at 35", ("a->b", "b->a")),
        ("interface at 35", ("what leaves rank 0", "activations from rank 0 to 1")),
        ("everywhere at 0", ("every flow",)),
    ],
)
def test_a_change_is_named_and_its_run_untrusted(
    rows: Mapping[str, dict[str, Any]], label: str, named: tuple[str, ...]
) -> None:
    row = rows[label]
    assert abs(row["error"]) > MODEL_SHARE.value, "this change tells nothing"
    assert not row["trusted"]
    for name in named:
        assert name in row["reasons"][-1]


def test_a_short_one_is_noted_and_the_median_trusted(rows: Mapping[str, dict[str, Any]]) -> None:
    row = rows["blip at 50"]
    assert row["trusted"], row["reasons"]
    assert abs(row["error"]) <= MODEL_SHARE.value
    (note,) = row["notes"]
    assert "a->b" in note


@pytest.mark.parametrize("plan", ["losing", "jittery"])
def test_where_links_lose_or_delay_packets_by_chance_a_change_is_found_from_the_start_on(
    measured: Mapping[str, Measured], plan: str
) -> None:
    """No iteration differs from another then, and the model has neither losses nor jitter."""
    rows = {row["label"]: row for row in load_run(measured[plan].out).comparison["schedules"]}
    assert rows["delay at 0"]["error"] > 0.05
    for label, named in (("delay at 0", "iterations 1 to 10 of"), ("sooner at 20", "iterations 3 to 10 of")):
        assert not rows[label]["trusted"]
        assert named in rows[label]["reasons"][-1]
        assert "a->b" in rows[label]["reasons"][-1]
    assert rows["delay at 200"]["trusted"], rows["delay at 200"]["reasons"]
