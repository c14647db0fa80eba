"""A steadier machine for as long as a lab lives: processors that do not halt, and workers that do not queue.

A virtual processor that has nothing to do halts, and wakes late: on an idle virtual machine packets and ends of sleeps
come up to a millisecond after their time. One process per processor that spins at idle priority (SCHED_IDLE: it runs
only when nothing else wants to) keeps it awake. And a worker that is due must not wait for whatever else the machine
does: it runs under SCHED_RR where that is allowed (docs/figures.md says what both are worth).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import RunFailed

COMPUTING_PRIORITY = 1
"""The least of the real-time priorities: above everything ordinary, below messages."""

MESSAGE_PRIORITY = 2
"""Of gloo's threads and of a rank that does not compute: a message that has come must not wait until another rank on
the same processor has computed, since accelerators do not share one. Below the relay's."""

_WORKER_SCHEDULER = f"SCHED_RR {MESSAGE_PRIORITY}, {COMPUTING_PRIORITY} while computing"

_ANSWER_S = 60.0
_BUSY_S = 2.0
"""After which a spinner that runs at idle priority has no turn to answer: the processor is busy without it."""


class HostPriority(StrEnum):
    """Whether a lab may steady the machine that it runs on."""

    on = "on"
    """As far as the machine allows it."""
    off = "off"


def real_time_refused() -> str | None:
    """Why this process may not run under SCHED_RR (a cgroup or a missing right forbids it); None when it may."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(MESSAGE_PRIORITY))
        os.sched_setscheduler(0, policy, parameters)
    except OSError as error:
        return error.strerror or str(error)
    return None


def spinner_refused() -> str | None:
    """Why this machine lets nothing spin at idle priority, by trying it; None when it does. Raises RunFailed."""
    host = Host(HostPriority.on)
    try:
        host.spinners.append(_start_spinner(min(os.sched_getaffinity(0))))
        return _answer(host.spinners[0]) or None
    finally:
        host.close()


def become_real_time(priority: int = MESSAGE_PRIORITY) -> None:
    """Run the calling thread, and every thread that it starts from now on, under SCHED_RR. Raises OSError."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))


class Computing:
    """A context manager: the calling thread, which is under SCHED_RR, gives way to messages in its body."""

    def __enter__(self) -> None:
        become_real_time(COMPUTING_PRIORITY)

    def __exit__(self, *_: object) -> None:
        become_real_time(MESSAGE_PRIORITY)


class Messaging:
    """A context manager: the calling thread, which is under SCHED_RR, has the priority of messages in its body.

    Gloo's own thread has it always, and tries again and again while another thread holds a connection: one of less
    priority would never let go of it.
    """

    def __init__(self) -> None:
        self._before = MESSAGE_PRIORITY

    def __enter__(self) -> None:
        self._before = os.sched_getparam(0).sched_priority
        become_real_time(MESSAGE_PRIORITY)

    def __exit__(self, *_: object) -> None:
        become_real_time(self._before)


class Priorities(NamedTuple):
    """What a rank does at which priority."""

    computing: AbstractContextManager[None]
    messaging: AbstractContextManager[None]
    """For messages in the middle of computing."""


def priorities(*, real_time: bool) -> Priorities:
    """Of a rank under SCHED_RR, or of one that is like any other process."""
    return Priorities(Computing(), Messaging()) if real_time else Priorities(nullcontext(), nullcontext())


@contextmanager
def real_time(wanted: bool) -> Iterator[None]:
    """Run the body under SCHED_RR if `wanted`, but nothing that it starts.

    Whoever tells real-time workers when to begin must not wait for a processor behind ordinary work.
    """
    if not wanted:
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(MESSAGE_PRIORITY))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


class Host:
    """The spinners of one lab. `close` ends them; so does the end of the process that made them, however it ends."""

    def __init__(self, wanted: HostPriority) -> None:
        self.wanted = wanted
        self.spinners: list[subprocess.Popen[bytes]] = []
        self.refused: dict[str, str] = {}
        """What the machine does not allow, with its reason."""
        self.real_time = False
        """Whether workers may run under SCHED_RR."""

    def steady(self) -> None:
        """Start what is wanted and allowed. Raises RunFailed when a spinner does not come up in time."""
        if self.wanted is HostPriority.off:
            return
        if (reason := real_time_refused()) is None:
            self.real_time = True
        else:
            self.refused["SCHED_RR"] = reason
        try:
            for cpu in sorted(os.sched_getaffinity(0)):
                self.spinners.append(_start_spinner(cpu))
            for spinner in self.spinners:
                if said := _answer(spinner):
                    self.refused["SCHED_IDLE"] = said
        except BaseException:
            self.close()
            raise
        if "SCHED_IDLE" in self.refused:  # one that spins at an ordinary priority would only be in the way
            self.close()

    def describe(self) -> dict[str, Any]:
        """What is in force, for the manifest."""
        return {
            "host_priority": self.wanted.value,
            "spinners": len(self.spinners),
            "worker_scheduler": _WORKER_SCHEDULER if self.real_time else "SCHED_OTHER",
            "refused": self.refused,
        }

    def close(self) -> None:
        """End the spinners."""
        for spinner in self.spinners:
            _wake(spinner.pid)
            spinner.kill()
        for spinner in self.spinners:
            spinner.wait()
            assert spinner.stdout is not None
            spinner.stdout.close()
        self.spinners = []


def _wake(spinner: int) -> None:
    """Give a spinner back an ordinary priority: at idle priority it would get no turn to die beside other load."""
    with suppress(OSError):  # it has ended, or this kernel weighs no sessions
        os.sched_setscheduler(spinner, os.SCHED_OTHER, os.sched_param(0))
        Path(f"/proc/{spinner}/autogroup").write_text("0")


def end_processes() -> None:
    """End all others of this PID namespace, and have each go before other work while it does, where that is allowed.

    To end takes a process its turn, and on a busy machine 30 of them together take seconds to get theirs; those at idle
    priority would even wait until it has nothing else to do.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            pid = int(entry.name)
            with suppress(OSError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)  # first: one that spins would take the processor for itself
                if os.sched_getscheduler(pid) == os.SCHED_IDLE:
                    _wake(pid)
                os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(COMPUTING_PRIORITY))


def _start_spinner(cpu: int, errors: int | None = None) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("spinner.py")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(program), str(cpu), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )


def _answer(spinner: subprocess.Popen[bytes]) -> str:
    """ "" from a spinner that spins, else why it may not."""
    assert spinner.stdout is not None
    deadline = time.monotonic() + _ANSWER_S
    while not select.select([spinner.stdout], [], [], _BUSY_S)[0]:
        if os.sched_getscheduler(spinner.pid) == os.SCHED_IDLE:
            return ""  # the processor has not been idle since, so that nothing had to keep it from halting
        if time.monotonic() > deadline:
            raise RunFailed(f"a spinner did not come up within {_ANSWER_S:g} s; --host-priority off leaves them out")
    return spinner.stdout.readline().decode().strip().removeprefix("spinning")
