"""Which axis crosses datacenters: against the closed form, on screen, as a picture, and with measured points."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import run_testbed
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.compare_axes import _print
from testbed.cli.options import stdout_console
from testbed.errors import BadInput
from testbed.plan.counts import gradient_bytes
from testbed.spec import load_workload
from testbed.sweep.axes import Compared, LinkPoint, compare, plan_over, require_axes
from testbed.sweep.axes_picture import draw
from testbed.sweep.measured_axes import MeasuredPoint, spread

ROOT = Path(__file__).parents[2]
LLAMA3 = ROOT / "workloads/paper-llama3-405b.yaml"
SMALL = {"full_scale.global_batch": "512", "schedules": "[1f1b, zb-v]"}
"""8 microbatches."""


def compared(delay_s: float, rate_bps: float, **settings: str) -> Compared:
    return compare(load_workload(LLAMA3, SMALL | settings), LinkPoint(delay_s, rate_bps))


def test_the_pipeline_should_cross_a_slow_link_and_gradients_a_fast_one() -> None:
    slow, fast = compared(4e-3, 32e9), compared(0.128, 8.192e12)
    assert (slow.winner, fast.winner) == ("pipeline", "data")
    assert slow.gain > 1 > fast.gain
    assert fast.data.best == "zb-v"
    assert slow.one_site_s == fast.one_site_s < min(fast.data.best_s, fast.pipeline.best_s)


def test_gradients_over_a_slow_link_take_what_the_closed_form_says() -> None:
    """CrossPipe, Appendix E: 2 T_lat + 2 N / rate; less what overlaps with the pipeline, one iteration at most."""
    one = compared(8e-3, 32e9)
    assert one.data_not_overlapped_s - one.one_site_s == pytest.approx(2 * 8e-3 + 8 * 2 * 405.85e9 / 32e9, rel=1e-4)
    assert one.data_not_overlapped_s - one.one_site_s < one.data.best_s < one.data_not_overlapped_s


def test_messages_over_a_slow_link_take_their_time() -> None:
    """b s d n_DP 2 bytes for each of 8 microbatches; the last is followed by its way back."""
    one = compared(4e-3, 32e9, schedules="[crosspipe-greedy]")
    message_s = 8 * 2 * 8192 * 16384 * 64 / 32e9
    assert 8 * message_s < one.pipeline.best_s < 9 * message_s + 2 * one.one_site_s


def test_where_the_ranks_are() -> None:
    workload = load_workload(LLAMA3)
    over = {axis: plan_over(workload, axis, LinkPoint(0.01, 1e12)).jobs[0] for axis in ("pipeline", "data", None)}
    assert over["pipeline"].nodes == tuple(f"{site}/{rank}" for site in ("east", "west") for rank in range(8))
    assert over["data"].nodes == tuple(f"{site}/{rank}" for site in ("east", "west") for rank in range(16))
    assert {node.split("/")[0] for node in over[None].nodes} == {"east"}


@pytest.mark.parametrize(
    ("file", "settings", "expected"),
    [
        ("tiny-gpt-pp4", {}, "full_scale: got None"),
        ("paper-llama2-13b", {}, "full_scale.data: got 1, expected an even number"),
    ],
)
def test_a_workload_without_two_axes(file: str, settings: dict[str, str], expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        require_axes(load_workload(ROOT / f"workloads/{file}.yaml", settings))


@pytest.fixture(scope="module")
def grid() -> list[Compared]:
    return [compared(delay_s, rate_bps) for delay_s in (4e-3, 0.128) for rate_bps in (32e9, 8.192e12)]


def entry(one: Compared, axis: str, factor: float) -> dict[str, Any]:
    return {
        "label": "zb-v",
        "trusted": True,
        "error": factor - 1,
        "full_scale": {"measured_s": factor * getattr(one, axis).best_s},
    }


def test_tables_at_80_columns(
    grid: list[Compared], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    measured = [MeasuredPoint(one, entry(one, "pipeline", 1.001), entry(one, "data", 1.002)) for one in grid[:2]]
    _print(stdout_console(80), "job", grid, measured)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "128 ms  32 Gbit/s" in shown
    assert "        8.192 Tbit/s" in shown, "a delay is said once"
    assert "+0.100%" in shown
    assert "untrusted" not in shown
    row = entry(grid[0], "data", 1.002) | {"trusted": False, "reasons": ["late"]}
    _print(stdout_console(80), "job", grid, [MeasuredPoint(grid[0], None, row)])
    shown = capsys.readouterr().out
    assert "pipeline over 4 ms, 32 Gbit/s not measured: its logs say why" in shown
    assert "data over 4 ms, 32 Gbit/s untrusted: late" in shown


def test_what_is_measured_goes_to_a_new_directory(tmp_path: Path) -> None:
    (tmp_path / "axes.json").write_text("{}")
    done = run_testbed("compare-axes", LLAMA3, "--measure", "1", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("', expected a new or empty directory\n"), "it has no --overwrite"


def test_a_measured_winner_is_its_own() -> None:
    one = replace(compared(4e-3, 32e9), one_site_s=1.0)
    assert MeasuredPoint(one, entry(one, "pipeline", 1.0), entry(one, "data", 1.0)).winner == "pipeline"
    assert MeasuredPoint(one, entry(one, "pipeline", 99.0), entry(one, "data", 1.0)).winner == "data"
    assert MeasuredPoint(one, None, entry(one, "data", 1.0)).winner is None
    same = one.pipeline.best_s / one.data.best_s
    near = MeasuredPoint(one, entry(one, "pipeline", 1.0), entry(one, "data", same))
    assert (near.winner, near.as_predicted, near.trusted) == ("either", True, True)
    wrong = MeasuredPoint(one, entry(one, "pipeline", 99.0), entry(one, "data", 1.0) | {"trusted": False})
    assert (wrong.as_predicted, wrong.trusted) == (False, False)


def test_measured_points_are_spread_over_the_grid(grid: list[Compared]) -> None:
    assert spread(grid, 2) == [grid[0], grid[-1]]
    assert spread(grid, 9) == grid
    assert spread(grid, 1) == [grid[0]]


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_the_picture_has_every_point(grid: list[Compared], tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"axes{ending}"
    draw(grid, file, heading="job", measured=grid[:1])
    assert file.stat().st_size > 1000
    if ending == ".svg":
        text = file.read_text(encoding="utf-8")
        assert all(f"{one.winner} {max(one.gain, 1 / one.gain):.2f}x" in text for one in grid)
        draw(grid, tmp_path / "again.svg", heading="job", measured=grid[:1])
        assert (tmp_path / "again.svg").read_text(encoding="utf-8") == text


def test_uneven_stages_are_said_to_exchange_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank as much as the largest: sixteen ranks of 126 layers are nearly even, fourteen are not."""
    monkeypatch.setenv("COLUMNS", "80")
    words = ["compare-axes", str(LLAMA3), "--delay", "4 ms", "--rate", "32 Gbit/s", "--schedule", "1f1b", "--quiet"]
    even, uneven = ([*words, "--set", f"parallelism.pipeline={ranks}"] for ranks in (16, 14))
    full = load_workload(LLAMA3, {"parallelism.pipeline": "14"}).full_scale
    assert full is not None
    each = [gradient_bytes(full, rank, 14) for rank in range(14)]
    beyond = json.loads(CliRunner().invoke(app, [*uneven, "--json"]).stdout)["exchanged_beyond"]
    assert beyond == pytest.approx(14 * max(each) / sum(each) - 1)
    said = CliRunner().invoke(app, uneven).stdout
    assert f"exchanges as much as the largest, {beyond:.1%} more" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80
    assert "uneven" not in CliRunner().invoke(app, even).stdout


def test_the_command_as_json() -> None:
    settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    link = ["--delay", "4 ms", "--rate", "32 Gbit/s", "--rate", "8 Tbit/s"]
    done = CliRunner().invoke(app, ["compare-axes", str(LLAMA3), *link, *settings, "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    points = json.loads(done.stdout)["points"]
    assert [(one["rate_bps"], one["winner"]) for one in points] == [(32e9, "pipeline"), (8e12, "data")]
    assert points[0]["gain"] == min(points[0]["data_s"].values()) / min(points[0]["pipeline_s"].values())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--delay", "4"], "--delay: option: got '4', expected a time with a unit"),
        (["--picture", "x.pdf"], "--picture"),
        (["--measure", "3"], "--out beside it"),
        (["--schedule", "best"], "--schedule: option: got 'best', expected names of schedules"),
    ],
)
def test_bad_options(arguments: list[str], expected: str) -> None:
    done = CliRunner().invoke(app, ["compare-axes", str(LLAMA3), *arguments])
    assert isinstance(done.exception, BadInput)
    assert expected in str(done.exception)
