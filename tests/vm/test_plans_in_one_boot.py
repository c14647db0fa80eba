"""Many small plans measured in one boot of the virtual clock: model, relay and netem agree on them.

Every option of a topology and of a workload is measured by `benchmarks/option_conformance.py`; three are here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from one_boot import MARKS, Asked, Measured

from testbed.cli.run_tables import ranking_line, uncovered
from testbed.judge.comparison import rows_of
from testbed.model.compiled import makespan
from testbed.pipeline.problem import PipelineRoutes
from testbed.plan.costs import problem
from testbed.plan.plan import Clock, Plan
from testbed.planning.resolve import generate, load_plan, with_cases, with_clock
from testbed.planning.schedules import choose, make
from testbed.thresholds import TIE

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import asymmetric_links
import harness.rows
import option_conformance
import option_pairs
from harness.plans import training

pytestmark = MARKS

ROOT = Path(__file__).parents[2]
WORKLOAD = ROOT / "workloads/tiny-gpt-pp4.yaml"
SHAPERS = ("relay", "netem")
MODELLED, BY_CHANCE, FULL = "all that the model has", "loss and jitter one way", "queue that overflows"
CONFORMING = [option for option in option_conformance.OPTIONS if option.name in (MODELLED, BY_CHANCE, FULL)]

CARDS = """
name: cards
datacenters:
  paris: {nodes: 2, inside: {delay: 10 us, rate: 500 Mbit/s}}
  warsaw: {nodes: 2, inside: {delay: 20 us, rate: 40 Gbit/s}}
links:
  - {between: [paris, warsaw], delay: 5 ms, rate: 1 Gbit/s}
"""
PARALLEL = """
name: parallel
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}}
links:
  - {name: north, between: [paris, warsaw], delay: 5 ms, rate: 1 Gbit/s}
  - {name: south, between: [paris, warsaw], delay: 8 ms, rate: 500 Mbit/s}
  - {name: far, between: [paris, warsaw], delay: 40 ms, rate: 100 Gbit/s}
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


@cache
def pairs() -> tuple[option_pairs.Cell, ...]:
    """Of the covering array of all options: a controller that may cut batches anew where slots vary, beside traffic and
    a rate that changes; several TCP streams and three jobs on a link that becomes longer, and is lost behind that.

    Not when this file is imported: the array takes seconds, which every process that collects tests would need.
    """
    return tuple(cell for cell in option_pairs.cells(1, 113, 0) if cell.number in (45, 112))


def plan_of(topology: Path, *settings: str, schedules: str, iterations: int) -> Plan:
    settings = (*settings, f"schedules={schedules}", f"iterations={iterations}")
    plan = load_plan(topology, WORKLOAD, settings=settings)
    made = make(plan, choose(plan))
    return with_clock(with_cases(plan, made.choices, made.made), Clock("virtual"))


def over_four_datacenters() -> Plan:
    """Loop placement and slow links: messages of the last stage pass other sites' routers."""
    pairs = ("madrid, paris", "paris, berlin", "berlin, stockholm")
    links = ", ".join(f"{{between: [{pair}], delay: 5 ms, rate: 20 Mbit/s}}" for pair in pairs)
    settings = ("memory=8", "warmup=2", "message=100 kB", f"topology.links=[{links}]")
    return plan_of(ROOT / "topologies/four-dc.yaml", *settings, schedules="[zb1p]", iterations=1)


def over_unlike_directions(topology: Path) -> Plan:
    """Acknowledgements of one way wait behind the messages of the other, 0.26 s each."""
    job = ("parallelism={pipeline: 2}", "microbatches=7", "message=330 kB", "memory=14", "warmup=1")
    tiny = ("pacing={F: 5 ms, I: 5 ms, W: 5 ms}", "model={layers: 4, d_model: 16, heads: 2, sequence: 8}")
    return plan_of(topology, *job, *tiny, schedules="[interleaved-1f1b]", iterations=1)


def asked(place: Path) -> dict[str, Asked]:
    for name, text in (("cards", CARDS), ("parallel", PARALLEL), ("unlike", UNLIKE)):
        (place / f"{name}.yaml").write_text(text)
    cards = plan_of(place / "cards.yaml", "microbatches=6", schedules="[1f1b, crosspipe-greedy]", iterations=1)
    parallel = plan_of(place / "parallel.yaml", "microbatches=4", schedules="[1f1b]", iterations=1)
    plans = {
        "four datacenters": Asked(over_four_datacenters()),
        "cards": Asked(cards),
        "parallel": Asked(parallel),
        "unlike": Asked(over_unlike_directions(place / "unlike.yaml")),
    }
    for number in DRAWN:
        plan = training(place, f"plan-{number}", *asymmetric_links.documents(number, 1, 2)).plan
        plans[f"drawn {number}"] = Asked(with_clock(plan, Clock("virtual")))
    plans |= {f"pairs {cell.number}": Asked(option_pairs.plan_of(cell, 1, 1, place)) for cell in pairs()}
    for option in CONFORMING:
        plans |= {f"{option.name}: {shaper}": Asked(option_conformance.plan_of(option), shaper) for shaper in SHAPERS}
    return plans


def require_true(one: Measured) -> None:
    for row in one.document["schedules"]:
        assert row["trusted"], row["reasons"]
        assert abs(row["error"]) <= 0.001, (row["label"], row["error"])


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
    assert (links["wire_bytes"] > 12e6).tolist() == [False, True, True, *[False] * 3]  # each both ways
    assert links["wire_bytes"].to_numpy() == pytest.approx(links["planned_bytes"].to_numpy(), rel=0.002)


def test_a_link_that_no_connection_could_fill_is_measured_with_shorter_delays(measured: Mapping[str, Measured]) -> None:
    """A gigabyte is under way on it, which is the most that TCP has; its delays are as asked before and afterwards."""
    links = json.loads((measured["parallel"].out / "links.json").read_text())["links"]
    far = [link for link in links if link["asked"]["rate_bps"] == 100e9]
    assert [link["reasons"] for link in links] == [[]] * 6
    assert [link["attempts"] for link in links] == [1] * 6
    for link in far:
        assert link["measured"]["rate_bps"] == pytest.approx(100e9, rel=0.001)
        assert link["measured"]["one_way_s"]["median"] == pytest.approx(40e-3, rel=1e-4)
        assert link["notes"] == ["rate measured with 27% of the delays: TCP could not fill the link with all"]
    manifest = json.loads((measured["parallel"].out / "manifest.json").read_text())
    assert [link["delay_ns"] for link in manifest["lab"]["links"][-2:]] == [40_000_000] * 2


@pytest.mark.parametrize("name", ["unlike", *(f"drawn {number}" for number in DRAWN)])
def test_directions_that_are_nothing_alike(measured: Mapping[str, Measured], name: str) -> None:
    """Every super-packet is as long as planned, however long acknowledgements wait: one acknowledgement for each."""
    one = measured[name]
    for row in harness.rows.rows_of(name, one.document, {}):
        assert row.trusted, row
        assert row.missed <= asymmetric_links.TARGET, row
    assert asymmetric_links.off_the_plan(one.out) <= 0.0005


def test_options_beside_each_other(measured: Mapping[str, Measured]) -> None:
    found = {cell.number: measured[f"pairs {cell.number}"].document for cell in pairs()}
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
    places = {f"{shaper}, virtual": measured[f"{name}: {shaper}"] for shaper in SHAPERS}
    found, results = ({at: getattr(one, of) for at, one in places.items()} for of in ("document", "out"))
    row = option_conformance.row_of(option, found, results)
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
