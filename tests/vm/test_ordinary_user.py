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
from processes import descendants, guest_directories, wait_until, wait_until_gone, wait_until_removed
from three_ranks import COMPARED, TOPOLOGY, WORKLOAD

from testbed.errors import ExitCode
from testbed.vm import guest_machine, kernel

ROOT = Path(__file__).parents[2]
LIMIT_S = 240


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
    silent = "--quiet", "--no-picture"
    words = ["run", "topology.yaml", "workload.yaml", "--clock", "virtual", *silent, "--out", out]
    return [*before, sys.executable, "-P", "-m", "testbed", *words]


def call(before: Sequence[str], files: Path, out: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(before, out), cwd=files, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def readable(kernel_: kernel.Kernel, files: Path) -> list[str]:
    before = as_user(files, kernel_.path.parents[1])
    if subprocess.run([*before, sys.executable, "-c", "import testbed"], cwd=ROOT, check=False).returncode:
        pytest.skip(f"user {UID} may not read this checkout")
    return before


def test_a_user_others_roots_and_a_plain_process_get_the_nanoseconds_of_root(
    time_travel_kernel: kernel.Kernel, files: Path
) -> None:
    """Others' roots are a container's and a user namespace's. A plain process is a user's without user namespaces."""
    user = readable(time_travel_kernel, files)
    ways = {"root": [], "user": user, "container": as_container(), "plain": [*user, *without_user_namespaces()]}
    own = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*own, "true"], check=False).returncode == 0:
        ways["own"] = own
    files.chmod(0o777)
    for name, before in ways.items():
        others = guest_directories()
        done = call(before, files, name)
        assert done.returncode == ExitCode.OK, (name, done.stderr)
        wait_until_removed(guest_directories() - others, LIMIT_S)
    for name in set(ways) - {"root"}:
        for file in COMPARED:
            assert (files / name / file).read_bytes() == (files / "root" / file).read_bytes(), (name, file)
    for name in ("user", "plain"):
        assert (files / name / "comparison.json").stat().st_uid == UID


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("victim", ["command", "group"])
def test_kill_9_of_a_users_command_leaves_nothing(
    time_travel_kernel: kernel.Kernel, files: Path, victim: str, plain: bool
) -> None:
    before = [*readable(time_travel_kernel, files), *(without_user_namespaces() if plain else [])]
    others = guest_directories()
    process = subprocess.Popen(command(before, "out"), cwd=files, start_new_session=True)
    try:
        wait_until(lambda: len(descendants(process.pid)) >= 6, "no guest came up", LIMIT_S)
        below, own = descendants(process.pid), guest_directories() - others
        (os.kill if victim == "command" else os.killpg)(process.pid, signal.SIGKILL)
        process.wait(10)
        wait_until_gone(below)
        wait_until_removed(own, LIMIT_S)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_a_plain_process_in_time(
    time_travel_kernel: kernel.Kernel, files: Path, number: signal.Signals
) -> None:
    before = [*readable(time_travel_kernel, files), *without_user_namespaces()]
    process = subprocess.Popen(command(before, "out"), cwd=files, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(descendants(process.pid)) >= 6, "no guest came up", LIMIT_S)
        below = descendants(process.pid)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert process.returncode == ExitCode.RUN_FAILED, said
        assert "Traceback" not in said
        wait_until_gone(below)
    finally:
        process.kill()
        process.wait()


def test_a_filter_that_forbids_fixed_addresses_is_named(time_travel_kernel: kernel.Kernel, files: Path) -> None:
    done = call([*readable(time_travel_kernel, files), *without_user_namespaces("--personality")], files, "out")
    assert done.returncode == ExitCode.MACHINE_LACKS
    assert done.stderr.startswith(
        "error: a guest's memory cannot be at the same addresses in every boot (personality: "
    )
    assert "Traceback" not in done.stderr


def test_a_guest_in_real_time_is_refused_without_user_namespaces(
    packaged_machine: guest_machine.GuestMachine, time_travel_kernel: kernel.Kernel, files: Path
) -> None:
    before = [*readable(time_travel_kernel, files), *without_user_namespaces()]
    words = ["run", "topology.yaml", "workload.yaml", "--vm", "--out", "out", "--quiet", "--no-picture"]
    line = [*before, sys.executable, "-P", "-m", "testbed", *words]
    done = subprocess.run(line, cwd=files, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == ExitCode.MACHINE_LACKS
    assert "cannot make the lab's namespaces" in done.stderr
    assert not (files / "out").exists()
