"""Beyond which rate nothing is gained: the sweep, its two named rates, the picture, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.knee import _document as knee_document
from testbed.cli.knee import _draw as draw_knees
from testbed.errors import BadInput
from testbed.plan.framing import wire_bytes
from testbed.plan.plan import Plan
from testbed.planning.prediction import ranges_of_case
from testbed.planning.resolve import load_plan, make_plan
from testbed.planning.ties import Range
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.sweep import knee
from testbed.sweep.knee_picture import Curve, draw
from testbed.sweep.measured_rates import spread
from testbed.vm import command

ROOT = Path(__file__).parents[2]
LONGHAUL, CHAIN = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "topologies/three-region.yaml"
PP4 = ROOT / "workloads/tiny-gpt-pp4.yaml"
SETTINGS = ["memory=32", "microbatches=32"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_plan(LONGHAUL, PP4, settings=SETTINGS)


def test_geopipe_gains_nothing_above_a_full_link_and_1f1b_goes_on_gaining(plan: Plan) -> None:
    links = knee.links_of(load_topology(LONGHAUL), plan, None)
    choices = knee.choices_of(plan, ["1f1b", "geopipe"])
    tau, wire = 0.06, wire_bytes(1_000_000) + plan.host_costs.gloo_bytes
    full = knee.full_bps(plan, choices[1], links)
    assert full == pytest.approx(8 * wire / tau)
    rates = [full * factor for factor in (0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 8.0, 16.0)]
    found = knee.sweep(plan, links, choices, rates, 0.01)
    geopipe = [one.seconds["geopipe"] for one in found.swept]
    plain = [one.seconds["1f1b"] for one in found.swept]
    assert plain == sorted(plain, reverse=True)
    below, above = (geopipe[0] - geopipe[2]) / geopipe[2], (geopipe[2] - geopipe[-1]) / geopipe[2]
    assert below > 0.8
    assert above < 0.08
    first, second = found.knees
    assert first.enough_bps is None
    assert second.enough_bps is not None
    at = knee.judged(knee.at_rate(plan, links, second.enough_bps), [choices[1]], second.enough_bps)
    assert at.seconds["geopipe"] == pytest.approx(1.01 * second.unlimited_s, rel=1e-3)
    assert second.unlimited_s < geopipe[-1]


def test_one_link_is_swept_or_all_alike() -> None:
    topology, plan = load_topology(CHAIN), load_plan(CHAIN, PP4)
    every = knee.at_rate(plan, knee.links_of(topology, plan, None), 5e6)
    assert {one.rate_bps for one in every.network.directions} == {5e6}
    assert every.framing != plan.framing
    one = knee.at_rate(plan, knee.links_of(topology, plan, "wuhan--guangzhou"), 5e6)
    assert [direction.rate_bps for direction in one.network.directions] == [5e6, 5e6, 1e9, 1e9]
    with pytest.raises(BadInput, match="a link of three-region \\(wuhan--guangzhou, guangzhou--shenzhen\\)"):
        knee.links_of(topology, plan, "north")
    alone = topology.model_copy(update={"name": "alone", "links": []})
    with pytest.raises(BadInput, match="alone: links: got 'none', expected one or more, whose rate is swept"):
        knee.links_of(alone, plan, None)
    with pytest.raises(BadInput, match=r"paris--warsaw.*a link that messages of the pipeline cross"):
        knee.rates_around(0.0, 5, name="paris--warsaw")
    with pytest.raises(BadInput, match="the same at every rate"):
        knee.choices_of(plan, ["best"])


def test_no_rate_is_swept_that_background_traffic_fills() -> None:
    topology = load_topology(CHAIN, {"background": "[{from: wuhan, to: shenzhen, rate: 95 Mbit/s}]"})
    plan = make_plan(topology, load_workload(PP4))
    links = knee.links_of(topology, plan, None)
    least = knee.least_bps(plan, links)
    assert least == pytest.approx(100e6), "of which 5 % are left"
    assert knee.rates_around(133e6, 5, least)[::4] == pytest.approx([100e6, 32 * 133e6])
    assert knee.rates_around(800e6, 5, least)[::4] == pytest.approx([200e6, 32 * 800e6])
    assert knee.least_bps(load_plan(CHAIN, PP4), links) == 0


def test_measured_rates_are_spread_with_both_ends() -> None:
    assert spread(29, 5) == [0, 7, 14, 21, 28]
    assert spread(29, 1) == [14]
    assert spread(3, 100) == [0, 1, 2]


def trained(_: object, trainings: list[command.GuestTraining], **__: object) -> tuple[None, list[dict[str, Any]]]:
    """What a guest would have measured: the prediction and a thousandth."""
    documents = []
    for one in trainings:
        assert one.plan.clock.name == "virtual"
        assert one.plan.jobs[0].workload.iterations == 1
        rate = one.plan.network.directions[0].rate_bps
        row = {"label": "geopipe", "measured_s": 1e8 / rate, "error": 0.001, "trusted": rate > 100e6}
        row["reasons"] = [] if row["trusted"] else ["loss differs", "gradients differ"]
        documents.append({"schedules": [row]})
    return None, documents


def test_the_command_draws_and_names_the_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "train", trained)
    monkeypatch.setattr(command, "choose_machine", lambda clock: clock)
    picture = tmp_path / "k.svg"
    words = ["knee", str(LONGHAUL), str(PP4), "--points", "5", "--schedule", "geopipe", "--picture", str(picture)]
    words += [part for one in SETTINGS for part in ("--set", one)] + ["--quiet"]
    shown = CliRunner().invoke(app, [*words, "--measure", "2"], env={"COLUMNS": "80"})
    assert shown.exit_code == 5, "at the lowest rate it is not trusted"
    # but for where the picture is, which nobody could copy if it were cut
    assert max(len(line) for line in shown.output.splitlines() if "drawn in" not in line) <= 80
    assert shown.output.count("+0.100%") == 2
    assert " untrusted: loss differs (and 1 more)" in " ".join(shown.output.split())
    drawn = picture.read_text(encoding="utf-8")
    assert "geopipe, measured" in drawn
    assert "S/(B tau) = 1 at 134.3 Mbit/s" in drawn
    assert "the topology's own, 1 Gbit/s" in drawn
    assert "own rate is 1 Gbit/s: enough for geopipe" in " ".join(shown.output.split())
    told = CliRunner().invoke(app, [*words, "--json"])
    assert told.exit_code == 0, told.output
    document = json.loads(told.output)
    assert [one["label"] for one in document["knees"]] == ["geopipe"]
    assert document["own_bps"] == [1e9]
    assert document["knees"][0]["full_bps"] == pytest.approx(134.3e6, rel=1e-3)
    assert len(document["rates"]) == 5
    slow_back = ["--set", "topology.links.0.reverse={rate: 100 Mbit/s}"]
    unlike = " ".join(CliRunner().invoke(app, [*words, *slow_back]).output.split())
    assert "own rate of warsaw->paris is 100 Mbit/s: geopipe would gain from more" in unlike
    assert "own rate of paris->warsaw is 1 Gbit/s: enough for geopipe" in unlike
    refused = CliRunner().invoke(app, [*words, "--picture", "k.pdf"])
    assert isinstance(refused.exception, BadInput)


def test_a_range_is_shown_wherever_a_time_is_and_judged_by_its_worst_end(plan: Plan, tmp_path: Path) -> None:
    links, (choice,) = knee.links_of(load_topology(LONGHAUL), plan, None), knee.choices_of(plan, ["1f1b"])
    at = knee.judged(plan, [choice], 1e9)
    assert at.ranges == {case.label: one for case in at.plan.cases for one in ranges_of_case(at.plan, case)}
    assert at.worst_s("1f1b") == at.seconds["1f1b"]
    assert not at.is_order_sensitive("1f1b")
    between = Range(at.seconds["1f1b"], 1.1 * at.seconds["1f1b"])
    ranged = at._replace(rate_bps=2e9, ranges={"1f1b": between})
    assert ranged.is_order_sensitive("1f1b")
    assert ranged.worst_s("1f1b") == between.high_s
    found = knee.Sweep(links, (at, ranged), (knee.Knee("1f1b", at.seconds["1f1b"], between, None, 1e8),))
    document = knee_document(found, {}, 1.0, Path("k.svg"), 0.5)
    assert [one["predicted_high_s"] for one in document["rates"]] == [{}, {"1f1b": between.high_s}]
    assert document["rates"][1]["full_scale"]["predicted_low_s"] == {"1f1b": between.low_s / 0.5}
    assert document["knees"][0]["unlimited_high_s"] == between.high_s
    draw_knees(found, {}, tmp_path / "k.svg", "", 0.01, None)
    assert "1f1b, by who comes first of messages that meet" in (tmp_path / "k.svg").read_text(encoding="utf-8")


def test_what_cannot_be_written_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("work was done first")

    monkeypatch.setattr("testbed.planning.resolve.load_plan", never)
    monkeypatch.setattr("testbed.spec.load_workload", never)
    for command_line, named in (
        (f"knee {LONGHAUL} {PP4} --measure 1 --out /proc/kept", "--out"),
        (f"knee {LONGHAUL} {PP4} --picture /proc/k.svg", "--picture"),
        (f"route {LONGHAUL} {PP4} --picture /proc/k.svg", "--picture"),
        (f"schedule show {LONGHAUL} {PP4} --svg /proc/k.svg", "--svg"),
        (f"compare-axes {PP4} --picture /nowhere/at/all.png", "--picture"),
        (f"report {LONGHAUL.parent} --svg /proc/k.svg", "--svg"),
    ):
        refused = CliRunner().invoke(app, command_line.split())
        assert isinstance(refused.exception, BadInput), command_line
        assert str(refused.exception).startswith(f"{named}: "), command_line


def test_equal_schedules_share_a_curve(tmp_path: Path) -> None:
    times = [(1e8, 2.0), (1e9, 1.0)]
    curves = [Curve("first", times, [], 1.0, None, 1e8), Curve("second", times, [(1e8, 2.0)], 1.0, None, 1e8)]
    apart = Curve("third", [(1e8, 3.0), (1e9, 1.0)], [], 1.0, 5e8, 2e8)
    draw([*curves, apart], tmp_path / "k.svg", heading="", share=0.01)
    drawn = (tmp_path / "k.svg").read_text(encoding="utf-8")
    assert "first = second, predicted" in drawn
    assert "first = second, measured" in drawn
    assert "third, predicted, within 1% from 500 Mbit/s" in drawn
    assert "(third)" in drawn, "whose rate a line is, where they differ"


def test_a_job_at_full_scale_has_labelled_times_of_both_worlds(tmp_path: Path) -> None:
    picture = tmp_path / "knee.svg"
    words = ["knee", str(ROOT / "topologies/multicore-410km.yaml"), str(ROOT / "workloads/paper-llama2-13b.yaml")]
    words += ["--schedule", "1f1b", "--points", "3", "--picture", str(picture), "--quiet"]
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    lab = document["lab_seconds"]
    assert lab not in (None, 1)
    for one in document["rates"]:
        assert one["full_scale"]["predicted_s"]["1f1b"] == pytest.approx(one["predicted_s"]["1f1b"] / lab)
    for one in document["knees"]:
        assert one["full_scale"]["unlimited_s"] == pytest.approx(one["unlimited_s"] / lab)
    drawn = picture.read_text()
    assert "iteration at full scale" in drawn
    assert "iteration in the lab" in drawn
    shown = " ".join(CliRunner().invoke(app, words).stdout.split())
    assert "iteration at full scale" in shown
    assert "iteration in the lab" in shown


def test_a_job_of_the_lab_has_no_second_world(tmp_path: Path) -> None:
    words = ["knee", str(LONGHAUL), str(PP4), "--schedule", "1f1b", "--points", "3", "--quiet", "--json"]
    document = json.loads(CliRunner().invoke(app, [*words, "--picture", str(tmp_path / "knee.svg")]).stdout)
    assert document["lab_seconds"] is None
    assert all(one["full_scale"] is None for one in (*document["rates"], *document["knees"]))
