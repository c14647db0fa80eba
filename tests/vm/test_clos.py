"""Training in a two-layer Clos on routes that a policy chose, under the virtual clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import ANY

import jobs_that_move
import pandas as pd
import pytest
from one_boot import MARKS, Asked, Measured

from testbed.plan.plan import Clock, Plan
from testbed.plan.timeline import LinkLost, Moment
from testbed.planning import file
from testbed.planning.resolve import load_plan, require_trainable, with_cases, with_clock, with_enforcement
from testbed.planning.schedules import choose as choose_schedules
from testbed.planning.schedules import make
from testbed.results.recheck import name_of, recheck
from testbed.routing.apply import with_policies
from testbed.routing.planner import Reach
from testbed.routing.policies import choose
from testbed.routing.rerouting import Controller, with_continuations, with_timeline

pytestmark = MARKS

ROOT = Path(__file__).parents[2]
CLOS = """
name: clos
datacenters:
  pod: {clos: {leaves: 2, spines: 2, hosts: 2, rate: 200 Mbit/s, delay: 100 us}}
"""
SETTINGS = (
    "parallelism={data: 2, pipeline: 2}",
    "model.layers=4",
    "microbatches=4",
    "message=500 kB",
    "schedules=[1f1b]",
    "iterations=2",
    "warmup=1",
)


GREEDY = Controller("greedy", Reach(elephants_from=1e5))
EVENTS = ("--arrive", "second@1", "--lose", "pod-spine1@3", "--depart", "first@4", "--lose", "pod-spine2@5")


class Found(NamedTuple):
    """A plan, comparison.json, the manifest, and bytes per direction."""

    plan: Plan
    document: Mapping[str, Any]
    manifest: Mapping[str, Any]
    links: pd.DataFrame
    checked: Mapping[str, bool]
    """By entry of the comparison, whether its verdict is good when it is told from the files."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Of the cases, in comparison.json."""
        found: Sequence[Mapping[str, Any]] = self.document["schedules"]
        return found

    def links_of(self, case: int) -> pd.DataFrame:
        """Of the case with that number."""
        return self.links[self.links["schedule"] == self.plan.cases[case].label]


def clos_plan(directory: Path) -> Plan:
    """Two replicas of two stages, every stage on a leaf of its own, on the routes that `greedy` chooses."""
    (directory / "clos.yaml").write_text(CLOS)
    plan = load_plan(directory / "clos.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml", settings=SETTINGS)
    require_trainable(plan)
    chosen = choose_schedules(plan, [])
    plan = with_clock(with_cases(plan, chosen, make(plan, chosen).made), Clock("virtual"))
    return with_policies(plan, [choose("greedy")], Reach(elephants_from=1e5))[0]


def asked(place: Path) -> dict[str, Asked]:
    greedy = clos_plan(place)
    spoilt = f"{ROOT}/tests/lab/wrong_shapers.py:UnpinnedLater"
    by_ports = with_enforcement(
        with_continuations(with_timeline(greedy, [LinkLost("pod-spine1", Moment(1))]), GREEDY), "ports"
    )
    jobs = jobs_that_move.planned(place, *EVENTS, "--clock", "virtual")
    assert jobs.exit_code == 0, jobs.exception
    return {
        "greedy": Asked(greedy),
        "unpinned": Asked(greedy, spoilt),
        "by ports": Asked(by_ports),
        "jobs": Asked(file.read(place / "plan.json")),
    }


@pytest.fixture(scope="module")
def found(measured: Mapping[str, Measured]) -> Mapping[str, Found]:
    return {
        name: Found(
            one.plan,
            one.document,
            json.loads((one.out / "manifest.json").read_text()),
            pd.read_parquet(one.out / "links.parquet"),
            {entry: all(check.ok for check in checks) for entry, checks in recheck(one.out).items()},
        )
        for name, one in measured.items()
    }


def require_true(one: Found, case: int) -> None:
    row, links = one.rows[case], one.links_of(case)
    assert row["label"] == one.plan.cases[case].label
    assert row["trusted"], row
    assert abs(row["error"]) <= 0.001, row
    assert links["wire_bytes"].to_numpy() == pytest.approx(links["planned_bytes"].to_numpy(), rel=0.002)


def test_flows_pinned_to_spines_take_what_the_model_says(found: Mapping[str, Found]) -> None:
    one = found["greedy"]
    require_true(one, 0)
    (case,) = one.plan.cases
    spines = {one.plan.network.directions[route[0]].target for route in case.routes if route}
    assert spines == {"pod-spine0", "pod-spine1"}, "this plan tells nothing"
    assert (one.links["planned_bytes"] > 1e6).all()
    assert one.manifest["enforced"]["1f1b"]["by_rules"]


def test_a_run_whose_flows_left_their_routes_is_untrusted(found: Mapping[str, Found]) -> None:
    (row,) = found["unpinned"].rows
    assert not row["trusted"]
    off = [reason for reason in row["reasons"] if "traffic did not take the routes of the plan" in reason]
    assert any("pod-spine1" in reason for reason in off)
    assert any("pod-spine0" in reason for reason in off)


def test_ports_take_flows_where_rules_do(found: Mapping[str, Found]) -> None:
    one = found["by ports"]
    require_true(one, 0)
    assert one.manifest["enforced"]["1f1b"] == {"by_ports": ANY, "by_rules": []}
    (same,) = found["greedy"].rows
    assert one.rows[0]["measured_s"] == pytest.approx(same["measured_s"], rel=1e-4)


def test_a_lost_spine_makes_iterations_as_long_as_the_model_says(found: Mapping[str, Found]) -> None:
    one = found["by ports"]
    require_true(one, 1)
    assert abs(one.rows[1]["error"]) <= 0.0003  # acknowledgements wait behind messages in the leaf, before the spine
    assert one.rows[1]["measured_s"] > 1.02 * one.rows[0]["measured_s"]
    gone = one.links_of(1)["label"].str.contains("pod-spine1")
    assert (one.links_of(1)[gone]["wire_bytes"] == 0).all()
    assert (one.links_of(1)[~gone]["wire_bytes"] > 1e6).all()
    (lost,) = one.document["events"]
    assert (lost["before"], lost["label"]) == ("1f1b", "1f1b without pod-spine1")
    assert lost["flows_moved"] == lost["flows_cut"] == lost["flows"] / 2


def test_every_phase_of_jobs_that_come_and_go_is_as_predicted(found: Mapping[str, Found]) -> None:
    one = found["jobs"]
    there = [(row["label"].removeprefix("1f1b"), row["job"]) for row in one.rows]
    assert there == [
        ("", "first"),
        (" with second", "first"),
        (" with second", "second"),
        (" with second without pod-spine1", "first"),
        (" with second without pod-spine1", "second"),
        (" with second without pod-spine1 without first", "second"),
        (" with second without pod-spine1 without first without pod-spine2", "second"),
    ]
    for row in one.rows:
        assert row["trusted"], row
        assert abs(row["error"]) <= 0.001, row
    crowded = {row["job"]: row for row in one.rows[3:5]}
    assert all(row["measured_s"] > 1.1 * row["predicted_alone_s"] for row in crowded.values()), (
        "this plan tells nothing"
    )
    assert one.checked == {name_of(row): True for row in one.rows}
    assert one.document["complete"]


def test_links_carry_what_the_jobs_at_work_send(found: Mapping[str, Found]) -> None:
    one = found["jobs"]
    off = one.links["wire_bytes"] - one.links["planned_bytes"]
    assert (off.abs() <= 0.02 * one.links["planned_bytes"] + 5e3).all()
    alone = one.links_of(0)
    busy = alone[alone["planned_bytes"] > 1e6]["label"]
    assert not busy.empty
    assert not busy.str.contains("pod-spine2").any()  # the spine that the second job gets
    assert (one.links_of(1)["wire_bytes"] > 1e6).all()


def test_events_say_what_moved_and_what_iterations_took_around_them(found: Mapping[str, Found]) -> None:
    arrival, lost, departure, further = found["jobs"].document["events"]
    assert (arrival["arrived"], lost["lost"], departure["departed"]) == (["second"], ["pod-spine1"], ["first"])
    assert further["lost"] == ["pod-spine2"]
    assert [one["after"] for one in (arrival, lost, departure, further)] == [1, 3, 4, 5]
    assert (arrival["flows"], arrival["flows_new"], arrival["flows_cut"]) == (6, 2, 0)
    assert 0 < lost["flows_cut"] <= lost["flows_moved"]
    first, second = lost["iterations"]
    for job in (first, second):
        assert job["during_s"] == job["after_s"] == pytest.approx(job["after_predicted_s"], rel=0.001)
        assert job["before_s"] == pytest.approx(job["before_predicted_s"], rel=0.001)
        assert job["after_s"] > 1.1 * job["before_s"]
    gone, left = departure["iterations"]
    assert (gone["job"], gone["during_s"], gone["after_s"]) == ("first", None, None)
    assert left["after_s"] < 0.9 * left["before_s"]
