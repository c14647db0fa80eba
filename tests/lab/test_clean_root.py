"""The clean root, with this machine's own /usr in place of a downloaded Debian: what it leaves alone and behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import command_line, wait_until, wait_until_gone

from testbed.errors import MachineLacks
from testbed.vm import kernel

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "scripts/clean_root.sh")
LIMIT_S = 120

# as debootstrap's its last words are suite, root and mirror; mounted read-only: nothing below can be changed by mistake
DEBOOTSTRAP = """#!/bin/sh
set -eu
while [ $# -gt 3 ]; do shift; done
cd "$2"
mkdir -p usr etc/apt/apt.conf.d proc sys dev root tmp run var
mount --bind /usr usr
mount -o remount,bind,ro usr
for name in bin sbin lib lib64; do ln -s usr/$name $name; done
echo "$1 $3" >made-of
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of the script: our debootstrap, and an empty place for its roots."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "roots").mkdir()
    program = tmp_path / "bin/debootstrap"
    program.write_text(DEBOOTSTRAP)
    program.chmod(0o755)
    return os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "roots")}


def clean_root(machine: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [SCRIPT, "--mirror", "http://mirror.example/debian", *words]
    return subprocess.run(command, env=machine, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture
def guest_kernel() -> Path:
    """Of the virtual clock; without a word of it on its command line, its time is the machine's."""
    try:
        return kernel.require().path
    except MachineLacks as lack:
        pytest.skip(str(lack))


def mounts() -> list[str]:
    return [line.split(" - ")[0] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def roots(machine: dict[str, str]) -> list[Path]:
    return list(Path(machine["TMPDIR"]).iterdir())


def find(*words: str) -> int:
    """The process with this command line, 0 without one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and command_line(int(entry.name)).split() == list(words):
            return int(entry.name)
    return 0


@pytest.mark.root
def test_the_command_sees_the_new_root_and_nothing_of_this_machine(machine: dict[str, str], tmp_path: Path) -> None:
    before = mounts()
    script = f"""
        echo "made of $(cat /made-of), in $PWD, first process: $(tr '\\0' ' ' </proc/1/cmdline | cut -c1-10)"
        test -f pyproject.toml && test ! -e {tmp_path} && test ! -e /.before && test -c /dev/null && test -d /proc/self
        touch /usr/wrong 2>/dev/null && exit 1
        touch /here && exit 7"""
    done = clean_root(machine, "trixie", script)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("made of trixie http://mirror.example/debian, in /testbed, first process: /bin/sh -c")
    assert mounts() == before
    assert not roots(machine)
    assert not Path("/here").exists()


@pytest.mark.root
def test_a_shared_directory_is_there_read_only_and_a_checkout_only_if_wanted(
    machine: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/file").write_text("from outside")
    script = f"""
        test "$PWD" = /root && test ! -e /testbed && cat {tmp_path}/shared/file
        touch {tmp_path}/shared/wrong 2>/dev/null && exit 1
        exit 0"""
    done = clean_root(machine, "--share", str(tmp_path / "shared"), "--no-checkout", "trixie", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "from outside"
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["file"]


@pytest.mark.root
def test_orphans_are_reaped_and_end_with_the_command(machine: dict[str, str]) -> None:
    script = """
        sh -c 'sleep 0.1 & echo $! >/tmp/orphan; sleep 4711.25 &'
        sleep 1
        test ! -e /proc/$(cat /tmp/orphan) && pidof sleep >/dev/null"""
    done = clean_root(machine, "trixie", script)
    assert done.returncode == 0, done.stderr
    assert not find("sleep", "4711.25")


@pytest.mark.root
def test_the_limit_ends_everything(machine: dict[str, str]) -> None:
    before = mounts()
    done = clean_root(machine, "--limit", "4", "trixie", "sleep 4712.25")
    assert done.returncode == 124
    assert "longer than --limit, 4 s" in done.stderr
    assert not roots(machine)
    assert not find("sleep", "4712.25")
    assert mounts() == before


@pytest.mark.root
@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGTERM, "4713.25"), (signal.SIGKILL, "4714.25")])
def test_whatever_ends_the_script_ends_all_that_it_started(
    machine: dict[str, str], number: signal.Signals, seconds: str
) -> None:
    before = mounts()
    command = [SCRIPT, "--mirror", "http://mirror.example/debian", "trixie", f"sleep {seconds}; exit 0"]
    with subprocess.Popen(command, env=machine, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            wait_until(lambda: find("sleep", seconds), "the command did not start")
            inside = find("sleep", seconds)
            started.send_signal(number)
            started.wait(LIMIT_S)
        finally:
            started.kill()
    wait_until_gone({inside})
    assert mounts() == before
    if number == signal.SIGTERM:
        assert started.returncode == 130
        assert not roots(machine)


@pytest.mark.root
def test_a_guest_runs_the_command_on_a_kernel_of_its_own_over_the_new_root(
    machine: dict[str, str], guest_kernel: Path
) -> None:
    """Without a network; what needs one ran before, in the new root itself."""
    before = mounts()
    script = """
        cat /made && uname -r && test -f pyproject.toml && test -d /proc/self && test -c /dev/net/tun
        ip route | wc -l
        mount -t tmpfs tmpfs /mnt && echo both >&2 && exit 7"""
    made = "uname -r >/made; echo made in $PWD; mkdir /mnt"
    done = clean_root(machine, "--guest", str(guest_kernel), "--memory", "512", "--before", made, "trixie", script)
    assert done.returncode == 7, done.stderr
    said = done.stdout.split("\n")
    assert said[:2] == ["made in /testbed", os.uname().release]
    assert said[2] != os.uname().release
    assert said[3:] == ["0", "both", ""]
    assert mounts() == before
    assert not roots(machine)


@pytest.mark.root
def test_the_limit_ends_a_guest(machine: dict[str, str], guest_kernel: Path) -> None:
    before = mounts()
    words = ("--guest", str(guest_kernel), "--limit", "5", "trixie", "sleep 4715.25")
    done = clean_root(machine, *words)
    assert done.returncode == 124, done.stderr
    assert not roots(machine)
    assert mounts() == before


@pytest.mark.root
def test_what_is_no_kernel_and_what_fails_before_it_end_the_script(machine: dict[str, str]) -> None:
    nothing = shutil.which("true")
    assert nothing is not None
    done = clean_root(machine, "--guest", nothing, "trixie", "echo here")
    assert done.returncode == 4
    assert "the guest ended before its command did" in done.stderr
    done = clean_root(machine, "--guest", nothing, "--before", "exit 9", "trixie", "echo here")
    assert done.returncode == 9
    assert not done.stdout
    assert not roots(machine)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "SUITE and COMMAND: got 0 words, expected 2 (quote the command)"),
        (("trixie", "make", "demo"), "SUITE and COMMAND: got 3 words, expected 2 (quote the command)"),
        (("../etc", "true"), "SUITE: got '../etc', expected a name like trixie"),
        (("--limit", "1 h", "trixie", "true"), "--limit: got '1 h', expected seconds"),
        (("--limit",), "--limit: a value is missing"),
        (("--share", "/no/such/place", "trixie", "true"), "--share: got '/no/such/place', expected a directory"),
        (
            ("--guest", "/no/kernel", "trixie", "true"),
            "--guest: got '/no/kernel', expected a User-Mode Linux kernel's file",
        ),
        (
            ("--guest", sys.executable, "--memory", "4 GB", "trixie", "true"),
            "--memory: got '4 GB', expected MB, at most 9999",
        ),
        (("--before", "true", "trixie", "true"), "--memory, --before: got no --guest with them"),
        (("--fast", "trixie", "true"), "--fast: no such option"),
    ],
)
def test_a_wrong_call_is_refused(words: tuple[str, ...], said: str) -> None:
    done = subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith(said)
    assert done.stderr.splitlines()[1].startswith("usage: ")


def test_another_python_is_refused_by_set_up(tmp_path: Path) -> None:
    """Before anything is installed."""
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.exit(1)'\n")
    old.chmod(0o755)
    command = ["make", "--no-print-directory", "--old-file=packages", f"VENV={tmp_path}/new", f"PYTHON={old}"]
    done = subprocess.run(
        [*command, f"{tmp_path}/new/.ready"], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode != 0
    assert "is no Python 3.11 to 3.14" in done.stderr
    assert not (tmp_path / "new").exists()
