"""What commands print with --json is what docs/json-output.md says, key by key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from data_format import documented
from in_process import run_testbed
from study_files import study_file

RUN = Path(__file__).parents[1] / "recorded/format-3-run"
PAGE = Path(__file__).parents[2] / "docs/json-output.md"
LINK, RING, JOB = "two-dc-longhaul", "geopipe-three-region", "tiny-gpt-pp4"
ONE = ("--schedule", "1f1b")
SLOWER = ("--event", "link paris--warsaw delay 60 ms at 2")

BY_NAME = {
    *("predicted_s", "predicted_low_s", "predicted_high_s", "measured", "pipeline_s", "data_s"),
    *("environment", "environment_before", "environment_now", "tolerances", "ways", "row"),
    *("cases", "schedules", "left_out", "values"),
}
"""Keys of objects whose own keys are names (labels, packages, quantities), or in another page."""

COMMANDS = {
    "predict": (("predict", LINK, JOB, *ONE), ("predict", LINK, JOB, JOB, *ONE)),
    "schedule compare": (("schedule", "compare", LINK, JOB, *ONE),),
    "route": (("route", RING, JOB, "--policy", "greedy", "--policy", "joint", *ONE),),
    "advise": (("advise", LINK, JOB, "--axes", "4x1x1", "--top", "2"),),
    "tune": (("tune", JOB, LINK),),
    "compare-axes": (("compare-axes", "paper-llama3-405b", "--delay", "5 ms", "--rate", "400 Gbit/s"),),
    "doctor": (("doctor",),),
    "plan": (("plan", LINK, JOB, *ONE, "-o", "plan.json"),),
    "schedule show": (("schedule", "show", LINK, JOB, *ONE), ("schedule", "show", LINK, JOB, JOB, *ONE)),
    "knee": (("knee", LINK, JOB, *ONE),),
    "study, sweep": (("study", "study.yaml"),),
    "adapt": (
        ("adapt", LINK, JOB, *SLOWER, "--event", "rank 1 slower x1.5 at 4", "--iterations", "9"),
        ("adapt", LINK, JOB, JOB, *ONE, *SLOWER, "--vary", "starts=2", "--iterations", "6"),
    ),
    "baseline check": (("baseline", "check"),),
    "baseline list": (("baseline", "list"),),
}


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from keys(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            if key not in BY_NAME or isinstance(one, list):
                yield from keys(one)


def printed(directory: Path, *words: str) -> dict[str, Any]:
    done = run_testbed(*words, "--json", directory=directory)
    assert done.returncode in (0, 5), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_is_documented_and_every_documented_one_is_there(command: str, tmp_path: Path) -> None:
    if command.startswith("baseline"):
        saved = run_testbed("baseline", "save", "one", LINK, JOB, *ONE, "--predict-only", directory=tmp_path)
        assert saved.returncode == 0, saved.stderr
    if command.startswith("study"):
        study_file(tmp_path, claims=["1f1b < 9 s"])
    found = {key for words in COMMANDS[command] for key in keys(printed(tmp_path, *words))}
    assert found == documented(command, PAGE)


def test_two_runs_that_part_have_what_is_documented(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(RUN, other)
    for table in ("actions", "messages"):
        frame = pd.read_parquet(other / f"{table}.parquet")
        measured = frame["source"] == "measured"
        column = "end_s" if table == "actions" else "arrived_s"
        frame.loc[measured, column] += 1e-6
        frame.to_parquet(other / f"{table}.parquet")
    assert set(keys(printed(tmp_path, "diverge", str(RUN), str(other)))) == documented("diverge", PAGE)
