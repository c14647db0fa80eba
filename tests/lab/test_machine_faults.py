"""What the machine may do to a run (docs/faults.md): a full disk, no memory, a stopped worker, many labs at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
import pytest
from processes import command_line, descendants, wait_until, wait_until_gone

from testbed.errors import ExitCode

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 240

TOPOLOGY = """
name: pair
datacenters: {east: {nodes: 1}, west: {nodes: 1}}
links: [{between: [east, west], delay: 3 ms, rate: 200 Mbit/s}]
"""
WORKLOAD = """
name: two
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2}
microbatches: 2
microbatch_size: 1
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
message: 10 kB
iterations: 3
warmup: 1
schedules: [1f1b]
"""


def command(here: Path, *words: str, before: Sequence[str] = ()) -> list[str]:
    (here / "pair.yaml").write_text(TOPOLOGY)
    (here / "two.yaml").write_text(WORKLOAD)
    run = [sys.executable, "-P", "-m", "testbed", "run", "pair.yaml", "two.yaml", "--no-picture"]
    return [*before, *run, *words]


def ended(here: Path, *words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """A run, when it has ended, with nothing left of it among the machine's temporary files."""
    temporary = here / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        command(here, *words, before=before),
        cwd=here,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    wait_until(lambda: not any(temporary.iterdir()), "a temporary file is left")
    return done


def on_a_disk(directory: str, options: str) -> list[str]:
    """The beginning of a command line: a small disk of its own is mounted there."""
    return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {options} none {directory} && exec "$@"', "sh"]


@pytest.mark.parametrize(("room", "written"), [("16k", "plan.json|manifest.json|links.json"), ("60k", "[a-z.]+")])
def test_a_full_disk_is_the_error_and_says_which_file(tmp_path: Path, room: str, written: str) -> None:
    (tmp_path / "disk").mkdir()
    done = ended(tmp_path, "--out", "disk/out", before=on_a_disk("disk", f"size={room}"))
    assert done.returncode == ExitCode.RUN_FAILED, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "cannot be written: " in said
    assert "No space left on device" in said


def test_a_disk_that_is_read_only_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    done = ended(tmp_path, "--out", "disk/out", before=on_a_disk("disk", "ro"))
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr.splitlines() == [
        "error: --out: directory: got 'disk/out', expected a place to write (Read-only file system)"
    ]


@contextmanager
def training(here: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A run that trains, and will for long."""
    process = subprocess.Popen(
        command(here, "--out", "out", "--iterations", "400", *words),
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("training 1f1b"):
                break
        time.sleep(1.0)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Their processes, by rank."""
    servers = [pid for pid in sorted(descendants(process.pid)) if "testbed.train.fork_server" in command_line(pid)]
    found = [pid for pid in servers if not descendants(pid)]
    assert len(found) == 2, found
    return found


def test_a_worker_that_is_stopped_for_two_seconds_goes_on_and_at_most_one_iteration_is_late(tmp_path: Path) -> None:
    with training(tmp_path, "--iterations", "40") as run:
        victim = workers(run)[1]
        os.kill(victim, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(victim, signal.SIGCONT)
        _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode in (ExitCode.OK, ExitCode.UNTRUSTED), said
    times_s = pd.read_parquet(tmp_path / "out/iterations.parquet")["makespan_s"]
    assert (times_s > 1.5).sum() <= 1  # none where it stood between two of them
    assert times_s.median() < 0.5


def test_a_worker_that_is_stopped_for_ever_ends_the_run_at_its_deadline_and_is_named(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        pids, victim = descendants(run.pid), workers(run)[1]
        os.kill(victim, signal.SIGSTOP)
        _, said = run.communicate(timeout=LIMIT_S)
        assert run.returncode == ExitCode.RUN_FAILED, said
        wait_until_gone(pids)  # the stopped one too
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "1f1b within 11" in error
    assert error.endswith("; rank 1 was stopped by SIGSTOP")


@contextmanager
def limited_memory(most: int) -> Iterator[str]:
    """The file that a process writes its number to in order to join a cgroup with so many bytes of memory."""
    own = cgroup_of("memory")
    if own is None:
        pytest.skip("no cgroups for memory here")
    group = own.path / f"testbed-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / own.limit).write_text(str(most))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cgroup for a limit of memory: {error}")
    try:
        yield str(group / "cgroup.procs")
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "a process is left in the cgroup")
        group.rmdir()


def test_eight_labs_at_once_know_nothing_of_each_other(tmp_path: Path) -> None:
    """All train at the same time, with one address plan and the same names; all losses are as one process's."""
    with ExitStack() as stack:
        runs = []
        for number in range(8):
            here = tmp_path / str(number)
            here.mkdir()
            words = command(here, "--out", "out", "--quiet", "--host-priority", "off", "--iterations", "2")
            runs.append(stack.enter_context(subprocess.Popen(words, cwd=here, stderr=subprocess.PIPE, text=True)))
        for run in runs:
            stack.callback(run.kill)
        said = [run.communicate(timeout=LIMIT_S)[1] for run in runs]
    assert [run.returncode for run in runs if run.returncode not in (ExitCode.OK, ExitCode.UNTRUSTED)] == [], said
    for number in range(8):
        assert (tmp_path / str(number) / "out/comparison.json").is_file()
