"""Where two runs part: a time moved by a nanosecond is found, where it is and what it is of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from in_process import run_testbed

from testbed.results.divergence import diverge

RUN = Path(__file__).parents[1] / "recorded/format-3-run"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "other"))


def move(directory: Path, table: str, column: str, by: float, *, rank: str, count: int = 1) -> pd.Series:
    """Move a time of the last measured rows of one rank in the first iteration; returns the first of them."""
    path = directory / f"{table}.parquet"
    frame = pd.read_parquet(path)
    mine = frame[
        (frame["source"] == "measured") & (frame["iteration"] == frame["iteration"].min()) & (frame[rank] == 1)
    ]
    rows = mine.dropna(subset=[column]).sort_values(column).tail(count)
    frame.loc[rows.index, column] += by
    frame.to_parquet(path)
    found: pd.Series = rows.iloc[0]
    return found


def test_a_run_is_identical_to_itself() -> None:
    done = run_testbed("diverge", RUN, RUN)
    assert done.returncode == 0, done.stderr
    assert "identical" in done.stdout
    assert "none that the manifests name" in done.stdout


def test_the_first_of_several_actions_is_named_with_both_times(other: Path) -> None:
    row = move(other, "actions", "end_s", 3e-9, rank="rank", count=3)
    found = diverge(RUN, other)
    assert not found.identical
    assert (found.actions, found.messages, found.message) == (3, 0, None)
    first = found.action
    assert first is not None
    assert (first.column, first.schedule) == ("end_s", row["schedule"])
    assert first.row == {
        name: str(row[name]) if name == "kind" else int(row[name])
        for name in ("job", "iteration", "replica", "rank", "stage", "kind", "microbatch", "part_begin")
    }
    assert first.one == pytest.approx(row["end_s"], abs=1e-9)
    assert first.by_s == pytest.approx(3e-9, abs=1.1e-9)


def test_the_first_message_is_in_the_document_and_the_exit_code_says_that_they_differ(other: Path) -> None:
    row = move(other, "messages", "arrived_s", -2e-6, rank="target_rank")
    done = run_testbed("diverge", RUN, other, "--json")
    assert done.returncode == 5, done.stderr
    document = json.loads(done.stdout)
    assert document["action"] is None
    assert document["messages"] == 1
    assert document["message"]["column"] == "arrived_s"
    assert document["message"]["row"]["microbatch"] == row["microbatch"]
    assert document["message"]["by_s"] == pytest.approx(-2e-6, abs=2e-9)
    shown = run_testbed("diverge", RUN, other, COLUMNS="80").stdout
    assert "messages: 1 differ; the first is" in shown
    assert "-2.000 us" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_less_than_half_a_nanosecond_is_no_difference(other: Path) -> None:
    path = other / "actions.parquet"
    frame = pd.read_parquet(path)
    frame["end_s"] = (frame["end_s"] * 1e9).round() / 1e9 + 0.2e-9
    frame.to_parquet(path)
    assert diverge(RUN, other).actions == 0


def test_an_action_of_one_run_only_and_inputs_that_differ(other: Path) -> None:
    path = other / "actions.parquet"
    frame = pd.read_parquet(path)
    gone = frame[frame["source"] == "measured"].index[5]
    frame.drop(index=gone).to_parquet(path)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"transport": "tcp-bbr"}))
    found = diverge(RUN, other)
    assert found.action is not None
    assert (found.action.column, found.action.one, found.action.other) == ("in one run only", 1.0, None)
    assert found.actions == 1
    assert found.inputs == ("transport",)


def test_nothing_in_common_is_refused(other: Path, tmp_path: Path) -> None:
    for name in ("actions", "messages"):
        frame = pd.read_parquet(other / f"{name}.parquet")
        frame["schedule"] = "another"
        frame.to_parquet(other / f"{name}.parquet")
    done = run_testbed("diverge", RUN, other)
    assert done.returncode == 2
    assert "measured schedules another" in done.stderr
    assert run_testbed("diverge", RUN, tmp_path / "none").returncode == 2


def test_a_run_without_a_finished_schedule_is_said_to_be_incomplete(other: Path) -> None:
    for name in ("comparison.json", "actions.parquet", "messages.parquet"):
        (other / name).unlink()
    done = run_testbed("diverge", RUN, other)
    assert done.returncode == 2
    expected = "one or more: this run is incomplete"
    assert done.stderr == f"error: {other}: finished schedules: got 0, expected {expected}\n"


def test_parts_of_a_report_are_refused_beside_its_document() -> None:
    done = run_testbed("report", RUN, "--json", "--checks", "--memory")
    assert done.returncode == 2
    expected = "none of these, or --details: the document has all of a run"
    assert done.stderr == f"error: --json: option: got '--memory, --checks', expected {expected}\n"
