"""A study measured in guests side by side: one that is killed, one that is interrupted, and what lies there then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from in_process import run_testbed
from processes import command_line, descendants, wait_until, wait_until_gone

from testbed.errors import ExitCode
from testbed.vm.kernel import Kernel

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0


def study_file(directory: Path) -> Path:
    document = {
        "name": "mine",
        "topologies": [str(ROOT / "topologies/two-dc-longhaul.yaml")],
        "workloads": [str(ROOT / "workloads/tiny-gpt-pp4.yaml")],
        "schedules": ["1f1b", "crosspipe-greedy"],
        "set": {"warmup": 1, "microbatches": 4},
        "iterations": 1,
        "light": True,
        "over": {"delay": {"field": "links.0.delay", "values": ["5 ms", "45 ms"]}},
        "claims": ["error <= 0.05 %", "order as the model's", "crosspipe-greedy <= 0.95 * 1f1b at delay=45 ms"],
    }
    path = directory / "study.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def workers_of(parent: int) -> list[int]:
    """The processes below it that measure cells."""
    return [pid for pid in descendants(parent) if "cell_worker" in command_line(pid)]


def started(*words: str | Path) -> tuple[subprocess.Popen[str], int]:
    """The command, and the first process that it started to measure cells, whose guest is booting."""
    command = subprocess.Popen(
        [sys.executable, "-m", "testbed", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # these tests may be below nohup
    )
    wait_until(lambda: command.poll() is not None or workers_of(command.pid), "no worker was started")
    assert command.poll() is None, "it ended before it measured anything"
    return command, min(workers_of(command.pid))


def test_a_study_survives_a_guest_that_dies_and_is_not_measured_twice(
    tmp_path: Path, time_travel_kernel: Kernel
) -> None:
    out, path = tmp_path / "out", study_file(tmp_path)
    command, worker = started("study", path, "--out", out, "--jobs", "1", "--json", "--quiet")
    os.kill(worker, signal.SIGKILL)
    stdout, _ = command.communicate(timeout=LIMIT_S)
    document = json.loads(stdout)
    assert [claim["verdict"] for claim in document["claims"]] == ["holds"] * 3, document
    assert command.returncode == ExitCode.OK
    assert document["taken_now"] == 2
    table = pd.read_parquet(out / "study.parquet")
    assert list(table["cell"]) == [0, 0, 1, 1]
    assert table["trusted"].all()
    assert {file.name for file in (out / "cells").iterdir()} == set(table["key"]), "a log is kept of a failure only"
    before = {file: file.stat().st_mtime_ns for file in out.glob("cells/*/comparison.json")}

    again = json.loads(run_testbed("study", path, "--out", out, "--json", "--quiet").stdout)
    assert again["taken_now"] == 0
    assert again["claims"] == document["claims"]
    assert {file: file.stat().st_mtime_ns for file in out.glob("cells/*/comparison.json")} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_interrupted_study_leaves_no_guest(tmp_path: Path, time_travel_kernel: Kernel, number: int) -> None:
    command, worker = started("study", study_file(tmp_path), "--out", tmp_path / "out", "--jobs", "2", "--quiet")
    everything = {worker, *descendants(command.pid)}
    command.send_signal(number)
    _, said = command.communicate(timeout=LIMIT_S)
    assert command.returncode == ExitCode.RUN_FAILED
    assert said.strip().endswith("interrupted")
    wait_until_gone(everything)
    assert len(list((tmp_path / "out/cells").glob("*/plan.json"))) >= 1, "what was made stays"
