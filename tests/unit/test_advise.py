"""Planning for a real job: the best of a grid is the best by hand, elasticities are differences, nothing is dropped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from in_process import run_testbed
from typer.testing import CliRunner

import testbed
from testbed.cli import app
from testbed.errors import BadInput, DoesNotFit
from testbed.plan import counts
from testbed.plan.routes import datacenter_of
from testbed.planning.ties import Range
from testbed.routing.policies import choose
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import Topology, load_topology
from testbed.spec.workload import Workload, load_workload
from testbed.sweep.accelerator_split import Split, parse, resplit, split_of, splits_around
from testbed.sweep.advise import Grid, advise, grid_of, prepare, ranked
from testbed.sweep.elasticity import elasticities, with_link
from testbed.sweep.in_time import in_time
from testbed.sweep.variant import Forecast, MemoryLimit, Unfit, Variant, memory_limit, model_flop, varied
from testbed.vm import command

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
TWO_DC, LLAMA = ROOT / "topologies/crosspipe-two-dc.yaml", ROOT / "workloads/paper-llama2-13b.yaml"
SCHEDULES = ("1f1b", "zb-h1", "zb-v", "crosspipe-greedy")


@pytest.fixture(scope="module")
def network() -> Topology:
    return load_topology(LONGHAUL)


@pytest.fixture(scope="module")
def job() -> Workload:
    return load_workload(PP4)


def grid(splits: list[Split], sizes: list[int], schedules: tuple[str, ...] = SCHEDULES) -> Grid:
    return Grid(splits, sizes, [None], [ScheduleChoice(schedule=name) for name in schedules], [None])


def by_hand(**settings: object) -> dict[str, float]:
    """Seconds by schedule of tiny-gpt-pp4 with fields set, as `testbed predict` says them, ranges at their worst."""
    found = testbed.predict(LONGHAUL, PP4, schedules=SCHEDULES, settings=settings)
    worst = found["predicted_high_s"].fillna(found["predicted_s"])
    return dict(zip(found["label"], worst, strict=True))


SETTINGS: dict[tuple[str, int], Mapping[str, object]] = {
    ("4x1x1", 2): {"memory": 8, "microbatches": 16, "microbatch_size": 2, "message": "500 kB"},
    ("4x1x1", 4): {},
    ("4x1x1", 8): {"memory": 2, "microbatches": 4, "microbatch_size": 8, "message": "2 MB"},
    ("2x1x2", 2): {"memory": 4, "microbatches": 8, "microbatch_size": 2, "message": "500 kB"},
    ("2x1x2", 4): {"memory": 2, "microbatches": 4},
    ("2x1x2", 8): {"memory": 1, "microbatches": 2, "microbatch_size": 8, "message": "2 MB"},
}
"""What each variant comes to: half a microbatch halves slots and message, half as many stages double the slots."""


def everything_by_hand() -> dict[tuple[str, int, str], float]:
    found: dict[tuple[str, int, str], float] = {}
    for (split, size), settings in SETTINGS.items():
        ranks = int(split[0])
        slot = f"{20 * size / 4 * 4 / ranks:g} ms"
        paced = {f"pacing.{kind}": slot for kind in "FIW"}
        degrees = {"parallelism.pipeline": ranks, "parallelism.data": 4 // ranks}
        try:
            of_schedules = by_hand(**settings, **paced, **degrees)
        except DoesNotFit:
            continue
        found |= {(split, size, label): seconds for label, seconds in of_schedules.items()}
    return found


@pytest.mark.parametrize("top", [1, 3, 100])
def test_the_best_are_those_of_brute_force(network: Topology, job: Workload, top: int) -> None:
    tried = grid([Split(4, 1, 1), Split(2, 1, 2)], [2, 4, 8])
    found = advise(network, job, tried, top=top).found
    brute = everything_by_hand()
    best = sorted(brute.values())[:top]
    assert [one.worst_s for one in found.forecasts[:top]] == pytest.approx(best, rel=1e-9)
    for one in found.forecasts:
        key = str(one.variant.split), one.variant.microbatch_size, one.choice.label
        assert one.worst_s == pytest.approx(brute[key], rel=1e-9), key
    assert not found.untried
    assert bool(found.beaten) == (top < 100), "a bound saves work, and only work"
    settled = {one.variant for one in found.forecasts} | {one.variant for one in found.beaten}
    assert settled | {one.variant for one in found.unfit} == set(tried.variants()), "nothing is dropped"


def test_at_full_scale_variants_are_those_of_predict() -> None:
    network, job = load_topology(TWO_DC), load_workload(LLAMA)
    tried = grid([Split(8, 8, 1), Split(4, 8, 2)], [1, 2], ("1f1b", "zb-h1"))
    found = advise(network, job, tried, top=100).found.forecasts
    assert len(found) == 8
    for split, size in product(tried.splits, tried.sizes):
        settings = {
            "full_scale.microbatch_size": size,
            "full_scale.data": split.data,
            "parallelism.pipeline": split.pipeline,
        }
        frame = testbed.predict(TWO_DC, LLAMA, schedules=["1f1b", "zb-h1"], settings=settings)
        for label, seconds in zip(frame["label"], frame["full_scale_s"], strict=True):
            (one,) = (each for each in found if (*each.variant[:2], each.choice.label) == (split, size, label))
            assert one.seconds == pytest.approx(seconds, rel=1e-9)
            assert one.tokens_per_s == pytest.approx(32 * 4096 / one.worst_s)
            assert one.held.in_bytes
            assert one.held.limit == 64e9


def test_mfu_is_the_forward_three_times_over_what_accelerators_could_do() -> None:
    network, job = load_topology(TWO_DC), load_workload(LLAMA)
    (one,) = advise(network, job, grid([split_of(job)], [1], ("1f1b",))).found.forecasts
    full = job.full_scale
    assert full is not None
    tokens, parameters = 32 * 4096, counts.stage_parameters(full, 0, 1) - full.shape.vocabulary * full.shape.hidden
    attention = 3 * 2 * full.shape.layers * full.sequence * full.shape.hidden * tokens
    assert model_flop(one.workload) == pytest.approx(6 * parameters * tokens + attention, rel=1e-3)
    assert one.mfu == pytest.approx(model_flop(one.workload) / (one.seconds * 64 * 320e12))
    assert one.mfu is not None
    assert one.mfu < full.efficiency


# --- elasticities --------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["1f1b", "crosspipe-greedy"])
def test_elasticities_are_differences_of_predictions(network: Topology, job: Workload, schedule: str) -> None:
    (one,) = advise(network, job, grid([split_of(job)], [4], (schedule,))).found.forecasts
    found = {each.quantity: each for each in elasticities(network, job, one)}

    def hand(**settings: object) -> float:
        frame = testbed.predict(LONGHAUL, PP4, schedules=schedule, settings=settings)
        return float(frame["predicted_s"][0])

    before_s = hand()
    changed: dict[str, tuple[float, dict[str, object]]] = {
        "rate": (1.1, {"topology.links.0.rate": "1.1 Gbit/s"}),
        "delay": (0.9, {"topology.links.0.fibre": "1800 km", "topology.links.0.equipment_delay": "180 us"}),
        "memory": (1.25, {"memory": 5}),
    }
    for quantity, (factor, settings) in changed.items():
        after_s = hand(**settings)
        each = found[quantity]  # type: ignore[index]
        assert each.factor == pytest.approx(factor)
        assert (each.before_s, each.after_s) == pytest.approx((before_s, after_s), rel=1e-9), quantity
        assert each.value == pytest.approx(math.log(after_s / before_s) / math.log(factor), abs=1e-6)
    assert found["rate"].value < 0 < found["delay"].value
    assert f"{found['delay'].gain:.2%} shorter" in found["delay"].sentence()


def test_memory_is_hbm_at_full_scale_unless_a_limit_is_given() -> None:
    network = load_topology(TWO_DC)
    for settings, factor, field in (
        ({"full_scale.accelerator.memory": "12 GB"}, None, "full_scale.accelerator.memory"),
        ({"memory": "9"}, 10 / 9, "memory"),
    ):
        job = load_workload(LLAMA, settings)
        (one,) = advise(network, job, grid([split_of(job)], [1], ("wave-greedy",))).found.forecasts
        memory = next(each for each in elasticities(network, job, one) if each.quantity == "memory")
        assert factor is None or memory.factor == pytest.approx(factor)
        assert memory.factor >= 1.1
        more = 12e9 * memory.factor if field != "memory" else 9 * memory.factor
        raised = {field: f"{more} B" if field != "memory" else more}
        frame = testbed.predict(TWO_DC, LLAMA, schedules="wave-greedy", settings={**settings, **raised})
        assert memory.after_s == pytest.approx(float(frame["full_scale_s"][0]), rel=1e-9)
        assert memory.gain > 0


def test_a_link_changes_in_both_directions_and_alone() -> None:
    document = {
        "name": "unequal",
        "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}},
        "links": [
            {
                "between": ["a", "b"],
                "name": "x",
                "delay": "2 ms",
                "rate": "1 Gbit/s",
                "reverse": {"rate": "9 Mbit/s"},
            },
            {"between": ["a", "b"], "name": "y", "fibre": "800 km", "rate": "1 Gbit/s"},
        ],
    }
    before = load_topology(document).directions()
    after = with_link(load_topology(document), "x", rate=1.1, delay=0.9).directions()
    assert [link.rate_bps for link in after] == pytest.approx([1.1e9, 9.9e6, 1e9, 1e9])
    assert [link.delay_s for link in after[:2]] == pytest.approx([1.8e-3] * 2)
    assert after[2:] == before[2:]


# --- one datacenter, ranges, memory, axes --------------------------------------------------------


def test_one_datacenter_is_the_same_job_without_links(network: Topology, job: Workload) -> None:
    site = advise(network, job, grid([Split(4, 1, 1)], [4])).one_site
    assert site is not None
    alone = {"name": "x", "datacenters": {"one": {"nodes": 4}}}
    frame = testbed.predict(alone, PP4, schedules=SCHEDULES)
    assert site.worst_s == pytest.approx(frame["predicted_s"].min())
    assert advise(load_topology(alone), job, grid([Split(4, 1, 1)], [4])).one_site is None


def test_one_datacenter_has_the_schedules_that_joint_takes_as_well(network: Topology, job: Workload) -> None:
    """Only 1F1B is asked for, which waits for the network's delays and for little else."""
    joint = choose("joint,evaluations=1")
    found = advise(network, job, Grid([Split(4, 1, 1)], [4], [None], [ScheduleChoice(schedule="1f1b")], [joint]))
    (best,) = found.found.forecasts
    assert best.choice.label != "1f1b"
    assert found.one_site is not None
    assert found.one_site.worst_s < best.worst_s


def test_a_policy_that_chooses_no_routes_is_told_and_the_others_are_tried(tmp_path: Path) -> None:
    links = [{"name": name, "between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s"} for name in ("n", "s")]
    document = {"name": "two", "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}}, "links": links}
    (tmp_path / "two.yaml").write_text(json.dumps(document))
    words = ["advise", str(tmp_path / "two.yaml"), str(PP4), "--schedule", "1f1b", "--axes", "4x1x1"]
    words += ["--microbatch-size", "4", "--policy", "lexicographic,most=1"]
    done = CliRunner().invoke(app, [*words, "--policy", "greedy"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "with any on lexicographic,most=1: lexicographic: topology and workloads: got 'more than 1" in done.output
    assert "lexicographic,most=1: the same routes" not in done.output
    assert "1f1b on greedy" in done.output
    assert isinstance(CliRunner().invoke(app, words).exception, DoesNotFit)


@pytest.mark.parametrize("policy", ["ilp", "lexicographic", "joint", "interleave"])
def test_policies_that_search_have_their_share_of_the_time(policy: str) -> None:
    _, (shorter, *_) = in_time([ScheduleChoice(schedule="1f1b")], [choose(policy)] * 2, 10.0)
    assert shorter is not None
    assert shorter.options["time_limit_s"] == 5.0


def test_a_range_is_judged_by_its_worst_end(network: Topology, job: Workload) -> None:
    sure, lucky, *_ = advise(network, job, grid([Split(4, 1, 1)], [4]), top=9).found.forecasts
    lucky = replace(lucky, seconds=sure.seconds / 2, predicted_range=Range(sure.seconds / 2, sure.seconds * 2))
    assert ranked([lucky, sure], sure.variant) == [sure, lucky]
    assert lucky.tokens_per_s == pytest.approx((sure.tokens_per_s or 0) / 2)


def test_what_does_not_fit_is_listed_with_how_much(network: Topology) -> None:
    job = load_workload(LLAMA, {"full_scale.accelerator.memory": "7.5 GB"})
    found = advise(load_topology(TWO_DC), job, grid([Split(8, 8, 1), Split(4, 8, 2)], [1], ("1f1b", "gpipe"))).found
    assert [(str(one.variant.split), one.choice.label) for one in found.forecasts] == [("8x8x1", "1f1b")]
    unfit = {(str(each.variant.split), each.schedule): each for each in found.unfit}
    assert unfit.keys() == {("8x8x1", "gpipe"), ("4x8x2", "1f1b"), ("4x8x2", "gpipe")}
    full = job.full_scale
    assert full is not None
    needs = unfit["8x8x1", "gpipe"].held
    assert needs is not None
    ranks = [counts.rank_bytes(full, rank, 8) for rank in range(8)]
    assert needs.used == pytest.approx(max(each.static + 32 * each.activation for each in ranks))
    assert (needs.limit, needs.in_bytes) == (7.5e9, True)
    tiny = load_workload(LLAMA, {"full_scale.accelerator.memory": "2 GB"})
    one = prepare(load_topology(TWO_DC), tiny, Variant(Split(4, 8, 2), 1), [ScheduleChoice(schedule="1f1b")])
    assert isinstance(one, Unfit)
    assert one.over_memory
    assert one.held is not None
    assert one.held.share > 1
    with pytest.raises(DoesNotFit, match=r"not even one microbatch fits .* of 2 GB"):
        advise(load_topology(TWO_DC), tiny, grid([Split(4, 8, 2)], [1], ("1f1b",)))


def test_memory_limits_are_of_the_workloads_own_microbatches(network: Topology, job: Workload) -> None:
    assert memory_limit("8") == MemoryLimit(in_flight=8)
    assert memory_limit("80 GB") == MemoryLimit(hbm_bytes=80e9)
    for wrong in ("0", "-1", "nan", "many", "80 Gbit/s"):
        with pytest.raises(BadInput, match="--memory-limit"):
            memory_limit(wrong)
    made = varied(network, job, Variant(Split(4, 1, 1), 2, MemoryLimit(3.0)))
    assert made.memory_limits() == [6] * 4
    assert all(choice.memory is None for choice in made.schedules)
    roomy = varied(load_topology(TWO_DC), load_workload(LLAMA), Variant(Split(8, 8, 1), 1, MemoryLimit(hbm_bytes=8e10)))
    assert roomy.full_scale is not None
    assert roomy.full_scale.accelerator.memory == 8e10


def test_axes_keep_the_number_of_accelerators_and_where_they_are(network: Topology, job: Workload) -> None:
    splits = splits_around(network, job)
    assert splits[0] == split_of(job)
    assert {split.accelerators for split in splits} == {4}
    assert Split(2, 1, 2, "data") in splits
    across = resplit(network, job, Split(2, 1, 2, "data"))
    assert [datacenter_of(node) for node in across.placement] == ["paris", "paris"]
    assert [datacenter_of(node) for node in (across.data_parallel.replicas or [[]])[0]] == ["warsaw", "warsaw"]
    assert across.microbatches == 4
    assert parse("2x1x2/data", split_of(job)) == Split(2, 1, 2, "data")
    three = load_topology(ROOT / "topologies/three-region.yaml")
    eight = load_workload(ROOT / "workloads/tiny-gpt-pp8.yaml")
    with pytest.raises(BadInput, match="no more stages than three-region"):
        resplit(three, eight, Split(4, 1, 2))
    thirteen = load_workload(LLAMA)
    wide = load_topology({"name": "wide", "datacenters": {"a": {"nodes": 7}, "b": {"nodes": 2}}, "links": [
        {"between": ["a", "b"], "delay": "1 ms", "rate": "400 Gbit/s"}]})  # fmt: skip
    with pytest.raises(BadInput, match=r"32 accelerators in b.*at most the 16 accelerators of b \(2 nodes of 8\)"):
        resplit(wide, thirteen, Split(4, 8, 2))


def test_slots_of_unlike_ranks_are_shared_by_layers(network: Topology) -> None:
    job = load_workload(PP4, {"pacing.F": "[10 ms, 20 ms, 30 ms, 40 ms]", "parallelism.tensor": "2"})
    made = resplit(network, job, Split(2, 2, 2))
    assert made.pacing is not None
    assert [made.pacing.of("F", rank) for rank in range(2)] == pytest.approx([0.03, 0.07])
    halved = resplit(network, job, Split(4, 1, 2))
    assert halved.pacing is not None
    assert [halved.pacing.of("F", rank) for rank in range(4)] == pytest.approx([0.02, 0.04, 0.06, 0.08])


def test_what_is_not_tried_for_want_of_time_is_said(network: Topology, job: Workload) -> None:
    tried = grid([Split(4, 1, 1), Split(2, 1, 2)], [2, 4])
    found = advise(network, job, tried, limit_s=0).found
    assert {one.variant for one in found.forecasts} == {Variant(split_of(job), 4)}, "the workload's own comes first"
    assert len(found.untried) == 3
    asked = elasticities(network, job, found.forecasts[0], limit_s=0)
    assert [each.quantity for each in asked] == ["memory"]


# --- the command ---------------------------------------------------------------------------------

FEW = ["--axes", "4x1x1", "--microbatch-size", "4", "--microbatch-size", "2", "--schedule", "1f1b", "-q"]


def run(*words: str | Path, width: int = 80) -> Any:
    return CliRunner().invoke(app, ["advise", *map(str, words)], env={"COLUMNS": str(width)})


@pytest.mark.parametrize(
    "words",
    [
        (LONGHAUL, PP4, "--schedule", "zb-h1", "--schedule", "zb-h2", "-q"),
        (LONGHAUL, PP4, "--schedule", "zb1p", "--axes", "2x1x2/data", "--axes", "4x1x1", "--memory-limit", "6", "-q"),
        (TWO_DC, LLAMA, "--schedule", "1f1b", "--schedule", "gpipe", "--axes", "8x8x1", "--memory-limit", "9 GB", "-q"),
    ],
    ids=["lab", "data across", "full scale"],
)
def test_tables_fit_80_columns_and_the_answer_comes_last(words: tuple[str | Path, ...]) -> None:
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    *_, answer = " ".join(done.output.split()).rpartition(" best: ")
    assert re.search(r" what would help most: .*(shorter|would help)$", answer)
    assert ("at full scale" in done.output) == (words[1] == LLAMA)
    assert ("in the lab" in done.output) == (words[1] == PP4)
    assert "does not fit into memory" in done.output


def test_what_was_not_asked_is_not_said_to_be_of_no_help() -> None:
    done = run(LONGHAUL, PP4, *FEW, "--limit", "0 s", width=120)
    assert done.exit_code == 0, done.output
    *_, answer = done.output.splitlines()
    links = len(load_topology(LONGHAUL).links)
    assert f"NOT ASKED for want of time: {2 * links} rates" in done.output
    assert answer == f"what would help most: nothing of what was asked; {2 * links} rates and delays were not (--limit)"


def test_for_machines_it_says_all_of_it() -> None:
    done = run(LONGHAUL, PP4, *FEW, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["full_scale"] is False
    assert [row["microbatch_size"] for row in document["candidates"]] == [2, 4]
    assert document["as_given"]["predicted_s"] == document["candidates"][1]["predicted_s"]
    first = document["candidates"][0]
    assert first["of_one_datacenter"] == pytest.approx(document["one_datacenter"]["predicted_s"] / first["predicted_s"])
    assert {each["quantity"] for each in document["elasticities"]} == {"rate", "delay", "memory"}
    table = run(LONGHAUL, PP4, *FEW, "--format", "csv")
    assert table.exit_code == 0, table.output
    assert "schedule,PxTxD,size,time [s],ktoken per s,in flight,one DC" in table.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--top", "0"), "--top: got '0', expected at least 1"),
        (("--schedule", "nonsense"), "got 'nonsense', expected one of gpipe"),
        (("--schedule", "best"), "the best of them is the answer"),
        (("--axes", "3x1x1"), "3 accelerators.*product of 4"),
        (("--axes", "4x1"), "--axes: option: got '4x1'"),
        (("--microbatch-size", "3"), "2048 tokens are no whole number of microbatches"),
        (("--memory-limit", "80 GB"), "a workload without full_scale has no HBM"),
        (("--memory-limit", "1e9"), "from 1 to 1e"),
        (("--policy", "nonsense"), "--policy: policy: got 'nonsense'"),
        (("--limit", "soon"), "--limit: option: got 'soon', expected a time"),
        (("--out", "there"), "--confirm N beside it"),
        (("--set", "pacing=none"), "times for F, I and W, or full_scale"),
        ((str(PP4),), "no more of them than"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, tuple) else "",
)
def test_odd_input_is_one_clear_error(words: tuple[str, ...], said: str) -> None:
    done = run_testbed("advise", LONGHAUL, PP4, *words, "-q")
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert re.search(said, line), line


def test_a_size_that_does_not_divide_is_named_beside_those_that_do() -> None:
    done = run(LONGHAUL, PP4, *FEW, "--microbatch-size", "3")
    assert done.exit_code == 0, done.output
    assert "cannot be: 4x1x1, size 3: microbatch size: got 3" in " ".join(done.output.split())


def test_what_does_not_fit_is_not_counted_as_predicted() -> None:
    limits = ("--axes", "4x1x1", "--microbatch-size", "4", "--schedule", "1f1b", "--memory-limit", "1")
    done = run(LONGHAUL, PP4, *limits, "--memory-limit", "4")
    assert done.exit_code == 0, done.output
    assert "2 variants x 1 schedule: 1 variant predicted; 1 cannot be" in " ".join(done.output.split())


def test_a_policy_without_routes_of_its_own_is_named() -> None:
    routes = ("--policy", "greedy", "--policy", "shortest", "--policy", "static")
    done = run(LONGHAUL, PP4, "--axes", "4x1x1", "--microbatch-size", "4", "--schedule", "1f1b", *routes)
    assert done.exit_code == 0, done.output
    assert "* shortest, static: the same routes as default ones" in " ".join(done.output.split())


def test_tensor_ranks_unlike_links_and_one_datacenter_have_an_answer(tmp_path: Path) -> None:
    place = tmp_path / "net.yaml"
    nodes, link = "name: n\ndatacenters: {a: {nodes: 8}, b: {nodes: 8}}\n", "{between: [a, b], name: %s, delay: %s ms, "
    both = [link % ("x", 2) + "rate: 1 Gbit/s}", link % ("y", 5) + "rate: 100 Mbit/s, reverse: {delay: 9 ms}}"]
    place.write_text(nodes + "links:\n" + "".join(f"  - {one}\n" for one in both))
    done = run(place, PP4, *FEW[2:], "--axes", "4x2x1", "--set", "parallelism.tensor=2")
    assert done.exit_code == 0, done.output
    assert "8 ranks, in the lab" in done.output
    assert "delay of x" in done.output
    place.write_text("name: n\ndatacenters: {a: {nodes: 8}}\n")
    done = run(place, PP4, *FEW)
    assert done.exit_code == 0, done.output
    assert "one datacenter" not in done.output
    assert "no link and no memory would help" in done.output


def test_routes_are_chosen_among_where_there_are_several() -> None:
    network, job = load_topology(ROOT / "topologies/nsfnet.yaml"), load_workload(LLAMA)
    usual = grid_of(network, job)
    assert [policy and policy.label for policy in usual.policies] == [None, "greedy-time"]
    assert "search" not in [choice.schedule for choice in usual.schedules]
    some = [choice for choice in usual.schedules if choice.label in ("zb-v", "1f1b")]
    found = advise(network, job, usual._replace(splits=[split_of(job)], sizes=[1], schedules=some)).found
    names = {one.name for one in found.forecasts}
    assert {"zb-v", "1f1b"} <= names <= {"zb-v", "1f1b", "zb-v on greedy-time", "1f1b on greedy-time"}
    routes: dict[str, set[Any]] = {}
    for one in found.forecasts:
        taken = one.plan.cases[0].routes
        assert taken not in routes.setdefault(one.choice.label, set()), "the same routes are one candidate"
        routes[one.choice.label].add(taken)


def trained(_: object, trainings: list[command.GuestTraining], **__: object) -> tuple[None, list[dict[str, Any]]]:
    """What a guest would have measured: a thousandth more than predicted; the second is not trusted."""
    documents = []
    for number, one in enumerate(trainings):
        assert one.plan.clock.name == "virtual"
        (case,) = one.plan.cases
        times = {"measured_s": 0.5, "predicted_s": 0.4995, "error": 0.001}
        documents.append({"schedules": [{"label": case.label, "trusted": number == 0, "full_scale": None, **times}]})
    return None, documents


def test_confirming_measures_as_many_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "train", trained)
    monkeypatch.setattr(command, "choose_machine", lambda clock: clock)
    done = run(LONGHAUL, PP4, *FEW, "--confirm", "1")
    assert done.exit_code == 0, done.output
    assert "trained on the virtual clock" in done.output
    shown = run(LONGHAUL, PP4, *FEW, "--confirm", "2", "--top", "1")
    assert " untrusted: not every check could be taken" in shown.output
    done = run(LONGHAUL, PP4, *FEW, "--confirm", "2", "--top", "1", "--json")
    assert done.exit_code == 5, "one cannot be trusted"
    rows = json.loads(done.output)["candidates"]
    assert [row["measured"]["trusted"] for row in rows] == [True, False]


def test_a_forecast_is_named_with_its_routes(network: Topology, job: Workload) -> None:
    one: Forecast = advise(network, job, grid([Split(4, 1, 1)], [4], ("1f1b",))).found.forecasts[0]
    assert one.name == "1f1b"
    assert replace(one, policy="greedy").name == "1f1b on greedy"


def test_ones_own_schedule_is_tried_like_any() -> None:
    done = run(LONGHAUL, PP4, "--schedule", f"{ROOT}/examples/my_schedule.py:eager", "--axes", "4x1x1", "--json", "-q")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert {row["schedule"] for row in document["candidates"]} == set(document["tried"]["schedules"])


def test_a_rate_that_the_lab_cannot_have_is_lowered_instead(job: Workload) -> None:
    fast = load_topology(LONGHAUL, {"links.0.rate": "100 Gbit/s"})
    (one,) = advise(fast, job, grid([split_of(job)], [4], ("1f1b",))).found.forecasts
    rate = next(each for each in elasticities(fast, job, one) if each.quantity == "rate")
    assert rate.factor == pytest.approx(1 / 1.1)
    assert rate.value <= 0
    assert rate.helps >= 0


def test_a_list_that_fits_other_variants_leaves_the_schedule_out() -> None:
    schedules = "schedules=[1f1b,{schedule: geopipe, extra: [3], memory: 7}]"
    done = run_testbed("advise", "two-dc-longhaul", "tiny-gpt-pp4", "--axes", "4x1x1", "--json", "--set", schedules)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["one_datacenter"]["schedule"] != "geopipe"  # which has no cut there
    assert "geopipe" in found["tried"]["schedules"]
