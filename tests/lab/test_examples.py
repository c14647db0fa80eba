"""What examples/ shows, run as its README says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from in_process import Done, run_testbed

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SLOW = (
    "--set=topology.links=[{between: [paris, warsaw], fibre: 4000 km, rate: 50 Mbit/s}]",
    *("--set=message=50 kB", "--set=warmup=1", "--iterations=2"),
)
"""Links that a busy machine, too, shapes within the gate's 2 %, and little to send over them."""

COMMANDS: list[str] = re.findall(r"\| `testbed (.*?)` \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)


def called(command: str, *more: str) -> Done:
    """A command that builds no lab."""
    return run_testbed(*shlex.split(command), *more)


def run(command: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "testbed", *shlex.split(command), *more]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


def ended(done: subprocess.CompletedProcess[str]) -> None:
    """It ended as it should, whatever this machine's noise did to times (5: not to be trusted)."""
    if "the links are not as asked" in done.stderr:
        pytest.skip(f"this machine is too busy to shape links: {done.stderr.splitlines()[-1]}")
    assert done.returncode in (0, 5), done.stderr


def the_command(start: str) -> str:
    (command,) = [command for command in COMMANDS if start in command]
    return command


def test_every_example_is_short_and_has_a_command() -> None:
    """But for notebooks, which tests/unit/test_api.py runs."""
    others = ("README.md", "predict_and_compare.ipynb")
    files = [path for path in EXAMPLES.iterdir() if path.is_file() and path.name not in others]
    assert {path.name for path in files} == {
        *("my_schedule.py", "my_schedule.csv", "my_model.py", "my_shaper.py", "my_job.yaml", "my_policy.py"),
        *("my_clos.yaml", "my_controller.py"),
    }
    assert all(len(path.read_text().splitlines()) <= 50 for path in files)
    assert len(COMMANDS) == 7


@pytest.mark.parametrize(("file", "label"), [("my_schedule.py:eager", "eager"), ("my_schedule.csv", "my_schedule")])
def test_a_schedule_of_ones_own_is_predicted(file: str, label: str) -> None:
    done = called(the_command(file), "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["schedules"]
    assert (row["schedule"], row["label"]) == (f"examples/{file}", label)
    assert row["predicted_s"] > 8 * 0.060


def test_a_policy_of_ones_own_beside_built_in_ones() -> None:
    done = called(the_command("my_policy.py"), "--json")
    assert done.returncode == 0, done.stderr
    shortest, greedy, mine = json.loads(done.stdout)["policies"]
    assert mine["policy"] == "examples/my_policy.py:in_turn"
    assert shortest["most_flows"] == 2 * greedy["most_flows"] == 2 * mine["most_flows"]


@pytest.mark.root
def test_a_job_of_ones_own_runs_under_every_label(tmp_path: Path) -> None:
    """Model, schedules and shaper at once, in a lab: everything is kept by label, and computes the same."""
    out = tmp_path / "out"
    shaper = re.search(r"--shaper (\S+)", the_command("--shaper"))
    assert shaper
    job = "run topologies/two-dc-longhaul.yaml examples/my_job.yaml"
    assert job in COMMANDS
    done = run(job, *SLOW, "--out", str(out), "--json", "--shaper", shaper[1])
    ended(done)
    document = json.loads(done.stdout)
    assert document["shaper"] == "recording"
    assert [(row["schedule"], row["label"]) for row in document["schedules"]] == [
        ("1f1b", "1f1b"),
        ("my_schedule.py:eager", "eager lead=1"),
        ("my_schedule.py:eager", "eager lead=3"),
        ("my_schedule.csv", "by hand"),
    ]
    assert all(row["speedup_predicted"] for row in document["schedules"])
    labels = [row["label"] for row in document["schedules"]]
    assert list(json.loads((out / "schedules.json").read_text())) == labels
    iterations = pd.read_parquet(out / "iterations.parquet")
    losses = {str(name): rows["loss"].tolist() for name, rows in iterations.groupby("schedule")}
    assert sorted(losses) == sorted(labels)
    for name in labels:
        assert losses[name] == pytest.approx(losses["1f1b"], rel=1e-4)
        assert losses[name][-1] < losses[name][0]
    assert (out / "timeline.svg").is_file()
    manifest = json.loads((out / "manifest.json").read_text())
    assert [choice["label"] for choice in manifest["schedules"]] == labels
    assert manifest["workload_specs"][0]["model"]["content"] == (EXAMPLES / "my_model.py").read_text()
    assert [row["changes"] for row in manifest["lab"]["links"]] == [[], []]


def test_a_job_of_ones_own_is_planned(tmp_path: Path) -> None:
    """With the words of the README; that it is trained is shown above, under four schedules."""
    words = the_command("my_job.yaml --schedule 1f1b").removeprefix("run ")
    done = called(f"plan {words}", "-o", str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.json").is_file()


@pytest.mark.root
def test_a_shaper_of_ones_own_is_measured() -> None:
    done = run(the_command("calibrate"), "--json")
    ended(done)
    assert json.loads(done.stdout)["shaper"] == "recording"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("magic", "--shaper: shaper: got 'magic', expected one of auto, relay, netem"),
        ("examples/my_shaper.py:Nothing", "expected a name in that file (Recording)"),
        ("examples/none.py:X", "expected a readable file"),
    ],
)
def test_a_shaper_that_is_none_is_refused_before_anything_starts(name: str, expected: str) -> None:
    done = called("calibrate topologies/two-dc-longhaul.yaml", "--shaper", name)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
