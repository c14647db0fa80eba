"""Runs in guests: as a user starts them, on a small plan. Nothing outlives the command."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
import pytest
from data_format import documented
from processes import command_line, descendants, wait_until, wait_until_gone

from testbed import source
from testbed.lab.loss import likely_losses
from testbed.thresholds import LOSS_CHANCE
from testbed.vm import guest_machine, kernel
from testbed.vm.determinism import fingerprint, nanoseconds

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import same_nanoseconds

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]  # a boot takes minutes on a machine that has much to do

ROOT = Path(__file__).parents[2]
PLAN = ("topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml")
SMALL = ("--set=schedules=[1f1b, crosspipe-greedy]", "--set=microbatches=6", "--iterations=2", "--light", "--json")
DEADLINE_S = 400
BROKEN = """
from testbed.errors import RunFailed
class Broken:
    name, pid = 'broken', None
    def build(self, links): raise RunFailed('no link today')
    def counters(self, *, reset_peaks=False): return []
    def change(self, direction, **values): pass
    def describe(self): return []
    def close(self): pass
"""
"""A shaper."""


def started(
    *words: str, plan: tuple[str, ...] = PLAN, place: same_nanoseconds.Place | None = None
) -> subprocess.Popen[str]:
    """`testbed run` of this checkout, or of a place by its own Python, kernel and environment."""
    return subprocess.Popen(
        [sys.executable if place is None else str(place.python), "-m", "testbed", "run", *plan, *words],
        cwd=ROOT if place is None else place.checkout,
        env=None if place is None else same_nanoseconds.environment(place, user="another", home=place.checkout),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


@contextmanager
def training_guest(out: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A virtual-clock run that trains and would go on for long."""
    process = started("--clock", "virtual", "--out", str(out), "--iterations", "5000", "--schedule", "1f1b", *words)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("training 1f1b"):
                break
        else:
            raise AssertionError(f"it never began to train, exit code {process.wait()}")
        time.sleep(0.5)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def kernels_of(command: subprocess.Popen[str]) -> set[int]:
    """Those processes of a command that are a guest's kernel."""
    return {pid for pid in descendants(command.pid) if "root=/dev/root" in command_line(pid)}


def send(processes: set[int], what: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


@pytest.fixture(scope="module")
def first(
    tmp_path_factory: pytest.TempPathFactory, time_travel_kernel: kernel.Kernel
) -> tuple[tuple[int, str, str], Path, float]:
    """A virtual-clock run, where its results are, and how many seconds it took on this machine, now."""
    out, began = tmp_path_factory.mktemp("first") / "a", time.monotonic()
    done = finished(started("--clock", "virtual", *SMALL, "--out", str(out)))
    assert done[0] == 0, done[2]
    return done, out, time.monotonic() - began


@pytest.fixture(scope="module")
def twins(
    tmp_path_factory: pytest.TempPathFactory, first: tuple[tuple[int, str, str], Path, float]
) -> list[tuple[tuple[int, str, str], Path]]:
    """A virtual-clock run, and the same repeated from its own plan by another checkout, Python and kernel.

    Those have other paths, as has what is written; another environment; and other work beside them.
    """
    directory = tmp_path_factory.mktemp("twins")
    done, out, _ = first
    again = directory / "a-much-longer-name"
    place = same_nanoseconds.installed(directory / same_nanoseconds.PLACES[-1])
    repeated = finished(started("--json", "--out", str(again), plan=(str(out),), place=place))
    return [(done, out), (repeated, again)]


def test_virtual_time_agrees_with_the_model(twins: list[tuple[tuple[int, str, str], Path]]) -> None:
    for (code, out, err), directory in twins:
        assert code == 0, err
        document = json.loads(out)
        assert document == json.loads((directory / "comparison.json").read_text())
        assert document["clock"] == "virtual"
        assert document["shaper"] == "netem"
        assert document["ranking_as_predicted"]
        for row in document["schedules"]:
            assert abs(row["error"]) <= 0.001, row
            assert row["trusted"], row
            for flow in row["messages"]:  # two errors that cancel in the iteration time would be seen here
                assert flow["awaited"] == 0 or abs(flow["arrival_worst_s"]) <= 0.2e-3, flow
                assert flow["awaited"] == 0 or abs(flow["extra_median_s"]) <= 20e-6, flow


def test_the_same_input_gives_the_same_nanoseconds(twins: list[tuple[tuple[int, str, str], Path]]) -> None:
    tables = [nanoseconds(directory) for _, directory in twins]
    assert len(tables[0]) > 100
    assert fingerprint(tables[0]) == fingerprint(tables[1])
    files = [same_nanoseconds.fingerprint(directory) for _, directory in twins]
    assert files[0] == files[1], "not byte for byte"


def test_a_finished_run_is_repeated_from_its_own_plan_in_another_checkout(
    twins: list[tuple[tuple[int, str, str], Path]],
) -> None:
    """plan.json says all that the run was told: schedules, clock, seed and iterations among it."""
    (_, first), (_, again) = twins
    manifest = json.loads((again / "manifest.json").read_text())
    assert manifest["git"]["commit"] is None, "it did not run from the copy"
    assert manifest["source"] == source.identity()["source"]
    assert (again / "plan.json").read_bytes() == (first / "plan.json").read_bytes()
    for name in ("actions.parquet", "messages.parquet"):
        before, after = (pd.read_parquet(directory / name) for directory in (first, again))
        assert len(before) > 100
        pd.testing.assert_frame_equal(after, before, check_exact=True)


def test_determinism_is_told_where_nothing_is_kept(time_travel_kernel: kernel.Kernel) -> None:
    """Its scratch directory was refused, for a file of its keeper's in it."""
    words = ("--schedule", "1f1b", "--iterations", "1", "--boots", "1", "--set", "warmup=1", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "test-determinism", *PLAN, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["identical"]


def test_deadlines_are_said_with_what_they_were_derived_from(
    twins: list[tuple[tuple[int, str, str], Path]],
) -> None:
    (_, _, err), _ = twins[0]
    lines = err.splitlines()
    assert sum("all have to connect within" in line for line in lines) == 1, err
    said = [line for line in lines if "each iteration has to end within" in line]
    assert len(said) == 2, err
    assert all("x the predicted" in line and len(line) <= 80 for line in said)


def test_the_manifest_says_what_made_time_pass(
    twins: list[tuple[tuple[int, str, str], Path]], time_travel_kernel: kernel.Kernel
) -> None:
    manifest = json.loads((twins[0][1] / "manifest.json").read_text())
    assert manifest["clock"] == "virtual"
    assert manifest["vm"] == guest_machine.time_travel(time_travel_kernel, 1).identity()["vm"]
    assert manifest["kernel"].endswith("-tt")
    assert manifest["source"] == source.identity()["source"]
    assert manifest["git"]["commit"] == source.identity()["git"]["commit"]
    assert str(twins[0][1]) in manifest["command"]
    assert set(manifest) == documented("manifest.json") - {"kept_guest"}
    of_changes = {"link_events", "adaptation", "goodput", "ended"}
    assert set(json.loads((twins[0][1] / "comparison.json").read_text())) == documented("comparison.json") - of_changes
    assert all(link["ok"] for link in json.loads((twins[0][1] / "links.json").read_text())["links"])


def test_the_fallback_kernel_runs_the_same_command(
    fallback_kernel: kernel.Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernel.SERIES_VARIABLE, fallback_kernel.series)
    code, out, err = finished(started("--clock", "virtual", *SMALL, "--schedule", "1f1b", "--out", str(tmp_path)))
    assert code == 0, err
    document = json.loads(out)
    assert document["vm"]["kernel"]["series"] == fallback_kernel.series == "6.12"
    assert document["vm"]["seccomp"] is False
    (row,) = document["schedules"]
    assert abs(row["error"]) <= 0.001, row
    assert row["trusted"], row


def test_nothing_interrupted_the_virtual_clock(time_travel_kernel: kernel.Kernel) -> None:
    """In a process of its own, since a guest is booted by a single-threaded one."""
    code = (
        "import sys, pathlib; from testbed.vm import boot, guest_machine, guest_work, kernel\n"
        "from testbed.planning import file, resolve; from testbed.spec import load_topology\n"
        "plan = resolve.measurement_of(load_topology(pathlib.Path(sys.argv[1])))\n"
        "work = [guest_work.Assignment('calibrate', file.to_json(plan))] * 2\n"
        "done = boot.run_assignments(guest_machine.time_travel(kernel.require(), 1), work, training=False)\n"
        "assert [one.code for one in done.ended] == [0, 0], done\n"
        "print(done.interrupts)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, PLAN[0]], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = {words[-1]: int(words[1]) for words in map(str.split, done.stdout.splitlines()) if "SIG" in "".join(words)}
    assert any(counts.values()), "this table does not count"
    # Linux 7.2 does not show how often its timer came; SIGCHLD, under seccomp, is a process of the guest that ended
    assert not any(count for name, count in counts.items() if name not in ("timer", "SIGCHLD")), done.stdout
    assert "console" in counts


def test_the_packaged_kernel_runs_the_same_command(
    packaged_machine: guest_machine.GuestMachine, tmp_path: Path
) -> None:
    slow = "--set=topology.links=[{between: [paris, warsaw], fibre: 2000 km, rate: 100 Mbit/s}]"
    words = (
        *("--vm", "--schedule", "1f1b", "--set=microbatches=2", "--set=message=100 kB", "--iterations=1", "--json"),
        *("--set=warmup=1", "--set=model={kind: linear, layers: 4, d_model: 8, sequence: 8}", "--no-picture"),
    )
    code, out, err = finished(started(*words, slow, "--out", str(tmp_path / "out")))
    assert "training 1f1b" in err or "the links are not as asked" in err, err  # live output, from inside
    if code == 4 and "the links are not as asked (netem" in err:
        pytest.skip(f"this host is too busy for a guest in real time: {err.splitlines()[-1]}")
    assert code in (0, 5), err  # 5: too busy to be trusted, but it ran
    document = json.loads(out)
    assert (document["clock"], document["shaper"]) == ("real", "netem")
    assert (tmp_path / "out/actions.parquet").is_file()


@pytest.mark.alone
def test_links_in_real_time(packaged_machine: guest_machine.GuestMachine, tmp_path: Path) -> None:
    """Two pairs of datacenters: a long link, and one with a queue and losses.

    That kernel's receivers start with 64 KB whatever the route says: two round trips are not enough to fill 3 MB.
    Of losses nothing hangs on the time that a busy host takes: how many packets are lost, and that none is dropped.
    """
    (tmp_path / "links.yaml").write_text(
        "name: links\ndatacenters: {a: {nodes: 1}, b: {nodes: 1}, c: {nodes: 1}, d: {nodes: 1}}\n"
        "links:\n"
        "  - {between: [a, b], delay: 50 ms, rate: 300 Mbit/s}\n"
        "  - {between: [c, d], delay: 5 ms, rate: 50 Mbit/s, queue: 1 MB, forward: {loss: 0.2}}\n"
    )
    command = [sys.executable, "-m", "testbed", "calibrate", str(tmp_path / "links.yaml"), "--vm", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in (0, 5), done.stderr
    *long, lossy, _ = json.loads(done.stdout)["links"]
    assert len(long) == 2
    for link in long:
        assert link["measured"]["rate_bps"] > 0.9 * link["asked"]["rate_bps"], link
    sent, lost = lossy["measured"]["losses"]["sent"], lossy["measured"]["losses"]["lost"]
    fewest, most = likely_losses(sent, 0.2, LOSS_CHANCE)
    assert fewest <= lost <= most, lossy
    assert lossy["measured"]["dropped"] == 0, lossy


def test_kill_9_of_the_command_leaves_nothing(time_travel_kernel: kernel.Kernel, tmp_path: Path) -> None:
    mounts = Path("/proc/mounts").read_text()
    with training_guest(tmp_path / "out") as command:
        processes = descendants(command.pid)
        # the kernel, and a process of the host for every process of the guest
        kernels = kernels_of(command)
        assert kernels
        assert len(processes) > 10
        assert len(set().union(*map(os.sched_getaffinity, kernels))) == 1, "a guest takes turns on one CPU"
        command.kill()
        command.wait(timeout=DEADLINE_S)
        wait_until_gone(processes)
    assert Path("/proc/mounts").read_text() == mounts


def test_an_interrupted_guest_ends_at_once(time_travel_kernel: kernel.Kernel, tmp_path: Path) -> None:
    with training_guest(tmp_path / "out") as command:
        require_end_at_once(command, signal.SIGINT)
    assert (tmp_path / "out/manifest.json").is_file()
    assert not list((tmp_path / "out").rglob(".*.partial*")), "a file that was being written is left"


def test_a_quiet_run_that_fails_says_why_and_when_repeated_ends_at_once_while_it_boots(
    time_travel_kernel: kernel.Kernel, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    words = ("--clock", "virtual", "--schedule", "1f1b", "--out", str(tmp_path / "out"))
    code, _, err = finished(started(*words, "--shaper", f"{tmp_path}/broken.py:Broken", "--quiet"))
    assert code == 4, err
    assert "no link today" in err
    command = started(*words)
    try:
        assert command.stderr is not None
        assert any(line.startswith("booting") for line in command.stderr), "it cannot be repeated"
        wait_until(lambda: len(descendants(command.pid)) > 1, "no kernel was started")
        require_end_at_once(command, signal.SIGTERM)
    finally:
        command.kill()
        command.communicate(timeout=DEADLINE_S)


def require_end_at_once(command: subprocess.Popen[str], sent: signal.Signals) -> None:
    processes = descendants(command.pid)
    began = time.monotonic()
    command.send_signal(sent)
    _, said = command.communicate(timeout=DEADLINE_S)
    assert time.monotonic() - began < 15  # promised are two seconds, on a quiet machine
    assert command.returncode == 4, said
    assert "interrupted" in said
    wait_until_gone(processes)


def test_the_wall_clock_limit_says_where_the_guest_was(
    first: tuple[tuple[int, str, str], Path, float], tmp_path: Path
) -> None:
    _, _, whole_run_s = first
    limit_s, began = math.ceil(2 * whole_run_s), time.monotonic()
    with training_guest(tmp_path / "out", "--wall-limit", str(limit_s)) as command:
        kernels = kernels_of(command)
        assert kernels
        send(kernels, signal.SIGSTOP)  # until shortly before the limit: meanwhile others can use the processor
        time.sleep(max(0.0, began + limit_s - 5 - time.monotonic()))
        send(kernels, signal.SIGCONT)
        code, _, err = finished(command)
    assert code == 4, err
    assert f"did not finish within {limit_s} s of wall-clock time" in err
    assert "its own clock was at" in err
    for rank in range(4):
        assert f"rank {rank} it " in err
    assert (tmp_path / "out/manifest.json").is_file()
