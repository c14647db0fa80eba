"""The sandbox: every lab lives in its own namespaces and dies with the process that started it.

    outer (the command)  --fork-->  init (PID 1 of the namespaces)  --fork-->  main (Mininet, torch, ...)

Who is not root gets a user namespace besides, in which init and main are root, and outside of which they are the user.

The kernel kills init when the outer process ends in any way, and everything in the namespaces when init ends; network
namespaces, interfaces and mounts go with their last process. So there is nothing to clean up, ever; temporary files are
removed by a process outside (scratch.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from testbed.errors import ExitCode, MachineLacks, RunFailed, in_words
from testbed.failure import failed
from testbed.interrupts import interrupt_unless_held
from testbed.lab import capabilities, privileges
from testbed.lab import namespaces as ns
from testbed.lab.capabilities import Capability
from testbed.lab.host_settings import end_processes
from testbed.lab.privileges import Privilege
from testbed.scratch import scratch_directory

INTERRUPT_GRACE_S = 1.6
"""How long an interrupted lab may tidy up before it is killed; below the two seconds that we promise."""

_SAME_INTERRUPT_S = 0.3
"""Ctrl-C and `kill -INT -group` reach outer and main: a second interrupt within this time is the same one."""

_MARK = "testbed-lab"
"""Source name of the sandbox's /proc mount: how a process can tell that it is inside."""

TCP_MEM_VARIABLE = "TESTBED_MACHINE_TCP_MEM"
"""Environment of everything in a sandbox: the machine's net.ipv4.tcp_mem, which no other namespace shows.

Not set where the sandbox was made in another network namespace than the machine's first one, as in a container."""

_INTERRUPT_MAIN = signal.SIGUSR1
"""Outer to init: interrupt main. Not SIGINT, which a terminal may send to init as well."""

_END = signal.SIGUSR2
"""Outer to init, and the kernel where outer has ended: end everything."""
_INTERRUPTED = signal.SIGURG
"""Main to init: it was interrupted, by whomever; that outer has done it need not be."""
_SAID = b"interrupted\n"
_ENDS_S, _NO_LIMIT_S = 0.1, 1e6

_SIOCSIFFLAGS, _SIOCGIFFLAGS, _IFF_UP = 0x8914, 0x8913, 0x1


_REMEDY = "use a VM, or a container with: --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
"""Of who has the capabilities, and is refused: another guard of the machine's says no."""

_USED_UP = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE)
"""Of what the machine has, it has no more to give just now: no package or right adds it."""


def run_in_sandbox(
    main: Callable[[], int],
    *,
    interactive: bool = False,
    needed: Sequence[Capability] = capabilities.OF_GUESTS,
    own_proc: bool = True,
) -> int:
    """Run `main` in its own network, mount, PID, IPC and UTS namespaces; return its exit code.

    Whoever has not the capabilities that are `needed` gets a user namespace as well. Without `own_proc` it does
    with the /proc of outside where that is partly hidden, as in a container, and no other can be mounted.

    Call it while single-threaded, before Mininet or torch are imported. SIGINT and SIGTERM reach `main` as one
    KeyboardInterrupt; if it has not ended INTERRUPT_GRACE_S later, it is killed. With `interactive`, Ctrl-C on the
    terminal is left to `main` alone (Mininet's command line survives it). A killed or crashed main counts as
    ExitCode.RUN_FAILED. Raises MachineLacks when the namespaces cannot be made.
    """
    privilege = privileges.require(needed)
    if privilege is Privilege.PLAIN_PROCESS:
        raise MachineLacks(privileges.no_namespaces())
    as_root = privilege is Privilege.ROOT
    watched = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, watched | {_INTERRUPT_MAIN, _END, _INTERRUPTED})
    alive_read, alive_write = os.pipe()  # reads as ended when the outer process is gone
    report_read, report_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        init_pid = _fork_into_new_pid_namespace() if as_root else _fork_into_new_user_namespace()
        if init_pid == 0:
            os.close(alive_write)
            os.close(report_read)
            tell = () if interactive else (_INTERRUPTED,)
            _init(partial(_main, main, blocked_before, tell), own_proc, alive_read, report_write)  # never returns
        os.close(report_write)
        trouble = _read_all(report_read)
        code = _watch(init_pid, watched, interactive)
    finally:
        for fd in (alive_read, alive_write, report_read):
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
    if trouble and code == ExitCode.RUN_FAILED:
        raise RunFailed(f"cannot make the lab's namespaces: {trouble}")
    if trouble:
        raise MachineLacks(f"cannot make the lab's namespaces ({trouble}); {_REMEDY}")
    return code


def run_with_own_files(main: Callable[[], int], *, interactive: bool = False) -> int:
    """As run_in_sandbox, for a lab, with a directory for temporary files that goes with it, however it ends."""
    privileges.require(capabilities.OF_LABS)
    with scratch_directory("testbed-") as scratch:

        def with_own_files() -> int:
            tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
            return main()

        return run_in_sandbox(with_own_files, interactive=interactive, needed=capabilities.OF_LABS)


def in_sandbox() -> bool:
    """Whether this process runs inside a sandbox."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return any(line.startswith(f"{_MARK} /proc ") for line in mounts.splitlines())


def require_sandbox() -> None:
    """Raise RunFailed outside a sandbox: a lab there would touch the machine's own network."""
    if not in_sandbox():
        raise RunFailed("a lab can only be built inside testbed.lab.sandbox.run_in_sandbox()")


# --- outer ---------------------------------------------------------------------------------------


def _fork_into_new_pid_namespace() -> int:
    try:
        return ns.fork_into_new_pid_namespace()
    except PermissionError as error:
        raise MachineLacks(f"cannot make the lab's namespaces ({error}); {_REMEDY}") from error
    except OSError as error:
        raise RunFailed(f"cannot make the lab's namespaces: {in_words(error)}") from error


def _fork_into_new_user_namespace() -> int:
    """The same as who is not root, by way of a process that enters the user namespace, bears init there and ends."""
    report, go = os.pipe(), os.pipe()
    ns.adopt_orphans(True)
    between = os.fork()
    if between == 0:
        _bear_init(report, go)
        return 0
    try:
        os.close(report[1])
        said = _read_all(report[0])
        os.waitpid(between, 0)
        if not said.isdigit():
            raise RunFailed(f"cannot make the lab's namespaces: {said or 'the attempt died'}")
        os.write(go[1], b"!")
        return int(said)
    finally:
        ns.adopt_orphans(False)
        for fd in (report[0], *go):
            os.close(fd)


def _bear_init(report: tuple[int, int], go: tuple[int, int]) -> None:
    """Enter a user namespace and fork. Returns in init, when it is its grandparent's child: its death is init's then.

    The process between says init's process id, or why there is none, and ends.
    """
    try:
        ns.enter_user_namespace(ns.CLONE_NEWPID)
        pid = os.fork()
    except OSError as error:
        os.write(report[1], in_words(error).encode())
        os._exit(1)
    if pid:
        os.write(report[1], str(pid).encode())
        os._exit(0)
    for fd in (*report, go[1]):
        os.close(fd)
    os.read(go[0], 1)
    os.close(go[0])


def _watch(init_pid: int, watched: set[signal.Signals], interactive: bool) -> int:
    """Wait for init, passing interrupts on. Returns the exit code."""
    deadline: float | None = None
    while True:
        pid, status = os.waitpid(init_pid, os.WNOHANG)
        if pid == init_pid:
            break
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            os.write(sys.stderr.fileno(), _SAID)  # main did not come to say it
            os.kill(init_pid, _END)
            time.sleep(_ENDS_S)
            os.kill(init_pid, signal.SIGKILL)  # it has ended, unless it got no turn or was stopped
            _, status = os.waitpid(init_pid, 0)
            break
        info = signal.sigwaitinfo(watched) if left is None else signal.sigtimedwait(watched, left)
        if info is None or info.si_signo == signal.SIGCHLD:
            continue
        from_terminal = info.si_code > 0  # SI_KERNEL: the whole foreground group, main included, has it already
        if from_terminal and interactive:
            continue
        if not from_terminal:
            os.kill(init_pid, _INTERRUPT_MAIN)
        deadline = deadline or time.monotonic() + INTERRUPT_GRACE_S
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else int(ExitCode.RUN_FAILED)


def _read_all(fd: int) -> str:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts).decode()


# --- init ----------------------------------------------------------------------------------------


def _init(main: Callable[[], int], own_proc: bool, alive: int, report: int) -> None:
    """PID 1 of the sandbox: set up, start main, reap orphans, end with main's exit code."""
    try:
        ns.die_with_parent(_END)  # not SIGKILL: what runs at idle priority would end when a busy machine lets it
        if select.select([alive], [], [], 0)[0]:
            os._exit(int(ExitCode.RUN_FAILED))  # the parent ended before the line above took effect
        _enter_namespaces(own_proc=own_proc)
        main_pid = os.fork()
    except BaseException as error:  # noqa: BLE001 - reported by the outer process; nothing may escape a fork
        os.write(report, str(error).encode())
        used_up = isinstance(error, OSError) and error.errno in _USED_UP
        os._exit(int(ExitCode.RUN_FAILED if used_up else ExitCode.MACHINE_LACKS))
    os.close(report)
    if main_pid == 0:
        os.close(alive)
        os._exit(main())
    deadline = 0.0
    while True:
        # SIGINT and SIGTERM are blocked here: init has its orders from the outer process only.
        left_s = max(0.0, deadline - time.monotonic()) if deadline else _NO_LIMIT_S
        info = signal.sigtimedwait({signal.SIGCHLD, _INTERRUPT_MAIN, _END, _INTERRUPTED}, left_s)
        heard = None if info is None else info.si_signo
        if info is None and deadline:
            heard = _END
            os.write(2, _SAID)
        if heard == _INTERRUPT_MAIN:
            os.kill(main_pid, signal.SIGINT)
        elif heard == _INTERRUPTED:
            deadline = deadline or time.monotonic() + INTERRUPT_GRACE_S + _ENDS_S
        elif heard == _END:
            end_processes()
            os._exit(int(ExitCode.RUN_FAILED))
        while True:
            pid, status = _reap()
            if pid == 0:
                break
            if pid == main_pid:
                if os.WIFSIGNALED(status):
                    name = signal.Signals(os.WTERMSIG(status)).name
                    os.write(2, f"the lab's main process was killed by {name}\n".encode())
                end_processes()
                os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else int(ExitCode.RUN_FAILED))


def _reap() -> tuple[int, int]:
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _enter_namespaces(*, own_proc: bool) -> None:
    tcp_mem = Path("/proc/sys/net/ipv4/tcp_mem")
    if tcp_mem.exists():  # it does not in a sandbox within a sandbox, nor in a container
        os.environ[TCP_MEM_VARIABLE] = tcp_mem.read_text(encoding="ascii").strip()
    ns.unshare(ns.CLONE_NEWNET | ns.CLONE_NEWNS | ns.CLONE_NEWIPC | ns.CLONE_NEWUTS)
    ns.mount("none", "/", "none", ns.MS_REC | ns.MS_PRIVATE)
    try:
        ns.mount(_MARK, "/proc", "proc")
    except PermissionError:  # a part of the /proc there is hidden: a container's
        if own_proc:
            raise
    if Path("/run/netns").is_dir():
        ns.mount(_MARK, "/run/netns", "tmpfs")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, name))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


# --- main ----------------------------------------------------------------------------------------


def _main(main: Callable[[], int], mask: set[int | signal.Signals], tell: Sequence[signal.Signals]) -> int:
    last = -_SAME_INTERRUPT_S

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SAME_INTERRUPT_S:
            last = now
            for number in tell:
                os.kill(os.getppid(), number)
            interrupt_unless_held()

    code: object
    try:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = main()
    except KeyboardInterrupt:
        print(_SAID.decode(), end="", file=sys.stderr)
        code = ExitCode.RUN_FAILED
    except BaseException as error:  # noqa: BLE001 - this is the top of a process
        code = failed(error)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the reader of our output went away; the exit code still counts
            code = code or ExitCode.RUN_FAILED
    return int(code) if isinstance(code, int) else int(ExitCode.OK)
