"""Two jobs on one link under the virtual clock, whose starts a controller shifts when the link changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import adapting_starts
import pytest
from in_process import run_testbed
from one_boot import MARKS, Asked, Measured

from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.thresholds import MODEL_SHARE

pytestmark = MARKS


def shifting() -> Plan:
    return adapting_starts.planned(*adapting_starts.own("rate / 2", 10))


def asked(place: Path) -> dict[str, Asked]:
    return {"shifting": Asked(shifting()), "by the relay": Asked(shifting(), "relay")}


@pytest.fixture(scope="module", params=["shifting", "by the relay"])
def found(measured: Mapping[str, Measured], request: pytest.FixtureRequest) -> Measured:
    return measured[request.param]


def test_starts_are_shifted_and_every_part_is_as_predicted(found: Measured) -> None:
    rows: list[dict[str, Any]] = found.document["schedules"]
    assert [row["job"] for row in rows] == ["a", "b"] * 2
    for row in rows:
        assert row["trusted"], row["reasons"]
        assert abs(row["error"]) <= MODEL_SHARE.value
    before, after = (row["label"] for row in rows[::2])
    assert after.startswith(f"{before}, ")
    assert after.endswith(" later from 6")


def test_it_is_seen_decided_and_worth_it(found: Measured) -> None:
    rows = found.document["adaptation"]["iterations"]
    assert [row["iteration"] for row in rows if row["alarms"]] == [5]
    assert [row["swap"] for row in rows if row["swapped_to"]] == ["starts"]
    assert rows[5]["swap_took_s"] < 1e-3, "nothing is sent for it"
    assert rows[5]["rate_bps"]["east -> west"] == pytest.approx(150e6, rel=0.02)
    for row in rows[6:]:
        assert row["measured_s"] == pytest.approx(rows[5]["expected_s"], rel=5e-3)
        assert row["measured_s"] < row["never_predicted_s"]


def test_the_plan_that_is_kept_repeats_the_shift(found: Measured) -> None:
    kept = file.read(found.out / "plan.json")
    assert kept.adaptation is None
    assert len({case.starts_s for case in kept.cases}) == 2
    done = run_testbed("predict", found.out)
    assert done.returncode == 0, done.stderr
    shown = run_testbed("report", found.out, "--details", COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    assert "1 swap of starts took" in shown.stdout
