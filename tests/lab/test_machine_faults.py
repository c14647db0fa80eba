"""What the machine may do to a run (docs/faults.md): a full disk, no memory, a stopped worker, many labs at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
import pytest
from processes import command_line, descendants, wait_until, wait_until_gone
from smallest_pair import TOPOLOGY as PAIR
from smallest_pair import WORKLOAD

from testbed.errors import ExitCode
from testbed.lab import cgroups
from testbed.lab.cgroups import NodeGroup, NodeLimits, place_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 240

TOPOLOGY = PAIR.replace("1 Gbit/s", "50 Mbit/s")


def command(here: Path, *words: str, before: Sequence[str] = ()) -> list[str]:
    (here / "pair.yaml").write_text(TOPOLOGY)
    (here / "two.yaml").write_text(WORKLOAD)
    run = [sys.executable, "-P", "-m", "testbed", "run", "pair.yaml", "two.yaml", "--no-picture", "--again=0"]
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


HUNGRY = f"""
name: hungry
model: {{kind: "{Path(__file__).with_name("hungry_model.py")}:Hungry", layers: 4}}
parallelism: {{pipeline: 2}}
microbatches: 16
microbatch_size: 1
pacing: {{F: 60 ms, I: 60 ms, W: 60 ms}}
message: 100 kB
memory: 16
iterations: 1
warmup: 1
schedules: [gpipe, 1f1b]
"""
"""GPipe has 16 microbatches in flight, which hold 512 MiB on each rank; 1F1B has two at most, 64 MiB.

Beside that a worker has 120 MiB, and up to 260 MiB that its allocator keeps: 440 MiB were seen with 1F1B."""


def groups() -> set[Path]:
    """The control groups of the machine's labs."""
    return set(Path("/sys/fs/cgroup").glob("**/testbed-*"))


@pytest.fixture
def new_groups() -> Callable[[], set[Path]]:
    """Those that were not there when the test began: other labs may have some."""
    if (why := cgroups.lacks(["memory", "cpu"])) is not None:
        pytest.skip(why)
    others = groups()
    return lambda: groups() - others


def test_a_schedule_that_needs_more_memory_than_a_node_has_ends_and_the_next_one_is_trained(
    tmp_path: Path, new_groups: Callable[[], set[Path]]
) -> None:
    words = command(tmp_path, "--out", "out")
    (tmp_path / "pair.yaml").write_text(TOPOLOGY.replace("east: {nodes: 1}", "east: {nodes: 1, memory: 560 MiB}"))
    (tmp_path / "two.yaml").write_text(HUNGRY.replace("60 ms", "40 ms"))
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode in (ExitCode.OK, ExitCode.UNTRUSTED), done.stderr
    why = "east/0 needs more than its 560 MiB of memory"
    assert f"gpipe ended: {why}" in done.stderr
    document = json.loads((tmp_path / "out/comparison.json").read_text())
    assert document["ended"] == {"gpipe": why}
    assert [row["label"] for row in document["schedules"]] == ["1f1b"]
    assert not document["complete"]
    assert f"1 of 2 schedules finished, not gpipe ({why})" in " ".join(done.stdout.split())
    wait_until(lambda: not new_groups(), "a control group is left")


@pytest.mark.usefixtures("new_groups")
def test_with_strict_such_a_schedule_ends_the_run(tmp_path: Path) -> None:
    words = command(tmp_path, "--out", "out", "--strict")
    (tmp_path / "pair.yaml").write_text(TOPOLOGY.replace("east: {nodes: 1}", "east: {nodes: 1, memory: 300 MiB}"))
    (tmp_path / "two.yaml").write_text(HUNGRY)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == ExitCode.RUN_FAILED, done.stderr
    assert "error: east/0 needs more than its 300 MiB of memory: rank 0 was killed by signal 9" in done.stderr
    assert "training 1f1b" not in done.stderr


def test_of_several_jobs_the_node_whose_memory_ends_is_named_beside_the_rank(
    tmp_path: Path, new_groups: Callable[[], set[Path]]
) -> None:
    words = command(tmp_path, "hungry.yaml", "--out", "out", "--iterations", "1")
    (tmp_path / "pair.yaml").write_text(
        TOPOLOGY.replace("nodes: 1}, west: {nodes: 1}", "nodes: 2, memory: 300 MiB}, west: {nodes: 2}")
    )
    (tmp_path / "hungry.yaml").write_text(HUNGRY)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == ExitCode.RUN_FAILED, done.stderr
    why = "error: east/1 needs more than its 300 MiB of memory: rank 2 of hungry was killed by signal 9; it did not "
    assert any(line.startswith(why) for line in done.stderr.splitlines()), done.stderr
    wait_until(lambda: not new_groups(), "a control group is left")


def test_groups_of_a_command_that_was_killed_go_with_it(tmp_path: Path, new_groups: Callable[[], set[Path]]) -> None:
    command(tmp_path)
    with training(tmp_path, "--set", "topology.datacenters.west.cpus=0.5") as run:
        assert len(new_groups()) == 1
        (group,) = new_groups()
        limit = {"cpu.cfs_quota_us": "50000", "cpu.max": "50000 100000"}
        assert any(
            (group / name).read_text().strip() == value for name, value in limit.items() if (group / name).exists()
        )
        assert len((group / "cgroup.procs").read_text().split()) == 1
        run.kill()
        run.wait(timeout=LIMIT_S)
        wait_until(lambda: not new_groups(), "a control group is left")


@contextmanager
def limited_memory(most: int) -> Iterator[str]:
    """The file that a process writes its number to in order to join a control group with so many bytes of memory."""
    limits = NodeLimits(most, None)
    places = {"memory": place_of("memory", *(Path(f"/proc/self/{name}").read_text() for name in ("mounts", "cgroup")))}
    assert places["memory"] is not None
    group = NodeGroup(f"test-{os.getpid()}", limits, {"memory": places["memory"]})
    try:
        yield group.joined_by[0]
    finally:
        group.remove()


@pytest.mark.usefixtures("new_groups")
def test_where_memory_ends_a_worker_ends_first_and_is_named(tmp_path: Path) -> None:
    """All of the command is in a group with too little: neither it nor what carries the links is who has to go."""
    with limited_memory(1_100 * 2**20) as group:
        words = command(tmp_path, "--out", "out", before=["sh", "-c", f'echo 0 > {group} && exec "$@"', "sh"])
        (tmp_path / "two.yaml").write_text(HUNGRY)
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == ExitCode.RUN_FAILED, done.stderr
    assert re.search(r"^error: rank [01] was killed by signal 9; it did not ", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


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
