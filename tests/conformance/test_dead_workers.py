"""A worker that dies between what the launcher says to it: the error names it, and how it died."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest
from local_workers import scheduled, task_of, workers
from processes import descendants, wait_until

from testbed.errors import RunFailed
from testbed.planning.resolve import make_plan
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import load_topology, load_workload
from testbed.train.launcher import Launcher

ROOT = Path(__file__).parents[2]
PATIENCE = Deadline(60, "a test")
SETTINGS = {"parallelism.pipeline": "2", "microbatches": "2", "pacing": "{F: 1 ms, I: 1 ms, W: 1 ms}"}


def kill(loop: Loop, rank: int) -> None:
    """End the worker of this rank, and wait until its connection shows it."""
    (launcher,) = loop.launchers
    assert isinstance(launcher, Launcher)
    for pid in descendants(launcher.process.pid):
        if (Path("/proc") / str(pid) / "comm").read_text().startswith(f"rank {rank} "):
            os.kill(pid, signal.SIGKILL)
    hung_up = select.poll()
    hung_up.register(launcher.workers[rank].fileno(), 0)
    wait_until(lambda: hung_up.poll(0), f"rank {rank} is still connected")


@pytest.mark.parametrize(
    ("rounds", "what"),
    [(0, "prepare"), (1, "post the receives of iteration 2 of 1f1b")],
    ids=["before it is told", "between rounds"],
)
def test_a_worker_that_cannot_be_told_any_more_is_named(tmp_path: Path, rounds: int, what: str) -> None:
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", SETTINGS)
    plan = make_plan(load_topology(ROOT / "topologies/two-dc-metro.yaml"), workload)
    with workers(2, tmp_path, PATIENCE) as loop:
        going = loop.run([task_of(scheduled(plan, "1f1b"), iterations=3)], PATIENCE)
        for _ in range(rounds):
            next(going)
        kill(loop, 1)
        with pytest.raises(RunFailed, match=f"^rank 1 was killed by signal 9; it did not {what}"):
            next(going)
