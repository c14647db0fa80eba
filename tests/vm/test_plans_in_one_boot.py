"""Many small plans measured in one boot of the virtual clock: model, relay and netem agree on them.

Every option of a topology and of a workload is measured by `benchmarks/option_conformance.py`; three are here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from testbed.cli.run_tables import ranking_line, uncovered
from testbed.judge.comparison import rows_of
from testbed.lab.loss import likely_losses
from testbed.model.compiled import makespan
from testbed.pipeline.problem import PipelineRoutes
from testbed.plan.costs import problem
from testbed.plan.plan import Clock, Plan
from testbed.planning import file
from testbed.planning.resolve import generate, load_plan, with_cases, with_clock
from testbed.planning.schedules import choose, make
from testbed.thresholds import LOSS_CHANCE, TIE
from testbed.vm import guest_machine, kernel

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import asymmetric_links
import harness.rows
import option_conformance
import option_pairs

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]  # a boot takes minutes on a machine that has much to do

ROOT = Path(__file__).parents[2]
DEADLINE_S = 560
WORKLOAD = ROOT / "workloads/tiny-gpt-pp4.yaml"
SHAPERS = ("relay", "netem")
MODELLED, BY_CHANCE, FULL = "all that the model has", "loss and jitter one way", "queue that overflows"
CONFORMING = [option for option in option_conformance.OPTIONS if option.name in (MODELLED, BY_CHANCE, FULL)]

CARDS = """
name: cards
datacenters:
  paris: {nodes: 2, inside: {delay: 10 us, rate: 500 Mbit/s}}
  warsaw: {nodes: 2, inside: {delay: 20 us, rate: 10 Gbit/s}}
links:
  - {between: [paris, warsaw], delay: 5 ms, rate: 1 Gbit/s}
"""
PARALLEL = """
name: parallel
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}}
links:
  - {name: north, between: [paris, warsaw], delay: 5 ms, rate: 1 Gbit/s}
  - {name: south, between: [paris, warsaw], delay: 8 ms, rate: 500 Mbit/s}
routes: [{from: paris, to: warsaw, via: [south]}]
"""
UNLIKE = """
name: unlike
datacenters: {paris: {nodes: 1}, warsaw: {nodes: 1}}
links:
  - between: [paris, warsaw]
    forward: {delay: 5 ms, rate: 10 Mbit/s}
    reverse: {delay: 0.2 ms, rate: 1 Gbit/s}
"""
DRAWN = (0,)
"""Plans of the benchmark."""
PAIRS = tuple(cell for cell in option_pairs.cells(1, 10, 0) if cell.number in (1, 9))
"""Of the covering array of all options."""


class Measured(NamedTuple):
    """A plan and what came of it."""

    plan: Plan
    document: dict[str, Any]
    out: Path


def plan_of(topology: Path, *settings: str, schedules: str, iterations: int) -> Plan:
    settings = (*settings, f"schedules={schedules}", f"iterations={iterations}")
    plan = load_plan(topology, WORKLOAD, settings=settings)
    made = make(plan, choose(plan))
    return with_clock(with_cases(plan, made.choices, made.made), Clock("virtual"))


def over_four_datacenters() -> Plan:
    """Loop placement and slow links: messages of the last stage pass other sites' routers."""
    pairs = ("madrid, paris", "paris, berlin", "berlin, stockholm")
    links = ", ".join(f"{{between: [{pair}], delay: 5 ms, rate: 200 Mbit/s}}" for pair in pairs)
    settings = ("memory=8", "warmup=2", f"topology.links=[{links}]")
    return plan_of(ROOT / "topologies/four-dc.yaml", *settings, schedules="[zb1p]", iterations=1)


def over_unlike_directions(topology: Path) -> Plan:
    """Acknowledgements of one way wait behind the messages of the other, 0.26 s each."""
    job = ("parallelism={pipeline: 2}", "microbatches=7", "message=330 kB", "memory=14", "warmup=1")
    tiny = ("pacing={F: 5 ms, I: 5 ms, W: 5 ms}", "model={layers: 4, d_model: 16, heads: 2, sequence: 8}")
    return plan_of(topology, *job, *tiny, schedules="[interleaved-1f1b]", iterations=1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, time_travel_kernel: kernel.Kernel) -> Mapping[str, Measured]:
    place = tmp_path_factory.mktemp("plans")
    for name, text in (("cards", CARDS), ("parallel", PARALLEL), ("unlike", UNLIKE)):
        (place / f"{name}.yaml").write_text(text)
    cards = plan_of(place / "cards.yaml", "microbatches=6", schedules="[1f1b, crosspipe-greedy]", iterations=1)
    parallel = plan_of(place / "parallel.yaml", "microbatches=4", schedules="[1f1b]", iterations=1)
    plans = {
        "four datacenters": (over_four_datacenters(), place / "four", "netem"),
        "cards": (cards, place / "with-cards", "netem"),
        "parallel": (parallel, place / "in-parallel", "netem"),
        "unlike": (over_unlike_directions(place / "unlike.yaml"), place / "unlike-directions", "netem"),
    }
    for number in DRAWN:
        training = asymmetric_links.training(number, 1, 2, place)
        plans[f"drawn {number}"] = with_clock(training.plan, Clock("virtual")), training.directory, "netem"
    for cell in PAIRS:
        plans[f"pairs {cell.number}"] = option_pairs.plan_of(cell, 1, 1, place), place / f"pairs-{cell.number}", "netem"
    for option in CONFORMING:
        for shaper in SHAPERS:
            at = f"{shaper}, virtual"
            out = option_conformance.directory(place, option, at)
            plans[f"{option.name}: {at}"] = (option_conformance.plan_of(option), out, shaper)
    asked = []
    for number, (plan, out, shaper) in enumerate(plans.values()):
        (place / f"plan{number}.json").write_text(file.to_json(plan))
        asked.append([str(place / f"plan{number}.json"), str(out), shaper])
    (place / "trainings.json").write_text(json.dumps(asked))
    command = [sys.executable, str(Path(__file__).with_name("train_in_one_boot.py")), str(place / "trainings.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    documents = json.loads(done.stdout.splitlines()[-1])
    return {
        name: Measured(plan, document, out)
        for (name, (plan, out, _)), document in zip(plans.items(), documents, strict=True)
    }


def require_true(one: Measured) -> None:
    for row in one.document["schedules"]:
        assert row["trusted"], row
        assert abs(row["error"]) <= 0.001, row


def test_bursts_at_routers_and_acknowledgements_are_in_the_model(measured: Mapping[str, Measured]) -> None:
    one = measured["four datacenters"]
    require_true(one)
    (choice,) = choose(one.plan)
    whole = problem(one.plan, choice)
    together = replace(whole, pipelines=tuple(PipelineRoutes(pipeline.routes) for pipeline in whole.pipelines))
    (row,) = one.document["schedules"]
    assert abs(row["measured_s"] / makespan(together, generate(one.plan, choice).schedule) - 1) > 0.01, (
        "this plan tells nothing"
    )


def test_messages_queue_on_network_cards_as_the_model_says(measured: Mapping[str, Measured]) -> None:
    one = measured["cards"]
    require_true(one)
    links = json.loads((one.out / "links.json").read_text())["links"]
    cards = [check for check in links if "card" in check["label"]]
    assert [check["label"] for check in cards] == [
        f"{site}/{n}->{site} (card)" for site in ("paris", "warsaw") for n in (0, 1)
    ]
    for check in cards:
        assert check["measured"]["one_way_s"]["median"] == pytest.approx(check["asked"]["delay_s"], abs=5e-6)
        assert check["measured"]["rate_bps"] == pytest.approx(check["asked"]["rate_bps"], rel=0.01)
    counted = pd.read_parquet(one.out / "links.parquet")
    on_cards = counted[counted["label"].str.contains("card")]
    assert len(on_cards) == 2 * len(cards)
    assert (on_cards["wire_bytes"] / on_cards["planned_bytes"] - 1).abs().max() <= 0.01
    assert (on_cards["dropped"] == 0).all()


def test_traffic_over_the_second_of_two_parallel_links_is_counted_there(measured: Mapping[str, Measured]) -> None:
    one = measured["parallel"]
    require_true(one)
    links = pd.read_parquet(one.out / "links.parquet")
    assert (links["wire_bytes"] > 12e6).tolist() == [False, True, True, False]  # north and south, each both ways
    assert links["wire_bytes"].to_numpy() == pytest.approx(links["planned_bytes"].to_numpy(), rel=0.002)


@pytest.mark.parametrize("name", ["unlike", *(f"drawn {number}" for number in DRAWN)])
def test_directions_that_are_nothing_alike(measured: Mapping[str, Measured], name: str) -> None:
    """Every super-packet is as long as planned, however long acknowledgements wait: one acknowledgement for each."""
    one = measured[name]
    for row in harness.rows.rows_of(name, one.document, {}):
        assert row.trusted, row
        assert row.missed <= asymmetric_links.TARGET, row
    assert asymmetric_links.off_the_plan(one.out) <= 0.0005


def test_options_beside_each_other(measured: Mapping[str, Measured]) -> None:
    found = {cell.number: measured[f"pairs {cell.number}"].document for cell in PAIRS}
    rows = [row for number, run in found.items() for row in harness.rows.rows_of(str(number), run, {}) if row.covered]
    assert rows
    for row in rows:
        assert row.trusted, row
        assert row.missed <= option_pairs.TARGET, row


@pytest.mark.parametrize(
    ("name", "verdict"),
    [(MODELLED, "agree"), (BY_CHANCE, "losses as chance allows"), (FULL, "both drop, untrusted")],
)
def test_relay_netem_and_model_agree(measured: Mapping[str, Measured], name: str, verdict: str) -> None:
    (option,) = [option for option in CONFORMING if option.name == name]
    places = {f"{shaper}, virtual": measured[f"{name}: {shaper}, virtual"] for shaper in SHAPERS}
    place = places["relay, virtual"].out.parent
    row = option_conformance.row_of(option, {at: one.document for at, one in places.items()}, place)
    assert not row.disagreements()
    assert row.good() == verdict
    if name == BY_CHANCE:  # who asks for losses is not told that something is wrong
        assert all(shaper in row.lost_and_dropped() for shaper in SHAPERS)
        for one in places.values():
            require_losses_told(one)


def require_losses_told(one: Measured) -> None:
    """Packets that were to be lost, and were, are counted wherever the run is spoken of; it is of no prediction."""
    counted = pd.read_parquet(one.out / "links.parquet")
    lost = int(counted["lost"].sum() + counted["dropped"].sum())
    assert lost > 0
    for row in (rows := rows_of(one.document)):
        assert row.trusted, row
        assert not row.covered
        assert row.packets_lost == lost
        (check,) = (check for check in row.checks if check["question"] == "packets lost")
        assert (check["found"], check["limit"]) == (str(lost), "not lossless")
        assert any("loss is not in the model" in line for line in row.left_out)
    evidence = json.loads((one.out / "evidence.json").read_text())
    assert [case["drops"] for case in evidence.values()] == [lost]
    assert f"1f1b: {lost} packets lost" in uncovered(rows)
    assert f"not covered by the model: 1f1b (packets lost: {lost})" in ranking_line(rows, TIE)


def test_netem_in_real_time_has_queue_and_losses(packaged_machine: guest_machine.GuestMachine, tmp_path: Path) -> None:
    """Nothing here hangs on the time that a busy host takes: how many packets are lost, and that none is dropped."""
    (tmp_path / "lossy.yaml").write_text(
        "name: lossy\ndatacenters: {a: {nodes: 1}, b: {nodes: 1}}\n"
        "links: [{between: [a, b], delay: 5 ms, rate: 50 Mbit/s, queue: 1 MB, forward: {loss: 0.2}}]\n"
    )
    command = [sys.executable, "-m", "testbed", "calibrate", str(tmp_path / "lossy.yaml"), "--vm", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 5), done.stderr
    forward, _ = json.loads(done.stdout)["links"]
    sent, lost = forward["measured"]["losses"]["sent"], forward["measured"]["losses"]["lost"]
    fewest, most = likely_losses(sent, 0.2, LOSS_CHANCE)
    assert fewest <= lost <= most, forward
    assert forward["measured"]["dropped"] == 0, forward
