"""What a process that runs a job's code may do: compute, and talk to the others of its job. Nothing of the machine's.

    files          read-only but for one shared directory and a small /tmp of its own; homes, secrets, sockets and
                   devices are not there, but for what a user shows of them (shown.py)
    rights         no capability, and no way to get one; a user that is nobody else's where the machine lets it change
    processes      its container's alone (container.py), and no more than MOST_TASKS of its user
    environment    what a Python program needs (`plain_environment`)

The network is its container's. Neither costs anything while a job trains: all is done before a worker connects.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from testbed.lab import capabilities
from testbed.lab import namespaces as ns
from testbed.lab.capabilities import Capability
from testbed.lab.hidden_files import hide, hide_secrets, what_is_read
from testbed.lab.host_settings import MESSAGE_PRIORITY

WORKER_USER = 2_000_000_000
"""User and group of workers: none that systems give out (systemd's list of ranges, "Users, Groups, UIDs and GIDs")."""

MOST_TASKS = 4096
"""Processes and threads of that user, of all labs on a machine: a rank has four, and one for each of its streams."""

LARGEST_FILE_BYTES = 4 * 2**30
_SMALL_BYTES = 64 * 2**20
"""Of /tmp and /dev/shm, each."""

_DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom", "shm", "fd"))
_EMPTIED = (Path("/run"), Path("/var/tmp"))
_SHARED_MODE = 0o777
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 4, 8, 38

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")
_ENVIRONMENT_OF = ("LC_", "PYTHON", "TESTBED_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "TORCH_", "GLOO_")


class Confinement(NamedTuple):
    """How a lab's workers are confined."""

    user: int | None
    """Who they become; None: they stay who started the lab."""
    stays: str
    """Why, where they stay."""
    kept: tuple[Capability, ...] = ()
    """What they must not lose, for want of something else."""
    shared: str = ""
    """The one directory that all of them may write to; empty: none."""
    shown: tuple[str, ...] = ()
    """Directories that they may read, wherever they lie (shown.py)."""

    def described(self) -> dict[str, object]:
        """For the manifest."""
        found: dict[str, object] = {"user": self.user, "stays": self.stays}
        found["capabilities"] = [each.name for each in self.kept]
        return found | ({"shown": list(self.shown)} if self.shown else {})


def possible(shared: Path | None = None) -> Confinement:
    """How this process can confine others, in a lab's namespaces."""
    directory = "" if shared is None else str(shared)
    if lacking := capabilities.lacking(capabilities.CHANGE_USER):
        return Confinement(None, f"no CAP_{lacking[0].name}", shared=directory)
    if not _is_mapped(WORKER_USER):
        return Confinement(None, "a user namespace has one user", shared=directory)
    hidden = next((place for place in what_is_read() if place.stat().st_mode & 0o005 != 0o005), None)
    if hidden is None:
        return Confinement(WORKER_USER, "", shared=directory)
    if capabilities.lacking([capabilities.READ_ALL]):
        return Confinement(None, f"{hidden} is for its owner alone", shared=directory)
    return Confinement(WORKER_USER, "", (capabilities.READ_ALL,), directory)


def lacks(connection: int) -> str | None:
    """Why workers stay who they are here, and with which rights; None: they are another user, without any.

    Confines the calling process to find out, which has `connection` open thereafter. Raises OSError where that cannot
    be done at all.
    """
    own_files()
    how = possible()
    confine(how, connection, real_time=False)
    if how.user is None:
        return f"workers stay who started the lab ({how.stays}), without capabilities"
    return f"workers keep CAP_{how.kept[0].name}, which {how.kept[0].purpose}" if how.kept else None


def let_workers_write(directory: Path) -> None:
    """Let those of any user write into a directory, of which the one it lies in keeps others away."""
    directory.chmod(_SHARED_MODE)


def plain_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a worker gets: no keys and passwords of who started it."""
    return {
        name: value for name, value in variables.items() if name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_OF)
    }


def confine(how: Confinement, connection: int, *, real_time: bool) -> None:
    """Confine the calling process, which is single-threaded and in a mount namespace of its own (`own_files`).

    Of what it has open there is left what it says things by: `connection`, and the standard streams.

    With `real_time` it can still have the priorities of a worker (host_settings.py). Raises OSError.
    """
    with suppress(OSError):  # a kernel that has no such file chooses by itself
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # where memory ends, a worker ends first
    _let_go(connection)
    _confine_files([Path(how.shared)] if how.shared else [], [Path(place) for place in how.shown])
    kept = [*how.kept, *_limited(real_time)]
    if how.user is not None:
        ns.prctl(_PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(how.user, how.user, how.user)
        os.setresuid(how.user, how.user, how.user)
    ns.set_capabilities(sum(1 << capability.bit for capability in kept))
    ns.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    ns.prctl(_PR_SET_DUMPABLE, 1)  # its files in /proc stay its own


def own_files() -> None:
    """Have the calling process be in a mount namespace of its own. Raises OSError."""
    ns.unshare(ns.CLONE_NEWNS)
    ns.mount("none", "/", "none", ns.MS_REC | ns.MS_PRIVATE)


def own_machine() -> None:
    """The same, and see no network and no process but its own: of the first one in a PID namespace. Raises OSError."""
    ns.unshare(ns.CLONE_NEWNET | ns.CLONE_NEWIPC)
    own_files()
    ns.mount("testbed-proc", "/proc", "proc")


def _let_go(connection: int) -> None:
    """Have nothing behind all other descriptors: closed, their numbers would be given to files that others close."""
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > sys.stderr.fileno() and number not in (connection, nothing):
            with suppress(OSError):  # that by which they were listed
                os.dup2(nothing, number, inheritable=os.get_inheritable(number))
    os.close(nothing)


# --- files ---------------------------------------------------------------------------------------


def _confine_files(shared: Sequence[Path], shown: Sequence[Path]) -> None:
    kept = [*shared, *shown, *what_is_read()]
    small = f"mode=1777,size={_SMALL_BYTES}"
    hide_secrets([*shared, *shown])
    writable = [place for place in (Path("/tmp"), Path("/dev/shm")) if place.is_dir()]
    for place in writable:
        hide(place, kept, small)
    hide(Path("/dev"), [*kept, *(device for device in _DEVICES if device.exists() and not device.is_symlink())])
    for place in _EMPTIED:
        if place.is_dir() and not place.is_symlink():
            hide(place, kept)
    for place in kept:
        for above in reversed(place.parents):
            if not above.stat().st_mode & 1:
                hide(above, kept)
    ns.make_read_only("/")
    for place in [*writable, *shared]:
        ns.make_writable(str(place))
    os.environ["TMPDIR"] = os.environ["HOME"] = "/tmp"
    os.chdir("/")  # what it stood in is hidden, and would be reached from there


def _is_mapped(user: int) -> bool:
    """Whether there is such a user in the user namespace of this process."""
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = map(int, line.split())
        if first <= user < first + count:
            return True
    return False


def _limited(real_time: bool) -> list[Capability]:
    """Set the limits; returns the capability that has to be kept for want of one."""
    for kind, most in (
        (resource.RLIMIT_NPROC, MOST_TASKS),
        (resource.RLIMIT_FSIZE, LARGEST_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        before = resource.getrlimit(kind)[1]
        limit = most if before == resource.RLIM_INFINITY else min(most, before)
        resource.setrlimit(kind, (limit, limit))
    if real_time:
        try:
            resource.setrlimit(resource.RLIMIT_RTPRIO, (MESSAGE_PRIORITY, MESSAGE_PRIORITY))
        except (OSError, ValueError):  # more than it has, and no right to raise it
            return [capabilities.SYS_NICE]
    return []
