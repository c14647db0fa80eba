"""A lab that is not what it says it is, is never trusted: a row per way to be broken, before the run and during it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processes import descendants

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
SHAPERS = Path(__file__).with_name("wrong_shapers.py")
DEADLINE_S = 240
TOPOLOGY = """
name: uneven
datacenters: {a: {nodes: 2}, b: {nodes: 2}}
links:
  - {name: north, between: [a, b], rate: 1 Gbit/s, forward: {delay: 4 ms}, reverse: {delay: 9 ms}}
  - {name: south, between: [a, b], delay: 9 ms, rate: 1 Gbit/s}
routes:
  - {from: a, to: b, via: [VIA]}
  - {from: b, to: a, via: [VIA]}
"""
SETTINGS = (
    *("--set=microbatches=4", "--set=schedules=[1f1b]", "--iterations=3", "--set=warmup=1"),
    "--set=pacing={F: 10 ms, I: 10 ms, W: 10 ms}",
)


def start(directory: Path, *words: str, via: str = "north") -> subprocess.Popen[str]:
    topology = directory / "uneven.yaml"
    topology.write_text(TOPOLOGY.replace("VIA", via))
    command = [sys.executable, "-m", "testbed", "run", str(topology), "workloads/tiny-gpt-pp4.yaml", *SETTINGS, *words]
    return subprocess.Popen(
        [*command, "--out", str(directory / "results")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def verdict(directory: Path, process: subprocess.Popen[str]) -> dict[str, Any]:
    """The only schedule's row, of a run that gave a result and does not trust it."""
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 5, said
    (row,) = json.loads((directory / "results" / "comparison.json").read_text())["schedules"]
    assert not row["trusted"]
    return dict(row)


BUSY = "did not fit into their slots"
"""What a machine does to a run that carries on beside too much else: its delays hide those of a link."""


@pytest.mark.parametrize(
    ("shaper", "via", "reason"),
    [
        ("SlowRate", "north", "is not as asked: .*rate .*asked 1 Gbit"),
        ("SwappedDelays", "north", "is not as asked: .*one-way delay"),
        ("SlowRateLater", "north", "on their way"),
        ("SwappedDelaysLater", "north", "on their way"),
        ("LossLater", "north", "TCP retransmitted"),
        ("DetourLater", "south", "did not take the routes of the plan"),
    ],
)
def test_a_broken_lab_is_never_trusted(tmp_path: Path, shaper: str, via: str, reason: str) -> None:
    row = verdict(tmp_path, start(tmp_path, "--shaper", f"{SHAPERS}:{shaper}", via=via))
    found = any(re.search(reason, one) for one in row["reasons"])
    if not found and any(BUSY in one for one in row["reasons"]):
        pytest.skip(f"untrusted, but this machine is too busy to tell why: {row['reasons']}")
    assert found, row["reasons"]


def throttle(pid: int, over: threading.Event) -> None:
    """Stop a process for 40 ms of every 100."""
    with contextlib.suppress(ProcessLookupError):
        while not over.wait(0.06):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.04)
            os.kill(pid, signal.SIGCONT)


def test_a_throttled_worker_is_never_trusted(tmp_path: Path) -> None:
    process = start(tmp_path, "--iterations=8")
    over = threading.Event()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("training 1f1b"):
                break
        worker = next(pid for pid in descendants(process.pid) if name(pid).startswith("rank 1 "))
        thread = threading.Thread(target=throttle, args=(worker, over))
        thread.start()
        row = verdict(tmp_path, process)
    finally:
        over.set()
        process.kill()
    thread.join()
    assert row["reasons"]


def name(pid: int) -> str:
    """What a process calls itself; "" when it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""
