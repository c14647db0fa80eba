"""The sandbox: exit codes, interrupts, terminals, and that nothing is left behind however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_sandbox import in_sandbox, processes, started
from networks import two_datacenters
from terminal import Terminal

from testbed.errors import ExitCode

pytestmark = pytest.mark.root

DEADLINE_S = 5.0


# --- what runs in the sandbox -------------------------------------------------------------------


def facts() -> dict[str, object]:
    from testbed.lab.sandbox import in_sandbox as inside

    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    loopback_up = "LOOPBACK,UP" in links
    children = sorted(int(p.name) for p in Path("/proc").glob("[0-9]*"))
    return {"inside": inside(), "pid": os.getpid(), "links": links.count("\n"), "up": loopback_up, "pids": children}


def ended() -> list[int]:
    """How a process at idle priority is scheduled, and how it has ended."""
    from testbed.lab.host_settings import end_processes

    with subprocess.Popen(["sleep", "60"]) as sleeper:
        os.sched_setscheduler(sleeper.pid, os.SCHED_IDLE, os.sched_param(0))
        before = os.sched_getscheduler(sleeper.pid)
        end_processes()
        return [before, sleeper.wait()]


def exit_with(code: int) -> int:
    return code


def raise_error() -> None:
    raise ValueError("deliberate")


def die_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_lab() -> int:
    from testbed.lab.lab import Lab

    with Lab(two_datacenters(nodes=2), shaper="relay") as lab:
        pinging = lab.containers["a/0"].popen(["ping", "-q", lab.address("b/1")], stdout=subprocess.DEVNULL)
        print("ready", flush=True)
        pinging.wait()
    return 0


def wait_for_interrupt() -> int:
    try:
        print("ready", flush=True)  # whoever reads this may interrupt at once
        for _ in range(600):
            time.sleep(0.1)  # short: an interrupt just before it is heard after it
    except KeyboardInterrupt:
        print("interrupted once", flush=True)
        time.sleep(0.6)  # a second interrupt would show now
        return 42
    return 0


def ignore_interrupts() -> int:
    end = time.monotonic() + 60
    said = False
    while time.monotonic() < end:
        try:
            if not said:
                said = True
                print("ready", flush=True)  # whoever reads this may interrupt at once
            time.sleep(0.1)
        except KeyboardInterrupt:
            print("ignored", flush=True)
    return 0


def read_lines() -> int:
    """A little command line, as Mininet's: Ctrl-C gives a new prompt, a line is echoed, end of file ends it."""
    while True:
        try:
            print("prompt", flush=True)
            line = sys.stdin.readline()
            if not line:
                return 7
            print(f"got {line.strip()}", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)


read_lines.interactive = True  # type: ignore[attr-defined]


# --- helpers ------------------------------------------------------------------------------------


def await_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], 30)[0]:
        pytest.fail(f"no {text!r} within 30 s")
    assert process.stdout.readline().strip() == text


def namespaces(pids: list[int]) -> set[str]:
    found = set()
    for pid in pids:
        for kind in ("net", "mnt", "pid"):
            try:
                found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
            except OSError:
                continue
    return found


def all_pids() -> list[int]:
    return [int(p.name) for p in Path("/proc").glob("[0-9]*")]


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def await_gone(mark: str, spaces: set[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if not processes(mark) and not spaces & namespaces(all_pids()):
            return
        time.sleep(0.02)
    pytest.fail(f"still there: processes {processes(mark)}, namespaces {spaces & namespaces(all_pids())}")


# --- tests --------------------------------------------------------------------------------------


def test_it_is_a_world_of_its_own() -> None:
    found = in_sandbox(facts)
    assert found == {"inside": True, "pid": 2, "links": 1, "up": True, "pids": [1, 2]}


def test_what_runs_at_idle_priority_gets_a_turn_to_end() -> None:
    assert in_sandbox(ended) == [os.SCHED_IDLE, -signal.SIGKILL]


@pytest.mark.parametrize("code", [0, 1, 3, 42])
def test_exit_code_is_that_of_main(code: int) -> None:
    with started(exit_with, code) as (process, _):
        assert process.wait(timeout=20) == code


@pytest.mark.parametrize("main", [raise_error, die_by_signal], ids=["exception", "SIGKILL"])
def test_a_main_that_fails_is_a_failed_run(main: object) -> None:
    with started(main, stderr=subprocess.PIPE) as (process, _):  # type: ignore[arg-type]
        _, said = process.communicate(timeout=20)
    assert process.returncode == ExitCode.RUN_FAILED
    assert ("deliberate" if main is raise_error else "SIGKILL") in said


@pytest.mark.alone  # the kernel gives the numbers of namespaces that are gone to those of labs beside it
@pytest.mark.parametrize("victim", ["outer", "init", "main"])
def test_kill_9_leaves_nothing(victim: str) -> None:
    interfaces_before = interfaces()
    mounts_before = Path("/proc/mounts").read_text()
    with started(run_lab, stderr=subprocess.DEVNULL) as (process, mark):
        await_line(process, "ready")
        everything = processes(mark)
        assert len(everything) > 10  # outer, init, main, relay, six containers of two processes, ping
        outer = process.pid
        init = next(pid for pid in everything if parent(pid) == outer)
        main = min(pid for pid in everything if parent(pid) == init)
        spaces = namespaces(everything) - namespaces([os.getpid()])
        assert len(spaces) >= 3 * 7 - 1  # six containers and the sandbox, three kinds each
        os.kill({"outer": outer, "init": init, "main": main}[victim], signal.SIGKILL)
        process.wait(timeout=DEADLINE_S)
        await_gone(mark, spaces)
        if victim != "outer":
            assert process.returncode == ExitCode.RUN_FAILED
    assert interfaces() == interfaces_before
    assert "testbed-lab" not in Path("/proc/mounts").read_text()
    assert Path("/proc/mounts").read_text() == mounts_before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_an_interrupt_reaches_main_once(number: signal.Signals) -> None:
    with started(wait_for_interrupt) as (process, _):
        await_line(process, "ready")
        process.send_signal(number)
        await_line(process, "interrupted once")
        assert process.wait(timeout=DEADLINE_S) == 42


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_an_interrupted_lab_is_gone_within_two_seconds(number: signal.Signals) -> None:
    with started(run_lab, stderr=subprocess.PIPE) as (process, mark):
        await_line(process, "ready")
        spaces = namespaces(processes(mark)) - namespaces([os.getpid()])
        begin = time.monotonic()
        process.send_signal(number)
        assert process.wait(timeout=DEADLINE_S) == ExitCode.RUN_FAILED
        assert time.monotonic() - begin < 2.0
        await_gone(mark, spaces)
        assert process.stderr is not None
        assert "interrupted" in process.stderr.read()
        process.stderr.close()


@pytest.mark.alone
def test_a_main_that_will_not_end_is_killed_within_two_seconds() -> None:
    with started(ignore_interrupts) as (process, mark):
        await_line(process, "ready")
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=DEADLINE_S) == ExitCode.RUN_FAILED
        assert time.monotonic() - begin < 2.3
        await_gone(mark, set())


def test_two_labs_side_by_side() -> None:
    with started(run_lab, stderr=subprocess.DEVNULL) as (one, mark_one):
        await_line(one, "ready")
        with started(run_lab, stderr=subprocess.DEVNULL) as (two, mark_two):
            await_line(two, "ready")
            host = namespaces([os.getpid()])
            assert not (namespaces(processes(mark_one)) & namespaces(processes(mark_two))) - host
            before = len(processes(mark_one))
            two.kill()
            two.wait()
            await_gone(mark_two, set())
            assert len(processes(mark_one)) == before


def test_ctrl_c_on_a_terminal_acts_once() -> None:
    terminal = Terminal(wait_for_interrupt)
    terminal.expect("ready")
    terminal.type(b"\x03")
    terminal.expect("interrupted once")
    assert terminal.exit_code() == 42


def test_a_command_line_in_the_sandbox_keeps_the_terminal() -> None:
    terminal = Terminal(read_lines)
    terminal.expect("prompt")
    time.sleep(0.3)  # until it is reading: Python notices a signal just before a blocking read only after it
    terminal.type(b"\x03")
    terminal.expect("interrupted")
    time.sleep(2.2)  # longer than an interrupted lab may live: this one was not told to end
    terminal.type(b"hello\n")
    terminal.expect("got hello")
    terminal.type(b"\x04")
    assert terminal.exit_code() == 7
