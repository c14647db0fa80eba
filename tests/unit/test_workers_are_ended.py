"""Whoever replaces the workers of a job gets rid of those that are left, whatever these are waiting for."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.train.launcher import Launcher
from testbed.train.protocol import END_WORKERS, WorkerPlace, WorldSpec

torch = pytest.importorskip("torch")

RANKS = 2


def still_there(*pids: int) -> list[int]:
    """Those of these processes that have not ended."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def workers_of(launcher: Launcher) -> list[int]:
    """Their process ids, in the order of ranks."""
    server = launcher.process.pid
    return [int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split()]


def connected(launcher: Launcher, directory: Path, ranks: int = RANKS) -> list[int]:
    """Have so many workers connect, here; their process ids."""
    world = WorldSpec(
        tuple(WorkerPlace(None, "lo") for _ in range(ranks)),
        store=f"file://{directory / 'store'}",
        timeout_s=300.0,
        warmup_bytes=1000,
        neighbours=tuple(pairwise(range(ranks))),
        logs=str(directory),
    )
    launcher.imported()
    with Loop([launcher]) as loop:
        loop.start([world], Deadline(60.0, "of the test"))
    return workers_of(launcher)


def test_one_that_cannot_end_is_killed(tmp_path: Path) -> None:
    with Launcher() as launcher:
        stopped, other = connected(launcher, tmp_path)
        os.kill(stopped, signal.SIGSTOP)
        launcher.end()
        assert not still_there(stopped, other)


def test_the_peers_of_one_that_failed_are_ended(tmp_path: Path) -> None:
    with Launcher() as launcher:
        failed, other = connected(launcher, tmp_path)
        os.kill(failed, signal.SIGKILL)
        launcher.end()
        assert not still_there(failed, other)


def test_one_that_waits_for_nothing_says_where_before_it_is_killed(tmp_path: Path) -> None:
    with Launcher() as launcher:
        waiting, _ = connected(launcher, tmp_path)
        os.kill(launcher.process.pid, END_WORKERS)
        launcher.end()
        assert not still_there(waiting)
        assert "in _serve" in (tmp_path / "rank0.log").read_text()


def test_one_that_crashes_leaves_where_it_was_in_its_log(tmp_path: Path) -> None:
    with Launcher() as launcher:
        crashed, _ = connected(launcher, tmp_path)
        os.kill(crashed, signal.SIGSEGV)
        launcher.end()
        assert "in _serve" in (tmp_path / "rank0.log").read_text()


def test_others_follow_from_the_process_that_has_imported_torch_already(tmp_path: Path) -> None:
    with Launcher() as launcher:
        for number, ranks in enumerate((RANKS, RANKS + 1, 1)):
            (directory := tmp_path / str(number)).mkdir()
            failed, *others = connected(launcher, directory, ranks)
            assert [len(others), len(launcher.workers)] == [ranks - 1, ranks]
            os.kill(failed, signal.SIGKILL)
            launcher.end()
            assert not still_there(failed, *others)
            assert still_there(launcher.process.pid)
