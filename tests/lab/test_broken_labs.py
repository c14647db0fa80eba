"""A lab that is not what it says it is, is never trusted: wrong before the run or during it, and why is said."""

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
from typing import Any, NamedTuple

import pytest
from processes import descendants

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
SHAPERS = Path(__file__).with_name("wrong_shapers.py")
DEADLINE_S = 240
PARALLEL = """
name: parallel
datacenters: {a: {nodes: 1}, b: {nodes: 1}}
links:
  - {name: north, between: [a, b], delay: 9 ms, rate: 100 Mbit/s}
  - {name: south, between: [a, b], rate: 100 Mbit/s, forward: {delay: 4 ms}, reverse: {delay: 9 ms}}
routes:
  - {from: a, to: b, via: [south]}
  - {from: b, to: a, via: [south]}
"""
CHAIN = """
name: chain
datacenters: {a: {nodes: 1}, b: {nodes: 1}, c: {nodes: 1}}
links:
  - {between: [a, b], rate: 100 Mbit/s, forward: {delay: 4 ms}, reverse: {delay: 9 ms}}
  - {between: [b, c], delay: 5 ms, rate: 100 Mbit/s}
"""
SETTINGS = (
    *("--set=microbatches=4", "--set=schedules=[1f1b]", "--iterations=3", "--set=warmup=1"),
    *("--set=pacing={F: 10 ms, I: 10 ms, W: 10 ms}", "--no-picture"),
    *("--set=model.d_model=16", "--set=model.sequence=16", "--set=model.layers=3", "--set=message=100 kB"),
)
"""Of links that a busy machine, too, carries; a message takes 8 ms of a link."""
LATER = {
    "slow rate": "on their way",
    "swapped delays": "on their way",
    "loss": "TCP retransmitted",
    "detour": "did not take the routes of the plan",
}
"""What becomes wrong when a schedule is about to be trained, as OneFaultAfterAnother has it; what is said of it."""


class Untrusted(NamedTuple):
    """A run that gave a result and does not trust it."""

    out: Path
    said: str
    comparison: dict[str, Any]


def start(directory: Path, topology: str, *words: str) -> subprocess.Popen[str]:
    """A run with a rank in each datacenter."""
    file = directory / "topology.yaml"
    file.write_text(topology)
    settings = *SETTINGS, f"--set=parallelism.pipeline={topology.count('nodes: 1')}"
    plan = str(file), "workloads/tiny-gpt-pp4.yaml"
    command = [sys.executable, "-m", "testbed", "run", *plan, "--again=0", *settings, *words]
    return subprocess.Popen(
        [*command, "--out", str(directory / "results")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(directory: Path, process: subprocess.Popen[str]) -> Untrusted:
    out = directory / "results"
    try:
        _, said = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 5, said
    return Untrusted(out, said, json.loads((out / "comparison.json").read_text()))


BUSY = "did not fit into their slots"
"""What a machine does to a run that carries on beside too much else: its delays hide those of a link."""


@pytest.fixture(scope="module")
def wrong_later(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By what became wrong, the row of the schedule that was trained then."""
    directory = tmp_path_factory.mktemp("later")
    labels = ", ".join(f"{{schedule: 1f1b, label: {name}}}" for name in LATER)
    shaper = ("--shaper", f"{SHAPERS}:OneFaultAfterAnother")
    run = ended(directory, start(directory, PARALLEL, *shaper, f"--set=schedules=[{labels}]"))
    return {row["label"]: row for row in run.comparison["schedules"]}


@pytest.mark.parametrize(("name", "reason"), LATER.items())
def test_a_lab_that_becomes_wrong_is_never_trusted(
    wrong_later: dict[str, dict[str, Any]], name: str, reason: str
) -> None:
    row = wrong_later[name]
    assert not row["trusted"]
    found = any(re.search(reason, one) for one in row["reasons"])
    if not found and any(BUSY in one for one in row["reasons"]):
        pytest.skip(f"untrusted, but this machine is too busy to tell why: {row['reasons']}")
    assert found, row["reasons"]


def test_wrong_links_leave_every_schedule_untrusted(tmp_path: Path) -> None:
    """The run goes on, and every schedule's reasons name both links."""
    shaper = ("--shaper", f"{SHAPERS}:WrongFromTheStart")
    run = ended(tmp_path, start(tmp_path, CHAIN, *shaper, "--set=schedules=[1f1b, gpipe]", "--iterations=2"))
    assert run.comparison["complete"]
    assert len(run.comparison["schedules"]) == 2
    for row in run.comparison["schedules"]:
        assert not row["trusted"]
        for there in ("a->b", "b->a"):
            assert any(re.search(f"{there} is not as asked: .*one-way delay", one) for one in row["reasons"]), row
        assert any(re.search(r"b->c is not as asked: .*rate .*asked 100 Mbit", one) for one in row["reasons"]), row
    assert "--clock virtual" in run.said
    kept = json.loads((run.out / "links.json").read_text())["links"]
    assert [link["ok"] for link in kept[:3]] == [False] * 3
    manifest = json.loads((run.out / "manifest.json").read_text())
    assert manifest["links"]["as_asked"] is False
    assert manifest["links"]["attempts"]["b->a"] == 6


def throttle(pid: int, over: threading.Event) -> None:
    """Stop a process for 40 ms of every 100."""
    with contextlib.suppress(ProcessLookupError):
        while not over.wait(0.06):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.04)
            os.kill(pid, signal.SIGCONT)


def test_a_throttled_worker_is_never_trusted(tmp_path: Path) -> None:
    process = start(tmp_path, PARALLEL, "--iterations=8")
    over = threading.Event()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("training 1f1b"):
                break
        worker = next(pid for pid in descendants(process.pid) if name(pid).startswith("rank 1 "))
        thread = threading.Thread(target=throttle, args=(worker, over))
        thread.start()
        run = ended(tmp_path, process)
    finally:
        over.set()
        process.kill()
    thread.join()
    (row,) = run.comparison["schedules"]
    assert not row["trusted"]
    assert row["reasons"]


def name(pid: int) -> str:
    """What a process calls itself; "" when it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""
