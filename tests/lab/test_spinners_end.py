"""Spinners end at once beside other load: at idle priority they would wait for a turn to die."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from testbed.lab.host_settings import Host, HostPriority, _start_spinner, _wake

pytestmark = pytest.mark.root


def test_a_spinner_has_an_ordinary_priority_when_it_is_ended() -> None:
    host = Host(HostPriority.on)
    host.steady()
    if not host.spinners:
        host.close()
        pytest.skip(f"no spinners here: {host.refused}")
    try:
        pid = host.spinners[0].pid
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        _wake(pid)
        assert os.sched_getscheduler(pid) == os.SCHED_OTHER
    finally:
        host.close()
    assert not host.spinners


def test_waking_one_that_has_ended_is_no_error() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    _wake(gone.pid)


def test_a_spinner_whose_lab_listens_no_more_ends_without_a_word() -> None:
    """As when Ctrl-C comes while a lab starts its spinners: the pipe is closed, the lab has yet to end."""
    spinner = _start_spinner(min(os.sched_getaffinity(0)), errors=subprocess.PIPE)
    assert spinner.stdout is not None
    assert spinner.stderr is not None
    spinner.stdout.close()
    with spinner.stderr:
        assert spinner.stderr.read() == b""
    assert spinner.wait(timeout=60) == 0
