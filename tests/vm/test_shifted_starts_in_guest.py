"""Two jobs on one link under the virtual clock, whose starts a controller shifts when the link changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import adapting_starts
import pytest
from harness.plans import Document
from in_process import run_testbed
from one_boot import MARKS, Asked, Measured

from testbed.adaptation import controller
from testbed.adaptation.adapting_plan import SHIFT_S
from testbed.adaptation.jobs_in_rounds import jobs_in_rounds
from testbed.adaptation.rehearsal import rehearse_jobs
from testbed.adaptation.rehearsal_changes import change
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.thresholds import MODEL_SHARE

pytestmark = MARKS


def shifting() -> Plan:
    return adapting_starts.planned(*adapting_starts.own("rate / 2", 10))


SITES = ("oslo", "bonn", "rome")
UNLIKE: Document = {
    "name": "unlike",
    "datacenters": {site: {"nodes": 3} for site in SITES},
    "links": [
        {
            "name": "north",
            "between": ["oslo", "bonn"],
            "forward": {"delay": "3 ms", "rate": "310 Mbit/s"},
            "reverse": {"delay": "7 ms", "rate": "190 Mbit/s"},
        },
        {"name": "south", "between": ["rome", "bonn"], "delay": "5 ms", "rate": "240 Mbit/s"},
    ],
    "events": ["link north rate x0.5 at iteration 3", "zz rank 1 slower x1.25 at iteration 6"],
}


def _unlike_jobs() -> list[Document]:
    """A pipeline over three datacenters beside two replicas over two of them, which post receives late."""
    common = {
        "microbatches": 5,
        "microbatch_size": 1,
        "pacing": {"F": "11.3 ms", "I": "11.3 ms", "W": "11.3 ms"},
        "message": "210 kB",
        "memory": 8,
        "iterations": 9,
        "warmup": 1,
    }
    model = {"d_model": 16, "heads": 2, "sequence": 16}
    far = {
        "name": "zz",
        "model": model | {"layers": 3},
        "parallelism": {"pipeline": 3},
        "placement": [f"{site}/0" for site in SITES],
        "schedules": ["zb-h1"],
        "seed": 3,
    }
    near = {
        "name": "aa",
        "model": model | {"layers": 2},
        "parallelism": {"pipeline": 2, "data": 2},
        "placement": ["oslo/1", "bonn/1"],
        "data_parallel": {"replicas": [["oslo/2", "bonn/2"]]},
        "receives": "late",
        "schedules": ["1f1b"],
        "seed": 4,
    }
    return [common | far, common | near]


UNLIKE_JOBS: tuple[Document, list[Document]] = UNLIKE, _unlike_jobs()


def asked(place: Path) -> dict[str, Asked]:
    return {
        "shifting": Asked(shifting()),
        "by the relay": Asked(shifting(), "relay"),
        "unlike": Asked(adapting_starts.planned(*UNLIKE_JOBS)),
    }


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


@pytest.mark.parametrize("name", ["shifting", "unlike"])
def test_a_rehearsal_decides_as_the_lab_did(measured: Mapping[str, Measured], name: str) -> None:
    """On real packets and in the model the same code sees the same, and shifts the same: of starts that are as good as
    each other to a millionth those that are the better by what was seen last."""
    rows = measured[name].document["adaptation"]["iterations"]
    topology, workloads = adapting_starts.own("rate / 2", 10) if name == "shifting" else UNLIKE_JOBS
    plan = adapting_starts.planned({**topology, "events": []}, workloads)
    changes, chosen = [change(event, plan) for event in topology["events"]], controller.choose("ski-rental")
    jobs = jobs_in_rounds(plan, adapting_starts.STEPS)
    rehearsed = rehearse_jobs(jobs, changes, len(rows), chosen, swap_s=SHIFT_S)
    for row, known in zip(rehearsed.rows, rows, strict=True):
        decided = None if row.step.swapped_to is None else row.step.swapped_to.label
        assert (decided is None) == (known["swapped_to"] is None)
        assert row.step.expected_s == pytest.approx(known["expected_s"], rel=1e-6)
        if name == "unlike":
            assert decided == known["swapped_to"]
        assert set(row.step.learnt.alarms) == set(known["alarms"])
        mean_s = sum(job.adapted_s for job in row.jobs) / len(row.jobs)
        assert mean_s == pytest.approx(known["measured_s"], rel=MODEL_SHARE.value)


def test_the_plan_that_is_kept_repeats_the_shift(found: Measured) -> None:
    kept = file.read(found.out / "plan.json")
    assert kept.adaptation is None
    assert len({case.starts_s for case in kept.cases}) == 2
    done = run_testbed("predict", found.out)
    assert done.returncode == 0, done.stderr
    shown = run_testbed("report", found.out, "--details", COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    assert "1 swap of starts took" in shown.stdout


def test_jobs_that_are_unlike_are_seen_and_predicted(measured: Mapping[str, Measured]) -> None:
    document = measured["unlike"].document
    for row in document["schedules"]:
        assert row["trusted"], row["reasons"]
        assert abs(row["error"]) <= MODEL_SHARE.value
    rows = document["adaptation"]["iterations"]
    assert {row["iteration"]: sorted(row["alarms"]) for row in rows if row["alarms"]} == {
        3: ["bonn -> oslo", "oslo -> bonn"],
        6: ["rank 1"],
    }
    believed = rows[-1]["rate_bps"]
    assert believed["oslo -> bonn"] == pytest.approx(155e6, rel=0.02)
    assert believed["bonn -> oslo"] == pytest.approx(95e6, rel=0.02)
    assert believed["rome -> bonn"] == pytest.approx(240e6, rel=0.02)
    assert sum(row["measured_s"] for row in rows) < sum(row["never_predicted_s"] for row in rows)
