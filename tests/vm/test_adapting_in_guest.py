"""A job that adapts on the virtual clock, while a link changes: what it sees and decides, and what it brings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from in_process import run_testbed
from one_boot import MARKS, Asked, Measured, planned

from testbed.planning import file
from testbed.results.adaptation_drawing import draw_adaptation
from testbed.thresholds import MODEL_SHARE

pytestmark = MARKS

EVENT = "link paris--warsaw delay 60 ms at iteration 3"
SCHEDULES = ("zb-h1", "crosspipe-greedy")
WORDS = ("--set", "warmup=1", "--set", "microbatches=6", "--iterations", "8", "--adapt", "ski-rental", "--event", EVENT)

SETTINGS = ("parallelism.pipeline=2", "microbatches=5", "memory=6", "warmup=1", "receives=late", "iterations=6")
PIPELINES = (
    *(word for setting in SETTINGS for word in ("--set", setting)),
    *(word for name in ("1f1b", "zb-h1", "pipemorph") for word in ("--schedule", name)),
    *("--adapt", "ski-rental", "--event", EVENT),
)


CUT = (
    *(word for setting in ("memory=8", "warmup=1", "iterations=9", "microbatch_size=3") for word in ("--set", setting)),
    *("--schedule", "zb-h1", "--schedule", "1f1b", "--adapt", "ski-rental"),
    *("--vary", "microbatches=12,6", "--event", "link paris--warsaw delay 60 ms at iteration 6"),
)
"""Of 24 samples, eight microbatches of three: none of the others cuts them where these do."""

TWO_LINKS = """
name: two-links
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}}
links:
  - {name: north, between: [paris, warsaw], delay: 10 ms, rate: 1 Gbit/s}
  - {name: south, between: [warsaw, paris], delay: 40 ms, rate: 300 Mbit/s}
"""
MOVED = (
    *(word for setting in ("memory=8", "warmup=1", "iterations=8", "message=900 kB") for word in ("--set", setting)),
    *("--schedule", "zb-h1", "--adapt", "ski-rental", "--vary", "routes=2"),
    *("--event", "link north rate 120 Mbit/s at iteration 2", "--event", "link north rate 1 Gbit/s at iteration 5"),
)
"""A route that is left, and recovers: only who looks at it comes back."""


REPLICAS = ("parallelism={data: 2, pipeline: 2}", "memory=6", "microbatches=5")
LARGER = ("warmup=1", "iterations=8", "model={kind: linear, layers: 8, d_model: 224, sequence: 8}")
"""As many parameters as a GPT of width 64; those of one are moved in tests/conformance/test_swapped_schedules.py."""
STAGES = (
    *(word for setting in (*REPLICAS, *LARGER) for word in ("--set", setting)),
    *("--schedule", "1f1b", "--schedule", "zb-v", "--adapt", "ski-rental", "--vary", "stages"),
    *("--event", "link paris--warsaw rate 700 Mbit/s at iteration 1"),
)
SHARDINGS = {"stages": "none", "shards": "zero-1"}
"""Of jobs whose stages move: each replica's own optimizer, or one that they share."""
CHAIN = """
name: chain
datacenters: {paris: {nodes: 2, inside: {rate: 20 Mbit/s}}, lyon: {nodes: 0}, warsaw: {nodes: 2}}
links:
  - {between: [paris, lyon], delay: 300 us, rate: 7 Mbit/s}
  - {between: [lyon, warsaw], delay: 300 us, rate: 9 Mbit/s}
"""
STAYS = (
    *(word for setting in ("parallelism.pipeline=2", "warmup=1", "iterations=4") for word in ("--set", setting)),
    *("--set", "message=70 kB", "--schedule", "zb-h1", "--adapt", "ski-rental", "--vary", "microbatches=4"),
)


def asked(place: Path) -> dict[str, Asked]:
    schedules = [word for name in SCHEDULES for word in ("--schedule", name)]
    plan = planned(place, "two-dc-longhaul", "tiny-gpt-pp4", *schedules, *WORDS)
    assert [case.label for case in plan.cases] == ["zb-h1"]
    more = {
        name: planned(place, "two-dc-longhaul", "tiny-gpt-pp4", *PIPELINES, "--set", f"parallelism.{axis}=2")
        for name, axis in {"replicas": "data", "tensor": "tensor"}.items()
    }
    more["cut"] = planned(place, "two-dc-longhaul", "tiny-gpt-pp4", *CUT)
    for name, sharding in SHARDINGS.items():
        shared = "--set", f"data_parallel.sharding={sharding}"
        more[name] = planned(place, "two-dc-longhaul", "tiny-gpt-pp4", *STAGES, *shared)
    (place / "two-links.yaml").write_text(TWO_LINKS)
    more["moved"] = planned(place, place / "two-links.yaml", "tiny-gpt-pp4", *MOVED)
    (place / "chain.yaml").write_text(CHAIN)
    more["chain"] = planned(place, place / "chain.yaml", "tiny-gpt-pp4", *STAYS)
    return {"adapting": Asked(plan, "relay")} | {
        name: Asked(plan, "relay", light=name not in SHARDINGS) for name, plan in more.items()
    }


@pytest.fixture(scope="module")
def rows(measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = measured["adapting"].document["adaptation"]["iterations"]
    return found


def test_links_in_a_chain_that_stay_as_planned_are_believed_to(measured: Mapping[str, Measured]) -> None:
    """Every link on the way, and a node's card, stores a probe before it goes on."""
    for row in measured["chain"].document["adaptation"]["iterations"]:
        assert list(row["probes_s"].values()) == pytest.approx([600e-6 + 12_000 / 7e6] * 2, rel=1e-4)
        assert row["changes"] == []


def test_the_controller_notices_what_its_job_can_see(rows: list[dict[str, Any]]) -> None:
    assert [row["iteration"] for row in rows] == list(range(8)), "the last one too"
    assert not any(row["alarms"] for row in rows[:3])
    assert set(rows[3]["alarms"]) == {"paris -> warsaw", "warsaw -> paris"}
    believed = rows[5]["delay_s"]
    assert believed["paris -> warsaw"] == pytest.approx(60e-3, rel=0.02)
    assert rows[5]["rate_bps"]["paris -> warsaw"] == pytest.approx(1e9, rel=0.05), "two sizes tell a delay from a rate"
    assert [row["happens"] for row in rows] == [[EVENT] if number == 3 else [] for number in range(8)]


def test_an_oracle_stands_beside_it(measured: Mapping[str, Measured], rows: list[dict[str, Any]]) -> None:
    oracle_s = sum(row["oracle_predicted_s"] for row in rows)
    assert oracle_s < sum(row["measured_s"] for row in rows) < sum(row["never_predicted_s"] for row in rows)
    assert [row["oracle_swaps"] for row in rows].count(True) >= 1
    picture = measured["adapting"].out / "adaptation.svg"
    draw_adaptation(measured["adapting"].document["adaptation"], "adapting", picture)
    assert "oracle (predicted)" in picture.read_text()


def test_its_page_says_what_adapting_brought(measured: Mapping[str, Measured], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run_testbed("report", measured["adapting"].out, "--html", page)
    assert done.returncode == 0, done.stderr
    said = page.read_text()
    assert "8 iterations with " in said
    assert "never adapting (predicted)" in said
    assert 'src="data:image/svg+xml;base64,' in said
    assert "Fastest" not in said, "schedules that had other links are not held against each other"


def test_it_swaps_and_that_is_worth_it(measured: Mapping[str, Measured], rows: list[dict[str, Any]]) -> None:
    swapped = [row for row in rows if row["swapped_to"]]
    assert swapped
    for row in swapped:
        assert row["expected_s"] < row["stays_s"]
        after = rows[row["iteration"] + 1]
        assert after["measured_s"] == pytest.approx(row["expected_s"], rel=0.01), "as it was expected"
    assert sum(row["measured_s"] for row in rows) < sum(row["never_predicted_s"] for row in rows)
    assert [row["idle_s"] is None for row in rows] == [False] * 7 + [True]
    assert all(0 < row["idle_s"] < 1 for row in rows[:-1])
    labels = [row["label"] for row in measured["adapting"].document["schedules"]]
    after = [row["iteration"] + 1 for row in swapped]
    assert labels == ["zb-h1", *(f"{row['swapped_to']} from {n}" for row, n in zip(swapped, after, strict=True))]


def test_each_part_is_predicted_and_its_numbers_are_one_processs(measured: Mapping[str, Measured]) -> None:
    for row in measured["adapting"].document["schedules"]:
        assert row["trusted"], row["reasons"]
        assert abs(row["error"]) <= MODEL_SHARE.value


def test_the_plan_that_is_kept_repeats_the_swaps(measured: Mapping[str, Measured]) -> None:
    kept = file.read(measured["adapting"].out / "plan.json")
    assert kept.adaptation is None
    swaps = [row for row in measured["adapting"].document["adaptation"]["iterations"] if row["swapped_to"]]
    assert len(kept.cases) == len(swaps) + 1
    done = run_testbed("predict", measured["adapting"].out)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["replicas", "tensor"])
def test_replicas_and_tensor_ranks_adapt(measured: Mapping[str, Measured], name: str) -> None:
    document = measured[name].document
    rows = document["adaptation"]["iterations"]
    assert set(rows[3]["alarms"]) == {"paris -> warsaw", "warsaw -> paris"}, "and no rank, whatever it runs"
    assert rows[4]["delay_s"]["paris -> warsaw"] == pytest.approx(60e-3, rel=0.02)
    assert any(row["swapped_to"] for row in rows)
    for row in document["schedules"]:
        assert row["trusted"], row["reasons"]
        assert abs(row["error"]) <= MODEL_SHARE.value


@pytest.mark.parametrize("name", ["cut", "moved", *SHARDINGS])
def test_what_else_it_changes_is_predicted_and_numbers_are_one_processs(
    measured: Mapping[str, Measured], name: str
) -> None:
    rows = measured[name].document["schedules"]
    assert len(rows) >= 2
    for row in rows:
        assert row["trusted"], row["reasons"]
        assert abs(row["error"]) <= MODEL_SHARE.value
        asked_of = [check["question"] for check in row["checks"] if "one process" in check["question"]]
        assert asked_of


def test_a_batch_is_cut_anew(measured: Mapping[str, Measured]) -> None:
    kept = file.read(measured["cut"].out / "plan.json")
    counts = [case.jobs[0].microbatches for case in kept.cases]
    assert counts[0] is None
    assert set(counts[1:]) & {12, 6}, "as its workload has it at first only"
    rows = measured["cut"].document["adaptation"]["iterations"]
    assert [row["iteration"] for row in rows if row["alarms"]] == [6], "no swap is a change of a link or a rank"
    assert all(len(case.jobs[0].rows or ()) == 4 for case in kept.cases)


def test_flows_are_moved_to_another_route_and_back(measured: Mapping[str, Measured]) -> None:
    events = [event for event in measured["moved"].document["events"] if event["flows_moved"]]
    assert [event["flows_cut"] for event in events] == [0, 0]
    kept = file.read(measured["moved"].out / "plan.json")
    there, gone, back = (set(filter(None, case.routes)) for case in kept.cases)
    assert (there, gone, back) == ({(0,), (1,)}, {(2,), (3,)}, {(0,), (1,)})
    rows = measured["moved"].document["adaptation"]["iterations"]
    used = {"paris -> warsaw over south", "warsaw -> paris over south"}
    assert [set(row["probes_s"]) == used for row in rows] == [row["schedule"].endswith("over south") for row in rows]
    assert rows[3]["rate_bps"]["paris -> warsaw"] == pytest.approx(120e6, rel=0.02)
    assert rows[-1]["rate_bps"]["paris -> warsaw"] == pytest.approx(1e9, rel=0.02)


def test_a_look_beside_an_iteration_sees_a_route_recover_and_is_on_the_links_books(
    measured: Mapping[str, Measured],
) -> None:
    """That iterations beside it are as predicted, and links carried no more, is in what each part is held to."""
    rows = measured["moved"].document["adaptation"]["iterations"]
    (seen,) = [row for row in rows if row["changes"] and row["looked_at"]]
    assert set(seen["looked_at"]) == set(seen["changes"]) == {"paris -> warsaw", "warsaw -> paris"}
    assert seen["look_s"] == 0, "on links that the job does not use"
    looked = sum(row["look_bytes"] for row in rows)
    links = pyarrow.parquet.read_table(measured["moved"].out / "links.parquet").to_pylist()
    (gone,) = {row["schedule"] for row in links if "over south" in row["schedule"]}
    for row in (row for row in links if row["schedule"] == gone and "north" in row["label"]):
        assert row["wire_bytes"] == row["planned_bytes"] == looked > 0


@pytest.mark.parametrize(("name", "kind"), [("cut", "microbatches"), ("moved", "routes")])
def test_what_a_swap_took_is_measured_and_believed_of_the_next(
    measured: Mapping[str, Measured], name: str, kind: str
) -> None:
    """The receives that are posted are used up by messages that cross the link; for other routes none is sent."""
    adaptation = measured[name].document["adaptation"]
    swaps = [row for row in adaptation["iterations"] if row["swap"] == kind]
    assert (swaps[0]["swap_sends_s"] > 5e-3) == (kind == "microbatches")
    assert swaps[0]["swap_believed_s"] == pytest.approx(adaptation["swap_s"] + swaps[0]["swap_sends_s"])
    for row in swaps:
        assert row["swap_took_s"] == pytest.approx(row["swap_sends_s"], rel=0.02, abs=1e-4)
    for row in swaps[1:]:
        assert row["swap_believed_s"] == pytest.approx(row["swap_took_s"], rel=0.02, abs=1e-4)
    assert all(0 < row["probing_s"] < row["idle_s"] for row in adaptation["iterations"][:-1])


@pytest.mark.parametrize("name", SHARDINGS)
def test_weights_that_move_take_what_is_predicted_and_are_counted(measured: Mapping[str, Measured], name: str) -> None:
    document = measured[name].document
    (weights, *_) = [entry for event in document["events"] for entry in event.get("weights", ())]
    assert weights["moved_bytes"] > 2.5e5, "of the model that was asked for"
    assert weights["took_s"] == pytest.approx(weights["predicted_s"], rel=0.02)
    assert weights["wire_bytes"] == pytest.approx(weights["planned_wire_bytes"], rel=0.02)
    (swap, *_) = [row for row in document["adaptation"]["iterations"] if row["swap"] == "weights"]
    assert swap["swap_took_s"] == weights["took_s"]
    assert swap["swap_sends_s"] == pytest.approx(weights["predicted_s"], rel=0.05), "by what it believes of the link"
    assert swap["swap_believed_s"] == pytest.approx(swap["swap_sends_s"] + document["adaptation"]["swap_s"])
