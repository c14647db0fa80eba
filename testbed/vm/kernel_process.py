"""The process that a guest's kernel is: how it is started, and what is heard of it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from testbed.errors import MachineLacks, in_words
from testbed.lab import namespaces as ns
from testbed.train.launcher import WORKER_ENVIRONMENT
from testbed.vm import guest_request as request
from testbed.vm.guest_files import SOURCE
from testbed.vm.guest_machine import GuestMachine
from testbed.vm.idle import idlest_cpu
from testbed.vm.kernel_changes import COPIES_VARIABLE, SEED_VARIABLE

TIME_TRAVEL_START_NS = 1_731_801_600 * 10**9
"""Every virtual clock begins here (2024-11-17): the date is input, and the same input gives the same nanoseconds."""

_REAL_TIME_NICENESS = -15
"""A guest in real time has one CPU for everything: whatever else this machine does must wait for it."""

_END_POLL_S = 0.01

_DISTUTILS = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}
"""Mininet imports distutils, for which setuptools would put its own, and import all of itself; from 3.12 on it must."""

KERNEL_LOG = "kernel.log"
"""What the kernel says, in the directory of the boot's own."""


@dataclass(frozen=True)
class KernelPlace:
    """Where a guest's kernel runs, and what it begins with."""

    private: Path
    """Of the boot alone: the guest's memory, the job and the results."""
    root: Path
    kernel: Path
    program: str
    """Process 1 ..."""
    words: tuple[str, ...]
    """... its arguments ..."""
    environment: dict[str, str]
    """... and what it is told beside what every guest is."""
    in_sandbox: bool = False
    """Whether nothing but the guest sees these paths."""


@dataclass(frozen=True)
class Heard:
    """A report of the guest, and when the host heard it (seconds since the kernel was started)."""

    wall_s: float
    report: request.GuestProgress


class RunningGuest(Protocol):
    """A guest that was begun with: booted, or copied."""

    def poll(self) -> int | None:
        """None while it runs."""

    def end(self) -> None:
        """It has ended when this returns."""

    def used(self) -> tuple[int, float]:
        """The most of the host's memory that it had, in kB, and seconds of the host's processors; of an ended one."""

    def why(self) -> str:
        """What is known of why it ended, to be put behind other words."""


class BootedGuest:
    """The same as a child of this process, which has no others."""

    def __init__(self, kernel: subprocess.Popen[bytes], private: Path) -> None:
        self.kernel, self._private = kernel, private

    def poll(self) -> int | None:
        """None while it runs."""
        return self.kernel.poll()

    def end(self) -> None:
        """It has ended when this returns."""
        self.kernel.kill()  # its guest's processes end with the sandbox, right after this
        self.kernel.wait()

    def used(self) -> tuple[int, float]:
        """As of any guest; the same for what else this process has begun."""
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_maxrss, spent.ru_utime + spent.ru_stime

    def why(self) -> str:
        """What is known of why it ended."""
        return memory_is_full(self._private) + kernel_output(self._private)


def python_environment() -> dict[str, str]:
    """What Python must know from its first instruction on: process 1 gets it from the kernel's command line."""
    return {
        **WORKER_ENVIRONMENT,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": SOURCE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        **_DISTUTILS,
    }


def start(machine: GuestMachine, place: KernelPlace, memory_mb: int, copies: int | None = None) -> BootedGuest:
    """Boot a kernel over the files of a place; it ends with this process. Raises MachineLacks.

    `copies` is a socket on which it is asked for copies of it (patches/7.2/copies.patch).
    """
    private = place.private
    environment = {**python_environment(), "TESTBED_JOB": str(private / "job"), "TESTBED_OUT": str(private / "out")}
    environment |= place.environment
    virtual = ["time-travel=inf-cpu", f"time-travel-start={TIME_TRAVEL_START_NS}"] if machine.virtual else []
    command = [
        str(place.kernel),
        *("root=/dev/root", "rootfstype=hostfs", f"rootflags={place.root}", "ro", f"mem={memory_mb}M", "con=null"),
        *("con0=null", "quiet", "norandmaps", f"uml_dir={private / 'uml'}/", "panic=-1", f"init={place.program}"),
        *virtual,
        *(("seccomp=on",) if machine.seccomp else ()),  # kernels that cannot do it do not know the word
        *(f"{name}={value}" for name, value in environment.items()),
        *("--", *place.words),
    ]
    try:
        ns.no_address_randomisation()
    except OSError as error:
        raise MachineLacks(
            f"a guest's memory cannot be at the same addresses in every boot ({in_words(error)}): in a container use "
            "--security-opt seccomp=unconfined"
        ) from error
    own = {"TMPDIR": str(private / "memory"), "PATH": "/usr/bin:/bin", "HOME": "/"}
    if machine.seed is not None:
        own[SEED_VARIABLE] = str(machine.seed)
    if copies is not None:
        own[COPIES_VARIABLE] = str(copies)
    with (private / KERNEL_LOG).open("wb") as log:
        if not machine.virtual and place.in_sandbox:
            with suppress(PermissionError):  # a user's guest waits for other work: its links are measured before a run
                os.nice(_REAL_TIME_NICENESS)
        cpu = idlest_cpu()
        kernel = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=own,
            cwd="/",
            preexec_fn=lambda: _as_kernel(cpu),
            process_group=0,  # Ctrl-C is for the supervisor: it tells the guest, which keeps what it has
            pass_fds=() if copies is None else (copies,),
        )
    return BootedGuest(kernel, private)


def _as_kernel(cpu: int) -> None:
    """In the process that becomes the kernel: it ends with who started it, and its guest's processes with it."""
    os.sched_setaffinity(0, {cpu})
    ns.die_with_parent(signal.SIGKILL)


def kernel_output(private: Path) -> str:
    """What kernel and guest have said last, a line of ours for each of theirs; "" where they said nothing."""
    said = ""
    for who, path in (("kernel", private / KERNEL_LOG), ("guest", private / "job" / request.GUEST_LOG)):
        said += "".join(f"\n  {who} | {line}" for line in path.read_text(errors="replace").splitlines()[-25:])
    return said


def memory_is_full(private: Path) -> str:
    """Says so; a kernel that may not have a page that it touches is ended."""
    room = os.statvfs(private)
    whole_gib = room.f_blocks * room.f_frsize / 2**30
    return f": it has used all of the {whole_gib:.1f} GiB that it may have" if room.f_bavail == 0 else ""


def await_last_word(guest: RunningGuest | subprocess.Popen[bytes], watch: Watch, began: float, grace_s: float) -> None:
    """Give the guest time to write what it has, not to power off: it does that process by process, for nobody."""
    until = time.monotonic() + grace_s
    while guest.poll() is None and not watch.finished() and time.monotonic() < until:
        time.sleep(_END_POLL_S)
        watch.look(time.monotonic() - began)


class Watch:
    """Follows the guest's reports and what its tasks write, through the job directory."""

    def __init__(self, directory: Path, tasks: int, hear: Callable[[str], None]) -> None:
        self.heard: list[Heard] = []
        self._hear, self._private = hear, directory.parent
        self._reports = (directory / request.REPORT_FILE).open("rb")
        self._errors = [(directory / request.standard_error(n)).open("rb") for n in range(tasks)]
        self._partial = b""

    def look(self, wall_s: float) -> None:
        """Take in what is new."""
        for stream in self._errors:
            if said := stream.read():
                self._hear(said.decode(errors="replace"))
        *lines, self._partial = (self._partial + self._reports.read()).split(b"\n")
        self.heard += [Heard(wall_s, request.GuestProgress.from_json(line.decode())) for line in lines]

    def finished(self) -> bool:
        """Whether the guest has done what it had to, and written it: all but powering off."""
        return any(heard.report.event == request.FINISHED for heard in self.heard)

    def last(self, wall_s: float) -> str:
        """Where the guest was when it was last heard of."""
        if not self.heard:
            return f"nothing was heard of it{kernel_output(self._private)}"
        latest = self.heard[-1]
        ranks = next((heard.report for heard in reversed(self.heard) if heard.report.processes), None)
        where = "" if latest.report.task is None else f" in task {latest.report.task + 1}"
        text = (
            f"it was last heard {wall_s - latest.wall_s:.0f} s ago ({latest.report.event}{where}), when its own clock "
            f"was at {latest.report.time_s:.3f} s"
        )
        if ranks is not None:
            text += f"; its ranks at {ranks.time_s:.3f} s: {'; '.join(ranks.processes)}"
        return text
