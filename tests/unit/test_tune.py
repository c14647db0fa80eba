"""Tuning GeoPipe at constant tokens: the whole grid judged by the model, and a genetic heuristic beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import BadInput
from testbed.model.simulate import makespan
from testbed.planning.ties import Range
from testbed.schedule.registry import generate
from testbed.spec.topology import load_topology
from testbed.spec.workload import Workload, load_workload
from testbed.sweep import reshape, tune
from testbed.sweep.reshape import Shape
from testbed.sweep.tune import Setting

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"


def job(**settings: str) -> Workload:
    return load_workload(PP4, {"memory": "8", **settings})


@pytest.fixture(scope="module")
def grid() -> tune.Space:
    return tune.space(load_topology(LONGHAUL), job(), [1, 2, 4, 8], [32, 64, 128])


def test_the_search_is_exhaustive_and_the_heuristic_no_better(grid: tune.Space) -> None:
    judged = tune.exhaustive(grid)
    expected = {
        Setting(shape, (extra,))
        for shape, one in grid.shapes.items()
        for extra in range(one.most[0] + 1)
        if min(one.problem.n_microbatches, 4 + extra) <= one.problem.memory_limit[0]
    }
    assert {one.point for one in judged} == expected
    assert judged[0].seconds == min(grid.judge(point).seconds for point in expected)
    evolved = tune.genetic(grid, seed=3)
    assert evolved == tune.genetic(grid, seed=3)
    assert judged[0].seconds <= evolved.best.seconds < judged[-1].seconds
    assert evolved.best_after <= evolved.evaluations


def test_tokens_bytes_times_and_memory_of_another_microbatch() -> None:
    given = job(recompute="true")
    made = reshape.reshaped(given, Shape(1, 128))
    assert made.microbatches * made.microbatch_size * 128 == given.microbatches * given.microbatch_size * 64
    assert made.message_bytes() == given.message_bytes() / 2
    assert made.memory_limits() == [16.0] * 4
    assert made.pacing is not None
    width, products = 64, 24 * 64**2
    assert made.pacing.of("F", 0) == pytest.approx(10e-3 * (products + 2 * 128 * width) / (products + 2 * 64 * width))
    assert made.pacing.of("I", 0) == pytest.approx(10e-3 * (products + 5 * 128 * width) / (products + 5 * 64 * width))
    assert made.pacing.of("W", 0) == pytest.approx(10e-3)
    assert reshape.reshaped(given, Shape(2, 64), 5e-3).pacing.of("F", 0) == pytest.approx(12.5e-3)  # type: ignore[union-attr]
    assert reshape.reshaped(given, reshape.shape_of(given)).pacing.of("I", 3) == 20e-3  # type: ignore[union-attr]


def test_points_are_compared_by_the_most_that_they_may_take(grid: tune.Space) -> None:
    one, other = (Setting(Shape(4, 64), (extra,)) for extra in (0, 1))
    lucky, sure = tune.PredictedSetting(one, 1.0, Range(1.0, 1.5)), tune.PredictedSetting(other, 1.2)
    assert sorted((lucky, sure), key=lambda found: tune._order(grid, found)) == [sure, lucky]


def test_memory_keeps_points_out(grid: tune.Space) -> None:
    assert math.isinf(grid.judge(Setting(Shape(3, 64), (0,))).seconds)
    short = tune.space(load_topology(LONGHAUL), job(memory="4"), [4, 8], [64])
    assert list(short.shapes) == [Shape(4, 64)]
    assert "no room in memory" in short.left_out[Shape(8, 64)]
    assert {point.extra for point in short.points()} == {(0,)}
    assert math.isinf(short.judge(Setting(Shape(4, 64), (1,))).seconds)
    odd = tune.space(load_topology(LONGHAUL), job(), [3, 4], [64])
    assert "whole number" in odd.left_out[Shape(3, 64)]
    with pytest.raises(BadInput, match=r"nothing that can be tried., expected a microbatch and a sequence that fit "):
        tune.space(load_topology(LONGHAUL), job(), [3], [64])


def test_a_point_is_what_the_schedule_of_that_name_takes(grid: tune.Space) -> None:
    problem = grid.shapes[Shape(4, 64)].problem
    assert grid.judge(Setting(Shape(4, 64), (1,))).seconds == makespan(problem, generate("geopipe", problem, extra=1))


def test_memory_is_that_of_the_rank_that_is_nearest_to_its_limit() -> None:
    """Not the most of any rank beside the least limit of any."""
    uneven = tune.space(load_topology(LONGHAUL), job(memory="[8, 3, 2, 2]"), [4], [64])
    (shape,) = uneven.shapes
    point = tune.Setting(shape, (0,))
    assert uneven.in_flight(point) == 4.0
    assert uneven.nearest_limit(point) == (3.0, 3.0)


def test_another_sequence_length_is_said_to_be_another_workload() -> None:
    assert tune.altered(job(), 64) is None
    words = tune.altered(job(), 128) or ""
    assert "128 tokens instead of 64" in words
    assert "+8.9% FLOP" in words
    assert "+4096 parameters: another model" in words


def test_the_command_takes_the_files_in_either_order_and_fits_80_columns() -> None:
    few = ["--microbatch-size", "4", "--microbatch-size", "2", "--sequence", "64", "--sequence", "32", "--quiet"]
    shown = CliRunner().invoke(app, ["tune", str(PP4), str(LONGHAUL), *few], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    assert "another workload" in shown.output
    swapped = CliRunner().invoke(app, ["tune", str(LONGHAUL), str(PP4), *few, "--json"])
    document = json.loads(swapped.output)
    assert document["tokens"] == 8 * 4 * 64
    assert document["points"][0]["predicted_s"] <= document["given"]["predicted_s"]
    assert document["genetic"]["gap"] >= 0
    assert all((one["altered"] is None) == (one["sequence"] == 64) for one in document["points"])
    refused = CliRunner().invoke(app, ["tune", str(PP4), str(LONGHAUL), "--fixed", "1 s", "--microbatch-size", "2"])
    assert isinstance(refused.exception, BadInput)
