"""The processes that help a run, at its end: whoever started them may close its socket at any moment, without a word
from them on the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from processes import DEADLINE_S

import testbed.lab.shaping
from testbed.train.launcher import WORKER_ENVIRONMENT

RELAY = Path(testbed.lab.shaping.__file__).with_name("relay_process.py")
COUNTERS = json.dumps({"op": "counters"}).encode() + b"\n"

Helper = subprocess.Popen[str]


@contextlib.contextmanager
def helper(*command: str) -> Iterator[tuple[socket.socket, Helper]]:
    """Our end of a socket, and a process that was given the number of the other as its last argument."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(DEADLINE_S)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **WORKER_ENVIRONMENT},
            )
        try:
            yield ours, process
        finally:
            process.kill()
            process.wait()


def ended(process: Helper) -> tuple[int, str]:
    """Its exit status, and what it said to standard error."""
    _, said = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said


def until_it_says_something(ours: socket.socket) -> None:
    assert select.select([ours], [], [], DEADLINE_S)[0], "not a word within a minute"


def nothing_asked(lab: socket.socket, process: Helper) -> None:
    lab.close()


def an_answer_unread(lab: socket.socket, process: Helper) -> None:
    lab.sendall(COUNTERS)
    until_it_says_something(lab)
    lab.close()


def a_request_unanswered(lab: socket.socket, process: Helper) -> None:
    process.send_signal(signal.SIGSTOP)
    lab.sendall(COUNTERS)
    lab.close()
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("left_with", [nothing_asked, an_answer_unread, a_request_unanswered])
def test_the_relay_ends_in_silence(left_with: Callable[[socket.socket, Helper], None]) -> None:
    with helper("-I", "-S", str(RELAY)) as (lab, process):
        lab.sendall(json.dumps({"parent": os.getpid(), "directions": []}).encode() + b"\n")
        assert json.loads(lab.recv(1 << 16))["ready"]
        left_with(lab, process)
        assert ended(process) == (0, "")


def while_torch_is_imported(launcher: socket.socket) -> None:
    launcher.close()


def before_its_first_word_is_read(launcher: socket.socket) -> None:
    until_it_says_something(launcher)
    launcher.close()


def after_its_first_word(launcher: socket.socket) -> None:
    connection = Connection(launcher.detach())
    assert connection.poll(DEADLINE_S)
    connection.recv()
    connection.close()


@pytest.mark.parametrize("left", [while_torch_is_imported, before_its_first_word_is_read, after_its_first_word])
def test_the_fork_server_ends_in_silence(left: Callable[[socket.socket], None]) -> None:
    with helper("-m", "testbed.train.fork_server") as (launcher, process):
        left(launcher)
        assert ended(process) == (0, "")
