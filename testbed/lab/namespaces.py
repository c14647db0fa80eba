"""Namespaces, mounts and process-death signals straight from libc: what Python 3.11 does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_SYNCHRONOUS = 0x10
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CAPABILITY_VERSION = 0x20080522
_ADDR_NO_RANDOMIZE = 0x0040000
_NS_GET_USERNS = 0xB701
_FIRST_USER_NAMESPACE = 0xEFFFFFFD
"""Inode of the machine's first user namespace (include/linux/proc_ns.h)."""
_NR_MOUNT_SETATTR = 442  # the same on every machine
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 0x1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` (CLONE_NEW*) for new ones. Raises OSError."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def prctl(option: int, value: int) -> None:
    """prctl(2) with one value, of the calling thread. Raises OSError."""
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl({option})")


def set_capabilities(mask: int) -> None:
    """Have the calling thread hold these capabilities (bit by bit of capabilities(7)) and no others. Raises OSError."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    _check(_libc.capset(header, data), "capset")


def adopt_orphans(wanted: bool) -> None:
    """Whether processes whose parents, below this one, have ended become children of this one. Raises OSError."""
    prctl(_PR_SET_CHILD_SUBREAPER, int(wanted))


def enter_user_namespace(others: int) -> None:
    """Leave for a new user namespace and the namespaces in `others` (CLONE_NEW*), and be root there. Raises OSError.

    All capabilities count in there only. To everything outside this process has its user's rights as before: the user's
    files are those of root in there, and everybody else's are nobody's. Call it while single-threaded.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | others)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def in_first_user_namespace() -> bool:
    """Whether capabilities of this process count on the machine, not in a user namespace alone. Raises OSError."""
    return Path("/proc/self/ns/user").stat().st_ino == _FIRST_USER_NAMESPACE


def may_come_back() -> bool:
    """Whether this process could return to its network and PID namespaces, once it has left them.

    Root of a user namespace cannot, where these are from outside it (`unshare --user --map-root-user`). Raises OSError.
    """
    return not any(_is_from_outside(f"/proc/self/ns/{name}") for name in ("net", "pid"))


def _is_from_outside(path: str) -> bool:
    """Whether a namespace belongs to a user namespace around this process's own."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(fcntl.ioctl(fd, _NS_GET_USERNS))
    except OSError as error:
        return error.errno == errno.EPERM  # else a kernel that does not say it, which is taken to let us
    finally:
        os.close(fd)
    return False


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace behind `fd`, which must be of `kind`. Raises OSError."""
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str | None = None) -> None:
    """mount(2). Raises OSError."""
    data = None if options is None else options.encode()
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data)
    _check(result, f"mount {kind} on {target}")


def bind(original: Path, here: Path) -> None:
    """Have a file, or a directory with all that is mounted below it, appear at `here` as well. Raises OSError."""
    if original.is_dir():
        here.mkdir(exist_ok=True)
    elif not here.exists():
        here.touch()
    mount(str(original), str(here), "none", MS_BIND | MS_REC)


def make_read_only(path: str) -> None:
    """Make the mount at `path` and all below it read-only, in this mount namespace. Raises OSError (Linux < 5.12)."""
    _set_mount_attributes(path, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, 0)


def make_writable(path: str) -> None:
    """Make the one mount at `path` writable again. Raises OSError."""
    _set_mount_attributes(path, 0, 0, _MOUNT_ATTR_RDONLY)


def _set_mount_attributes(path: str, flags: int, add: int, remove: int) -> None:
    attributes = struct.pack("=QQQQ", add, remove, 0, 0)
    result = _libc.syscall(_NR_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, attributes, len(attributes))
    _check(result, f"mount_setattr({path})")


def no_address_randomisation() -> None:
    """Have programs that this process starts find their memory at the same addresses every time."""
    _check(min(0, _libc.personality(_ADDR_NO_RANDOMIZE)), "personality")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send `signal_number` to this process when its parent thread ends. Raises OSError."""
    prctl(_PR_SET_PDEATHSIG, signal_number)


@contextlib.contextmanager
def _coming_home() -> Iterator[None]:
    """Bring the calling thread back to its network namespace after the body."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        setns(home, CLONE_NEWNET)
        os.close(home)


@contextlib.contextmanager
def inside(target: int | str) -> Iterator[None]:
    """Run the body in the network namespace of process `target` (a pid) or of a path such as /proc/5/ns/net.

    Only the calling thread moves, and it comes back. Sockets and TAPs opened in the body stay in that namespace.
    """
    path = f"/proc/{target}/ns/net" if isinstance(target, int) else target
    with _coming_home():
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(there, CLONE_NEWNET)
        finally:
            os.close(there)
        yield


@contextlib.contextmanager
def scratch_network() -> Iterator[None]:
    """Run the body in a new, empty network namespace that ends with it (calling thread only). Raises OSError."""
    with _coming_home():
        unshare(CLONE_NEWNET)
        yield


def attach(pid: int) -> None:
    """Move a just-forked, single-threaded process into the container whose first process is `pid`.

    Network and mounts change at once. The PID namespace is joined only by children forked afterwards: fork once more,
    or come from `fork_into`.
    Raises OSError when the container is gone.
    """
    kinds = (("net", CLONE_NEWNET), ("pid_for_children", CLONE_NEWPID), ("mnt", CLONE_NEWNS))
    # Opened first: /proc is another one after the mount namespace changed.
    fds = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in kinds]
    here = Path.cwd()
    try:
        for fd, kind in fds:
            setns(fd, kind)
    finally:
        for fd, _ in fds:
            os.close(fd)
    os.chdir(here)  # setns(mnt) moves to the root directory


def fork_into_new_pid_namespace() -> int:
    """As os.fork(), with the child as the first process of a new PID namespace. Raises OSError."""
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    pid = -1
    try:
        unshare(CLONE_NEWPID)
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                setns(home, CLONE_NEWPID)  # or this process could never fork again
    finally:
        os.close(home)
    return pid


def fork_into(pid: int | None) -> int:
    """As os.fork(), with the child in the PID namespace of the container whose first process is `pid`; None: in ours.

    The child of a container that is gone is in ours too: it will hear so from `attach`. Raises OSError.
    """
    if pid is None:
        return os.fork()
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    child = -1
    try:
        with contextlib.suppress(OSError):
            _bear_children_in(f"/proc/{pid}/ns/pid_for_children")
        child = os.fork()
    finally:
        if child != 0:
            setns(home, CLONE_NEWPID)
        os.close(home)
    return child


def _bear_children_in(path: str) -> None:
    there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(there, CLONE_NEWPID)
    finally:
        os.close(there)
