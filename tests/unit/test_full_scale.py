"""Workloads at full scale: counts against published numbers, ratios kept, one schedule at every lab scale, HBM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import BadInput, DoesNotFit
from testbed.full_scale import similitude
from testbed.full_scale.derivation import derivation
from testbed.full_scale.similitude_bound import CAUSES, full_scale_time, longest_chain
from testbed.plan import counts
from testbed.plan.costs import problem_of_case, schedule_of
from testbed.plan.counts import memory_caps
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.resolve import load_plan, make_plan, measurement_of
from testbed.planning.schedules import choose, make, with_selected
from testbed.spec import load_topology, load_workload
from testbed.spec.document import validate
from testbed.spec.full_scale_job import SHAPE_SOURCES, SHAPES, FullScale
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "workloads/paper-llama2-13b.yaml"
LLAMA3 = ROOT / "workloads/paper-llama3-405b.yaml"
GPT3 = ROOT / "workloads/paper-gpt3-175b.yaml"


def metro(nodes: int = 4, rate: str = "400 Gbit/s", **link: str) -> Topology:
    sites = {site: {"nodes": nodes} for site in ("a", "b")}
    links = [{"between": ["a", "b"], "fibre": "120 km", "rate": rate, **link}]
    return validate(Topology, {"name": "metro", "datacenters": sites, "links": links}, "metro.yaml")


def regions() -> Topology:
    sites = {"a": {"nodes": 3}, "b": {"nodes": 2}, "c": {"nodes": 3}}
    links = [{"between": pair, "fibre": "900 km", "rate": "60 Gbit/s"} for pair in (["a", "b"], ["b", "c"])]
    routed = {"name": "regions", "datacenters": sites, "links": links}
    return validate(Topology, routed, "regions.yaml")


def planned(network: Topology, path: Any = LLAMA, **settings: str) -> Plan:
    plan = make_plan(network, load_workload(path, settings))
    return with_selected(plan, [make(plan, choose(plan))])


def full(model: str = "llama2-13b", **fields: Any) -> FullScale:
    document = {
        "model": model,
        "accelerator": {"flops": "500 Tflop/s", "efficiency": 1.0, "memory": "96 GB"},
        "tensor": 8,
        "sequence": 8192,
        "global_batch": 32,
        **fields,
    }
    return validate(FullScale, document, "full")


# --- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        # of the released checkpoints (meta-llama/Llama-2-13b-hf, -70b-hf); also Zhang et al. 2025, arXiv 2502.13533, in
        # their tables of pruned parameters
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        # of the released checkpoint (meta-llama/Llama-3.1-405B); Grattafiori et al. 2024 say 405B
        ("llama3-405b", 405_853_388_800),
        # Brown et al. 2020 say 175.0B (Table 2.1) and that it is GPT-2's architecture, of which a block has
        # 12 d^2 + 13 d parameters and the vocabulary 50,257 entries
        ("gpt3-175b", 96 * (12 * 12288**2 + 13 * 12288) + (50257 + 2048) * 12288 + 2 * 12288),
    ],
)
def test_parameters_are_those_of_the_published_models(model: str, parameters: int) -> None:
    assert counts.stage_parameters(full(model), 0, 1) == parameters
    apart = sum(counts.stage_parameters(full(model), rank, 8) for rank in range(8))
    tied = SHAPES[model].vocabulary * SHAPES[model].hidden if SHAPES[model].tied else 0
    assert apart == parameters + tied


def test_every_shape_has_a_source() -> None:
    assert SHAPES.keys() == SHAPE_SOURCES.keys()


def test_a_forward_takes_what_crosspipe_prints() -> None:
    """Section 5.2: T_F of about 109 ms for Llama-3 405B, TP 8, PP 16, 8192 tokens, 500 TFLOP/s."""
    asked = full("llama3-405b", ends_as_layers=True)
    flop = counts.stage_flop(asked, 1, 16)
    assert counts.share(asked, 1, 16) == (8, False, False)
    assert counts.seconds(asked, flop.forward) == pytest.approx(0.109, rel=0.01)
    assert [round(1e3 * counts.seconds(asked, one), 1) for one in flop] == [108.9, 115.4, 104.5]


def test_layers_and_ends_are_shared_out() -> None:
    asked = full("llama3-405b", ends_as_layers=True)
    shares = [counts.share(asked, rank, 16) for rank in range(16)]
    assert sum(one.layers for one in shares) == 126
    assert (shares[0].layers, shares[15].layers) == (7, 7)
    assert [one.projection for one in shares] == [False] * 15 + [True]


def test_a_message_is_that_of_all_pipelines_on_a_link() -> None:
    """CrossPipe, section 7.1: 32 n_DP MB for d = 4096 and 4096 tokens."""
    shape = {"hidden": 4096, "layers": 32, "heads": 32, "vocabulary": 32000}
    asked = full(model=shape, sequence=4096, data=16, global_batch=16)  # type: ignore[arg-type]
    assert counts.message_bytes(asked, 1) == pytest.approx(16 * 32 * 2**20)
    assert counts.message_bytes(asked, 2) == counts.message_bytes(asked, 1) / 2


# --- ratios -------------------------------------------------------------------------------------


def test_the_lab_has_the_ratios_of_full_scale() -> None:
    plan = planned(metro())
    job, asked = plan.jobs[0].workload, full(accelerator=_speed(), sequence=4096)
    assert job.pacing is not None
    flop = [counts.stage_flop(asked, rank, 8) for rank in range(8)]
    forward_s = max(counts.seconds(asked, one.forward) for one in flop)
    slot = max(job.pacing.of("F", rank) for rank in range(8))
    assert slot == pytest.approx(0.02)
    for rank in range(8):
        for kind, value in zip(("F", "I", "W"), flop[rank], strict=True):
            ratio = counts.seconds(asked, value) / forward_s
            assert job.pacing.of(kind, rank) / slot == pytest.approx(ratio)  # type: ignore[arg-type]
    problem = problem_of_case(plan, plan.cases[0])
    link = problem.links[0]
    assert link.delay_s / slot == pytest.approx(600e-6 / forward_s)
    on_wire_s = problem.message_bytes[0] * link.seconds_per_byte
    assert on_wire_s / slot == pytest.approx(8 * counts.message_bytes(asked, 1) / 400e9 / forward_s)
    assert job.microbatches == 32
    assert problem.memory_limit == tuple(memory_caps(job) or ()), "HBM alone, where no limit is given"
    assert min(problem.memory_limit) > 8


def _speed() -> dict[str, Any]:
    return {"flops": "320 Tflop/s", "efficiency": 0.4, "memory": "64 GB"}


def test_exchanged_gradients_take_their_time_too() -> None:
    plan = planned(metro(8, "3.2 Tbit/s"), GPT3)
    problem, workload = problem_of_case(plan, plan.cases[0]), plan.jobs[0].workload
    at = similitude.scales(workload, plan.host_costs.gloo_bytes)
    assert at is not None
    share = similitude.exchanged_bytes(workload) / 2
    assert problem.all_gather[0].wire_bytes == pytest.approx({1: share * at.wire_bytes}, rel=1e-4)


@pytest.mark.parametrize("path", [LLAMA, LLAMA3, GPT3])
def test_a_plan_read_again_is_the_same(path: Path) -> None:
    plan = make_plan(metro(16, "3.2 Tbit/s"), load_workload(path))
    assert file.from_json(file.to_json(plan), "plan.json") == plan


# --- two lab scales, and the bound ----------------------------------------------------------------


SCALES: list[dict[str, str]] = [{}, {"lab.slot": "5 ms", "lab.message": "20 kB"}]


@pytest.mark.parametrize(("network", "path"), [(metro(), LLAMA), (regions(), LLAMA), (metro(8, "800 Gbit/s"), GPT3)])
def test_every_lab_scale_tells_the_same_of_full_scale_within_its_bound(network: Topology, path: Path) -> None:
    rows: list[Any] = []
    ideals: list[Any] = []
    for settings in SCALES:
        small = {"full_scale.global_batch": "192" if path == GPT3 else "12", "schedules": "[1f1b, crosspipe-greedy]"}
        plan = planned(network, path, **settings, **small)
        rows.append([case.jobs[0].rows for case in plan.cases])
        ideals.append([])
        for case in plan.cases:
            schedule, problem = schedule_of(plan, case), problem_of_case(plan, case)
            assert schedule is not None
            found = full_scale_time(plan, plan.jobs[0], problem, schedule)
            assert found is not None
            assert set(found.causes) == set(CAUSES)
            assert 0 < abs(found.predicted_s - found.ideal_s) <= found.bound_s < 0.01 * found.ideal_s
            ideals[-1].append(found.ideal_s)
    assert rows[0] == rows[1]
    assert ideals[0] == pytest.approx(ideals[1], rel=1e-9)


def test_a_smaller_lab_has_a_wider_bound() -> None:
    bounds = []
    for slot in ("40 ms", "4 ms"):
        plan = planned(metro(), schedules="[1f1b]", **{"lab.slot": slot})
        schedule = schedule_of(plan, plan.cases[0])
        assert schedule is not None
        found = full_scale_time(plan, plan.jobs[0], problem_of_case(plan, plan.cases[0]), schedule)
        assert found is not None
        bounds.append(found.bound_s)
    assert bounds[1] == pytest.approx(10 * bounds[0], rel=0.01)


def test_the_longest_chain_of_1f1b() -> None:
    """Down and up the pipeline, and there and back between the last two ranks for every further microbatch."""
    plan = planned(metro(), schedules="[1f1b]")
    schedule = schedule_of(plan, plan.cases[0])
    assert schedule is not None
    assert longest_chain(problem_of_case(plan, plan.cases[0]), schedule) >= 2 * 7 + 2 * (32 - 8)
    gpipe = planned(metro(), schedules="[gpipe]", memory="32")
    schedule = schedule_of(gpipe, gpipe.cases[0])
    assert schedule is not None
    assert longest_chain(problem_of_case(gpipe, gpipe.cases[0]), schedule) == 14


# --- HBM ------------------------------------------------------------------------------------------


def test_what_hbm_does_not_hold_is_left_out_with_its_reason() -> None:
    settings = {"full_scale.accelerator.memory": "7.5 GB", "schedules": "[1f1b, {schedule: gpipe, memory: 32}]"}
    plan = planned(metro(), **settings)
    assert [case.label for case in plan.cases] == ["1f1b"]
    assert "HBM: of 7.5 GB on rank 7 3.521 GB are taken, so 7.63 x 521.7 MB fit" in plan.left_out["gpipe"]
    with pytest.raises(DoesNotFit, match="HBM"):
        planned(metro(), **{**settings, "schedules": "[{schedule: gpipe, memory: 32}]"})


@pytest.mark.parametrize("memory", ["2 GB", "4 GB"])
def test_hbm_without_room_for_a_microbatch_is_an_error(memory: str) -> None:
    expected = rf"full_scale.accelerator.memory: got '{memory}', expected at least (3.966|4.042) GB: .* take 3.521 GB"
    with pytest.raises(BadInput, match=expected):
        planned(metro(), **{"full_scale.accelerator.memory": memory})


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pacing": "{F: 1 ms, I: 1 ms, W: 1 ms}"}, "pacing: .*no such field beside full_scale"),
        ({"microbatches": "8"}, "microbatches: got 8, expected no such field beside full_scale"),
        ({"data_parallel.parameters": "1 MB"}, "data_parallel.parameters: .*no such field beside full_scale"),
        ({"full_scale.model": "gpt5"}, "full_scale.model: got 'gpt5', expected one of llama2-13b"),
        (
            {"full_scale.model": "{hidden: 5120, layers: 40, heads: 41, vocabulary: 32000}"},
            r"full_scale.model.heads: got 41, expected a divisor of hidden \(5120\)",
        ),
        ({"full_scale.global_batch": "33", "full_scale.data": "2"}, "global_batch: got 33, expected a multiple of 2"),
        ({"full_scale.tensor": "3"}, "full_scale.tensor: got 3, expected a divisor"),
        ({"full_scale.accelerator.efficiency": "1.5"}, "efficiency: got 1.5, expected at most 1"),
        ({"full_scale.global_batch": "8192"}, "global_batch: got 8192, expected at most 4096 microbatches"),
        ({"parallelism.data": "2"}, "full_scale.data: got 1, expected a multiple of parallelism.data"),
        ({"parallelism.pipeline": "41"}, "parallelism.pipeline: got 41, expected at most the model's 40 layers"),
        (
            {"model": "{layers: 8, d_model: 256, heads: 1, sequence: 256}"},
            "lab.message: got '70 kB', expected at least",
        ),
    ],
)
def test_bad_input_is_one_clear_line(settings: dict[str, str], expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        planned(metro(64), **settings)


def test_lab_without_full_scale() -> None:
    with pytest.raises(BadInput, match=r"lab: .*no such field without full_scale"):
        load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", {"lab.slot": "5 ms"})


def test_real_rates_need_a_workload_at_full_scale() -> None:
    with pytest.raises(BadInput, match=r"links.0.rate: got '400 Gbit/s'.*workload with full_scale"):
        make_plan(metro(), load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml"))
    with pytest.raises(BadInput, match=r"links.0.rate"):
        measurement_of(metro())
    with pytest.raises(BadInput, match=r"links.0.rate: .*where it comes to .*another lab.slot or lab.message"):
        planned(metro(), **{"lab.slot": "101 us", "lab.message": "1 GB"})


def test_jobs_on_one_network_have_one_scale() -> None:
    first, second = (
        load_workload(LLAMA, {"lab.slot": slot, "parallelism.pipeline": "4"}) for slot in ("20 ms", "10 ms")
    )
    with pytest.raises(BadInput, match="lab: got 'another scale'"):
        make_plan(metro(8), first, second)
    assert len(make_plan(metro(8), first, first).jobs) == 2


# --- what commands say ----------------------------------------------------------------------------


def test_plan_shows_the_derivation_with_its_sources(tmp_path: Path) -> None:
    (tmp_path / "metro.yaml").write_text(
        "name: metro\ndatacenters: {a: {nodes: 4}, b: {nodes: 4}}\n"
        "links: [{between: [a, b], fibre: 120 km, rate: 400 Gbit/s}]\n"
    )
    out = tmp_path / "plan.json"
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "metro.yaml"), str(LLAMA), "-o", str(out)])
    assert done.exit_code == 0
    for words in ("15.193 TFLOP", "T_W/T_F 0.9435", "Appendix E", "41.94 MB", "Korthikanti", "T_lat/T_F 0.04044"):
        assert words in done.stdout, words
    assert "at full scale" in done.stdout
    done = CliRunner().invoke(app, ["predict", str(out), "--json"])
    for row in json.loads(done.stdout)["schedules"]:
        found = row["full_scale"]
        assert found["predicted_s"] * found["lab_seconds"] == pytest.approx(row["predicted_s"])
        assert len(found["memory"]) == 8


def test_a_workload_of_its_own_has_no_derivation() -> None:
    plan = load_plan(ROOT / "topologies/two-dc-metro.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml")
    assert derivation(plan, plan.jobs[0]) == []
    assert isinstance(plan.jobs[0].workload, Workload)
    assert load_topology(ROOT / "topologies/two-dc-metro.yaml").directions()[0].rate_bps == 1e9


FULL, SHORT = "workloads/paper-llama2-13b.yaml", ["--schedule", "1f1b", "--schedule", "zb-h1", "--json", "--quiet"]


def said_by(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_compare_shows_both_worlds_as_predict_does() -> None:
    files = ("topologies/multicore-410km.yaml", FULL)
    compared = {row["label"]: row for row in said_by("schedule", "compare", *files, *SHORT)["schedules"]}
    predicted = {row["label"]: row for row in said_by("predict", *files, *SHORT)["schedules"]}
    for label, row in compared.items():
        expected = predicted[label]["full_scale"]
        assert row["full_scale"]["predicted_s"] == pytest.approx(expected["predicted_s"], rel=1e-6)
        assert row["full_scale"]["lab_seconds"] == expected["lab_seconds"] != 1
    shown = CliRunner().invoke(app, ["schedule", "compare", *files, *SHORT[:4], "--quiet"]).stdout
    assert "in the lab" in shown
    assert "at full scale" in shown


def test_a_topology_at_another_scale_than_the_job_is_noticed() -> None:
    lab = "topologies/two-dc-longhaul.yaml"
    (said,) = said_by("predict", lab, FULL, *SHORT)["warnings"]
    assert "at full scale, and no link of two-dc-longhaul is faster than 1 Gbit/s" in said
    assert said_by("predict", "topologies/cloud-cross-region.yaml", FULL, *SHORT)["warnings"] == []
    tiny = "workloads/tiny-gpt-pp4.yaml"
    assert said_by("predict", lab, tiny, *SHORT)["warnings"] == []
    fast = ("--set", "topology.links.0.rate=40 Gbit/s")
    (said,) = said_by("predict", lab, tiny, *SHORT, *fast)["warnings"]
    assert "links of 40 Gbit/s, as at full scale, and tiny-gpt-pp4 is at lab scale" in said
