"""What process 1 of a guest mounts, and where: its own file systems, and directories of the host's (hostfs)."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from testbed.lab import namespaces as ns
from testbed.vm import guest_request as request

_NEXT_COPY = "/proc/next_copy"
"""Of copies.patch: halts the guest; a read returns in copies of it, with numbers of files that the host has opened."""

_MOST_BYTES = 4096
_NR_FINIT_MODULE = 313  # x86-64, the only machine UML runs on


def basics() -> None:
    """The guest's own file systems."""
    for source, target, kind in (
        ("proc", "/proc", "proc"),
        ("sysfs", "/sys", "sysfs"),
        ("devtmpfs", "/dev", "devtmpfs"),
        ("tmpfs", "/run", "tmpfs"),
        ("tmpfs", "/dev/shm", "tmpfs"),
        ("devpts", "/dev/pts", "devpts"),
        ("cgroup2", "/sys/fs/cgroup", "cgroup2"),
    ):
        Path(target).mkdir(exist_ok=True)
        try:
            ns.mount(source, target, kind)
        except OSError as error:
            if error.errno != errno.EBUSY:  # busy: Debian's kernel mounts /dev itself
                raise
    for directory in ("/run/netns", "/run/tmp", request.JOB_DIRECTORY, request.GUEST_OUT):
        Path(directory).mkdir(parents=True)
    socket.sethostname("testbed")


def job(directory: str, out: str) -> None:
    """Where the job and its results are on the host. What is said goes to a file there from now on."""
    _from_host(directory, request.JOB_DIRECTORY)
    _from_host(out, request.GUEST_OUT)
    log = os.open(Path(request.JOB_DIRECTORY) / request.GUEST_LOG, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def results(task: int, directory: str) -> None:
    """Where the results of a task go to on the host."""
    _from_host(directory, f"{request.GUEST_OUT}/{task}")


def _from_host(directory: str, here: str) -> None:
    # synchronous: what was written is on the host at once, even when the machine is killed
    ns.mount("none", here, "hostfs", ns.MS_SYNCHRONOUS, directory)


def next_copy() -> list[str]:
    """Halt the guest; returns in every copy of it, with the directories of the host's that it was given."""
    file = os.open(_NEXT_COPY, os.O_RDONLY)
    numbers = os.read(file, _MOST_BYTES).split()
    os.close(file)
    return [f"/proc/self/fd/{number.decode()}/." for number in numbers]


def load_modules(paths: Sequence[str]) -> None:
    """Modules in an order in which each finds what it needs. Not modprobe: /lib/modules is the host's."""
    libc = ctypes.CDLL(None, use_errno=True)
    for path in paths:
        with Path(path).open("rb") as file:
            if libc.syscall(_NR_FINIT_MODULE, file.fileno(), b"", 0) != 0:
                code = ctypes.get_errno()
                raise OSError(code, f"{path}: {os.strerror(code)}")
