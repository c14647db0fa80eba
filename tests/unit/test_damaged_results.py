"""`report --recheck` of damaged results: one line that says where, never a traceback; never trust in half of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from damaged_results import Damage, damages, fault
from in_process import run_testbed
from test_data_format import found, write

SHARES = 47
"""One damage in so many is tried; benchmarks/fuzz_inputs.py tries all."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run left, without the picture."""
    directory = tmp_path_factory.mktemp("results") / "run"
    directory.mkdir()
    write(directory, found())
    (directory / "timeline.svg").write_text("")
    assert run_testbed("report", directory, "--recheck").returncode == 0
    return directory


def test_no_damage_is_a_traceback(good: Path, tmp_path: Path) -> None:
    every = [one for one in damages(good) if not one.name.startswith("plan.json ")]  # see test_plan_edits.py
    assert len(every) > 300
    faults = [why for one in every[::SHARES] if (why := fault(good, one, tmp_path / "bad"))]
    assert not faults, "\n".join(faults[:20])


@pytest.mark.parametrize(
    "name", ["actions.parquet", "iterations.parquet", "links.parquet", "evidence.json", "plan.json"]
)
@pytest.mark.parametrize("what", ["missing", "empty", "cut"])
def test_the_file_is_named(good: Path, tmp_path: Path, name: str, what: str) -> None:
    (damage,) = (one for one in damages(good) if one.name == f"{name} {what}")
    assert not fault(good, damage, tmp_path / "bad")
    assert name in run_testbed("report", tmp_path / "bad", "--recheck").stderr


def test_the_column_and_the_field_are_named(good: Path, tmp_path: Path) -> None:
    wanted = {
        "iterations.parquet without loss": "iterations.parquet: loss: got 'nothing'",
        "iterations.parquet loss all 'x'": "iterations.parquet: loss: got 'x', expected a number",
        "actions.parquet microbatch all None": "actions.parquet: columns: got 'microbatch that is no number'",
        "actions.parquet microbatch all 1e+300": "actions.parquet: columns: got 'microbatch that is no number'",
        "iterations.parquet half its rows": "iterations.parquet: warmup: got 'nothing of 1f1b and tiny-gpt-pp4",
        "links.parquet schedule all 'x'": "links.parquet: schedule: got 'nothing of 1f1b'",
        "evidence.json 1f1b gone": "evidence.json: 1f1b: got 'nothing'",
        "numerics.json jobs.tiny-gpt-pp4.refused gone": "numerics.json: jobs.tiny-gpt-pp4.refused: got 'nothing'",
    }
    found: dict[str, Damage] = {one.name: one for one in damages(good)}
    for name, said in wanted.items():
        assert not fault(good, found[name], tmp_path / "bad")
        assert said in run_testbed("report", tmp_path / "bad", "--recheck").stderr


SPENT = {"kept_s": 8.0, "lost_s": 1.0, "saving_s": 0.5, "restarting_s": 0.5, "total_s": 10.0, "goodput": 0.8}
GOODPUT = {"label": "1f1b", "failures": 1, "trained_again": 2, "measured": SPENT, "predicted": SPENT}
TOLD = [
    ({"goodput": 5}, "goodput: got 5"),
    ({"events": 5}, "events: got 5"),
    ({"link_events": [{}]}, "link_events.0."),
    ({"adaptation": 5}, "adaptation: got 5"),
    ({"goodput": [GOODPUT | {"measured": SPENT | {"goodput": "x"}}]}, "goodput.0.measured.goodput: got 'x'"),
    ({"goodput": [GOODPUT | {"failures": None}]}, "goodput.0.failures: got"),
    ({"goodput": [GOODPUT | {"measured": SPENT | {"samples": 3}}]}, "goodput.0.measured.samples_per_s: got 'nothing'"),
]


@pytest.mark.parametrize(("told", "said"), TOLD)
def test_what_is_told_of_events_and_failures_is_checked(good: Path, tmp_path: Path, told: Any, said: str) -> None:
    def damaged(at: Path) -> None:
        document = json.loads((at / "comparison.json").read_text())
        (at / "comparison.json").write_text(json.dumps(document | told))

    assert not fault(good, Damage(said, damaged), tmp_path / "bad")
    done = run_testbed("report", tmp_path / "bad", "--details")
    assert done.returncode == 2
    assert said in done.stderr


def test_what_a_run_tells_of_failures_is_shown(good: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    shutil.copytree(good, told)
    document = json.loads((told / "comparison.json").read_text())
    (told / "comparison.json").write_text(json.dumps(document | {"goodput": [GOODPUT]}))
    done = run_testbed("report", told, "--details")
    assert done.returncode == 0
    assert "goodput 80.00%" in " ".join(done.stdout.split())
