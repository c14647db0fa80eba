"""A lab steadies the machine while it lives: spinners and real-time workers, and nothing of them afterwards."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from in_sandbox import in_sandbox, processes, started
from networks import two_datacenters

from testbed.errors import RunFailed
from testbed.lab.host_settings import Host, HostPriority, real_time, real_time_refused, spinner_refused
from testbed.lab.lab import Lab
from testbed.lab.probes import Spread
from testbed.lab.steadiness import real_time_lacks, shown

pytestmark = pytest.mark.root
GONE_S = 5.0
COMPUTED_S = 0.5


def test_every_processor_has_a_spinner_at_idle_priority() -> None:
    host = Host(HostPriority.on)
    host.steady()
    try:
        if "SCHED_IDLE" in host.refused:
            pytest.skip(f"this machine refuses SCHED_IDLE: {host.refused['SCHED_IDLE']}")
        seen = {(os.sched_getscheduler(s.pid), *os.sched_getaffinity(s.pid)) for s in host.spinners}
        assert seen == {(os.SCHED_IDLE, cpu) for cpu in os.sched_getaffinity(0)}
        said = host.describe()
        assert said["spinners"] == len(os.sched_getaffinity(0))
        pids = [spinner.pid for spinner in host.spinners]
    finally:
        host.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(("idle", "goes_on"), [(True, True), (False, False)])
def test_a_spinner_that_never_gets_its_turn_is_no_reason_to_give_up(
    monkeypatch: pytest.MonkeyPatch, *, idle: bool, goes_on: bool
) -> None:
    """On a busy machine a process at idle priority may not say a word for long; processors do not halt there either."""
    silent = f"import os, time; {idle} and os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); time.sleep(60)"
    monkeypatch.setattr("testbed.lab.host_settings._ANSWER_S", 2.0)
    monkeypatch.setattr(
        "testbed.lab.host_settings._start_spinner",
        lambda _: subprocess.Popen([sys.executable, "-I", "-S", "-c", silent], stdout=subprocess.PIPE),
    )
    host = Host(HostPriority.on)
    try:
        if goes_on:
            host.steady()
            assert len(host.spinners) == len(os.sched_getaffinity(0))
        else:
            with pytest.raises(RunFailed, match="did not come up"):
                host.steady()
    finally:
        host.close()


def test_a_spinner_leaves_its_processor_to_whoever_computes() -> None:
    """Shares of one processor, so other work on the machine takes from both."""
    host = Host(HostPriority.on)
    host.steady()
    cores = os.sched_getaffinity(0)
    try:
        if not host.spinners:
            pytest.skip(f"this machine refuses SCHED_IDLE: {host.refused}")
        os.sched_setaffinity(0, os.sched_getaffinity(host.spinners[0].pid))
        ran = Path(f"/proc/{host.spinners[0].pid}/schedstat")
        spun_ns, computed_s = int(ran.read_text().split()[0]), time.thread_time()
        while (mine_s := time.thread_time() - computed_s) < COMPUTED_S:
            pass
        spun_s = 1e-9 * (int(ran.read_text().split()[0]) - spun_ns)
    finally:
        os.sched_setaffinity(0, cores)
        host.close()
    assert spun_s < 0.2 * mine_s, "a spinner in a session of its own takes as much as who computes"


def test_off_leaves_the_machine_alone() -> None:
    host = Host(HostPriority.off)
    host.steady()
    assert host.describe() == {
        "host_priority": "off",
        "spinners": 0,
        "worker_scheduler": "SCHED_OTHER",
        "refused": {},
    }


def test_real_time_ends_with_its_body_and_is_not_inherited() -> None:
    if (reason := real_time_refused()) is not None:
        pytest.skip(f"this machine refuses SCHED_RR: {reason}")
    before = os.sched_getscheduler(0)
    with real_time(True):
        assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
        pid = os.fork()
        if pid == 0:
            os._exit(os.sched_getscheduler(0))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == before
    with real_time(False):
        assert os.sched_getscheduler(0) == before


def lab_with_spinners(priority: str) -> dict[str, Any]:
    with Lab(two_datacenters(), shaper="relay", host_priority=HostPriority(priority)) as lab:
        return lab.describe()["host"]  # type: ignore[no-any-return]


def test_a_lab_says_what_it_does_to_the_machine() -> None:
    on, off = in_sandbox(lab_with_spinners, "on"), in_sandbox(lab_with_spinners, "off")
    assert on["spinners"] == len(os.sched_getaffinity(0)) or "SCHED_IDLE" in on["refused"]
    assert off["spinners"] == 0


def spin_until_killed() -> int:
    with Lab(two_datacenters(), shaper="relay"):
        print("up", flush=True)
        time.sleep(60)
    return 0


def test_spinners_die_with_a_killed_lab() -> None:
    with started(spin_until_killed) as (process, mark):
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        alive = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes(mark)]
        assert any(b"spinner.py" in command for command in alive)
        process.send_signal(signal.SIGKILL)
        until = time.monotonic() + GONE_S
        while processes(mark) and time.monotonic() < until:
            time.sleep(0.05)
        assert processes(mark) == []


def in_child_without_rights() -> str:
    """What is said to lack in a process that may not have real-time priority."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
            os.setresuid(65534, 65534, 65534)
            os.write(write, str(real_time_lacks()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


def test_what_is_lacking_for_real_time_workers_is_said() -> None:
    assert (real_time_lacks() is None) == (real_time_refused() is None)
    assert "neither CAP_SYS_NICE nor a limit (RLIMIT_RTPRIO) above 0" in in_child_without_rights()


def test_asking_for_spinners_leaves_none_behind() -> None:
    before = set(Path("/proc").glob("[0-9]*"))
    spinner_refused()
    left = [one for one in set(Path("/proc").glob("[0-9]*")) - before if b"spinner.py" in command_line_of(one)]
    assert left == []


def command_line_of(process: Path) -> bytes:
    try:
        line = (process / "cmdline").read_bytes()
        return line if f"\0{os.getpid()}\0".encode() in line else b""  # this test's, not another lab's
    except OSError:
        return b""  # ended meanwhile


def test_whether_processors_halt_follows_from_what_spinners_change() -> None:
    late, prompt = Spread(5e-5, 9e-5, 3e-4, 100), Spread(5e-6, 1e-5, 3e-5, 100)
    assert "processors halt when idle" in shown(late, prompt)
    assert "do not halt" in shown(prompt, prompt)
    assert "do not halt" in shown(late, late)
    assert "not known" in shown(late, None)
