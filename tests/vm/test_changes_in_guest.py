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


def asked(place: Path) -> dict[str, Asked]:
    plan = with_clock(injected_changes.plan_of("two", CHANGES), Clock("virtual"))
    return {"changes": Asked(plan, injected_changes.shaper_of(plan, CHANGES, place / "shaper.py"))}


@pytest.fixture(scope="module")
def out(measured: Mapping[str, Measured]) -> Path:
    return measured["changes"].out


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
