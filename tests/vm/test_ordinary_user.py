"""The virtual clock of who is not root: the same nanoseconds, nothing left behind, and words where it cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ordinary_user import UID, as_container, as_user, without_user_namespaces
from processes import descendants, wait_until, wait_until_gone

from testbed.errors import ExitCode
from testbed.vm import kernel

ROOT = Path(__file__).parents[2]
LIMIT_S = 240
COMPARED = ("actions.parquet", "messages.parquet", "iterations.parquet")
TOPOLOGY = """
name: pair
datacenters: {east: {nodes: 1}, west: {nodes: 2}}
links: [{between: [east, west], delay: 3 ms, rate: 1 Gbit/s}]
"""
WORKLOAD = """
name: three
model: {layers: 3, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 3}
microbatches: 3
microbatch_size: 1
pacing: {F: 7 ms, I: 9 ms, W: 5 ms}
message: 37 kB
iterations: 2
warmup: 1
schedules: [zb-h1]
"""


@pytest.fixture
def files() -> Iterator[Path]:
    """A directory of the user's with the plan: pytest's own are for who makes them."""
    with tempfile.TemporaryDirectory(prefix="testbed-user-") as name:
        directory = Path(name)
        (directory / "topology.yaml").write_text(TOPOLOGY)
        (directory / "workload.yaml").write_text(WORKLOAD)
        directory.chmod(0o755)
        os.chown(directory, UID, UID)
        yield directory


def command(before: Sequence[str], out: str) -> list[str]:
    words = ["run", "topology.yaml", "workload.yaml", "--clock", "virtual", "--out", out, "--quiet"]
    return [*before, sys.executable, "-P", "-m", "testbed", *words]


def call(before: Sequence[str], files: Path, out: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(before, out), cwd=files, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def readable(kernel_: kernel.Kernel, files: Path) -> list[str]:
    before = as_user(files, kernel_.path.parents[1])
    if subprocess.run([*before, sys.executable, "-c", "import testbed"], cwd=ROOT, check=False).returncode:
        pytest.skip(f"user {UID} may not read this checkout")
    return before


def test_a_user_and_a_containers_root_get_the_nanoseconds_of_root(
    time_travel_kernel: kernel.Kernel, files: Path
) -> None:
    ways = {"root": [], "user": readable(time_travel_kernel, files), "container": as_container()}
    files.chmod(0o777)
    for name, before in ways.items():
        done = call(before, files, name)
        assert done.returncode == ExitCode.OK, (name, done.stderr)
    for name in ("user", "container"):
        for file in COMPARED:
            assert (files / name / file).read_bytes() == (files / "root" / file).read_bytes(), (name, file)
    assert (files / "user/comparison.json").stat().st_uid == UID


@pytest.mark.parametrize("victim", ["command", "group"])
def test_kill_9_of_a_users_command_leaves_nothing(time_travel_kernel: kernel.Kernel, files: Path, victim: str) -> None:
    before = readable(time_travel_kernel, files)
    process = subprocess.Popen(command(before, "out"), cwd=files, start_new_session=True)
    try:
        wait_until(lambda: len(descendants(process.pid)) >= 6, "no guest came up", LIMIT_S)
        below = descendants(process.pid)
        (os.kill if victim == "command" else os.killpg)(process.pid, signal.SIGKILL)
        process.wait(10)
        wait_until_gone(below)
    finally:
        process.kill()
        process.wait()


def test_where_user_namespaces_are_forbidden_it_is_said_before_anything_starts(
    time_travel_kernel: kernel.Kernel, files: Path
) -> None:
    before = [*readable(time_travel_kernel, files), *without_user_namespaces()]
    done = call(before, files, "out")
    assert done.returncode == ExitCode.MACHINE_LACKS
    assert done.stderr.startswith(f"error: user {UID} cannot make the lab's namespaces: ")
    assert "Operation not permitted" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (files / "out").exists()
