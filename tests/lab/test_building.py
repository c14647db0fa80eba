"""A lab that cannot be built says why and is gone: no container's shell, device or program is waited for for ever."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from in_sandbox import MARK, in_sandbox, processes
from labs_that_wait import wait_for_ever
from processes import command_line, descendants, wait_until

from testbed.errors import ExitCode

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
DEADLINE_S = 100
SHELL = (sys.executable, "-m", "testbed", "shell", "topologies/two-dc-metro.yaml", "--shaper", "relay")


def built(
    tmp_path: Path, *before: str, programs: dict[str, str] | None = None, path: str | None = None
) -> tuple[int, str]:
    """Exit code and words of a command that builds a lab and leaves it; nothing of it is left, in no namespace.

    `programs` are found before the machine's own; `before` is what starts the command.
    """
    there = tmp_path / "programs"
    there.mkdir()
    for name, script in (programs or {}).items():
        (there / name).write_text(f"#!/bin/sh\n{script}\n")
        (there / name).chmod(0o755)
    mark, temporary = tmp_path.name, tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PATH": path or f"{there}:{os.environ['PATH']}", MARK: mark, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [*before, *SHELL],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    wait_until(lambda: not processes(mark), "a process is left")
    assert not any(temporary.iterdir())
    return done.returncode, done.stderr


def refused(outcome: tuple[int, str], code: ExitCode, reason: str) -> None:
    """One line that holds `reason`, behind those of progress."""
    found, said = outcome
    assert found == code, said
    assert "Traceback" not in said
    assert re.search(reason, said.strip().splitlines()[-1]), said


@pytest.mark.parametrize(
    ("setsid", "reason"),
    [
        ("kill -KILL $$", "container .* cannot be started: "),
        ("echo no terminal >&2; exit 3", "its shell ended with exit code 3: no terminal"),
    ],
)
def test_a_shell_that_dies_is_the_error(tmp_path: Path, setsid: str, reason: str) -> None:
    refused(built(tmp_path, programs={"setsid": setsid}), ExitCode.RUN_FAILED, reason)


def test_a_shell_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "setsid").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "setsid").chmod(0o755)
    monkeypatch.setenv("SILENT", str(tmp_path))
    assert in_sandbox(wait_for_ever).endswith("its shell did not come up within 0.5 s")


def test_shells_come_up_side_by_side(tmp_path: Path) -> None:
    """Each waits until three have been started: one after the other none would come up."""
    started, setsid = tmp_path / "started", shutil.which("setsid")
    started.mkdir()
    three = f'[ "$(ls {started} | wc -l)" -ge 3 ]'
    waits = f'mktemp -q -p {started} >/dev/null; until {three}; do sleep 0.02; done; exec {setsid} "$@"'
    code, said = built(tmp_path, programs={"setsid": waits})
    assert code == 0, said
    assert len(list(started.iterdir())) >= 3


LIMITED = 'echo 4 > /proc/sys/user/max_pid_namespaces && exec "$@"'


def test_no_more_pid_namespaces_is_the_error(tmp_path: Path) -> None:
    """A limit of a user namespace of its own: the lab's namespace and three containers are all that there may be."""
    own = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "sh", "-c", LIMITED, "sh")
    if subprocess.run([*own, "unshare", "--pid", "--net", "--fork", "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    refused(built(tmp_path, *own), ExitCode.RUN_FAILED, "cannot be started: .*No space left on device")


@contextmanager
def limited_processes(most: int, name: str) -> Iterator[str]:
    """The file that a process writes its number to in order to join a cgroup of at most `most`."""
    roots = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")]
    root = next((one for one in roots if (one / "cgroup.procs").exists()), None)
    if root is None:
        pytest.skip("no cgroups here")
    group = root / f"testbed-test-{os.getpid()}-{name}"
    try:
        group.mkdir()
        (group / "pids.max").write_text(str(most))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cgroup for a limit of processes: {error}")
    try:
        yield str(group / "cgroup.procs")
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "a process is left in the cgroup")
        group.rmdir()


@pytest.mark.parametrize("most", [2, 12, 20])
def test_no_more_processes_is_the_error(tmp_path: Path, most: int) -> None:
    with limited_processes(most, tmp_path.name) as group:
        joined = ("sh", "-c", f'echo $$ > {group} && exec "$@"', "sh")
        code, said = built(tmp_path, *joined)
    assert code == ExitCode.RUN_FAILED, said
    assert "Traceback" not in said
    assert "error: " in said


@pytest.mark.parametrize("most", [16, 24])
def test_no_more_open_files_is_the_error(tmp_path: Path, most: int) -> None:
    outcome = built(tmp_path, "prlimit", f"--nofile={most}")
    refused(outcome, ExitCode.RUN_FAILED, rf"Too many open files \(at most {most} at once")


def test_no_ping_is_said_with_what_adds_it(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for program in Path(place).glob("*"):
            if program.name != "ping":
                (tools / program.name).unlink(missing_ok=True)
                (tools / program.name).symlink_to(program)
    refused(built(tmp_path, path=str(tools)), ExitCode.MACHINE_LACKS, "ping is missing; .*apt-get install iputils-ping")


NO_DEVICE = 'mount -t tmpfs tmpfs /dev/net && exec "$@"'
FORBIDDEN = 'mount -t tmpfs -o nodev tmpfs /dev/net && mknod /dev/net/tun c 10 200 && exec "$@"'


@pytest.mark.parametrize("changed", [NO_DEVICE, FORBIDDEN])
def test_no_tap_is_said_with_what_adds_it(tmp_path: Path, changed: str) -> None:
    outcome = built(tmp_path, "unshare", "--mount", "sh", "-c", changed, "sh")
    refused(outcome, ExitCode.MACHINE_LACKS, "/dev/net/tun: .*modprobe tun")


def killed_while(said_line: str, program: str) -> tuple[int, str]:
    """Exit code and words of a calibration, of which the last process of a program is killed once it says a line."""
    command = [sys.executable, "-m", "testbed", "calibrate", "topologies/two-dc-metro.yaml", "--shaper", "relay"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if said_line in line:
                break
        time.sleep(0.3)
        victims = [pid for pid in sorted(descendants(process.pid)) if program in command_line(pid)]
        os.kill(victims[-1], signal.SIGKILL)
        try:
            said += process.communicate(timeout=DEADLINE_S)[1]
        finally:
            process.kill()
    return process.returncode, said


@pytest.mark.parametrize(
    ("program", "blamed"),
    [("relay_process.py", "the relay process.* ended while"), ("unshare", "the router of .* ended while")],
)
def test_what_ends_while_links_are_measured_is_blamed(program: str, blamed: str) -> None:
    refused(killed_while("measuring", program), ExitCode.RUN_FAILED, f"{blamed} links were measured")
