"""Keeps a guest between commands: boots it, and has it copied for whoever asks (kept_guest.py starts it).

    python -m testbed.vm.guest_keeper DIRECTORY SEED IDLE_S MEMORY_MB

It ends when it is told to, when nobody has used it for a while, or when its socket is gone, and with it, as with any
sandbox, the guest and all copies. A copy ends when whoever asked for it has gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import source
from testbed.errors import ExitCode, MachineLacks, RunFailed, TestbedError
from testbed.lab import capabilities, privileges
from testbed.lab.privileges import Privilege
from testbed.lab.sandbox import run_in_sandbox
from testbed.vm import boot, guest_machine, kernel
from testbed.vm.guest_files import PACKAGE
from testbed.vm.kept_guest import LOCK, MOST_BYTES, SOCKET, description
from testbed.vm.kernel_changes import COPIES, patches_of
from testbed.vm.kernel_process import KERNEL_LOG, BootedGuest, Watch, memory_is_full, start

_STARTING = "starting"
"""The socket's name until the guest is there."""

_LOOK_S = 1.0
_COPIED_S = 60.0
"""Without a moment of a processor's time for it, after which a copy is given up."""
_IMPORTED_S = 120.0
_POLL_S = 0.05
_MOST_FILES = 64
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Says one line on standard output, when the guest has imported, or why there is none."""
    place, seed, idle_s, memory_mb = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    os.chdir("/")
    try:
        return _keep(os.open(place, os.O_PATH | os.O_DIRECTORY), seed, idle_s, memory_mb)
    except TestbedError as error:
        _say({"error": str(error), "kind": type(error).__name__})
        return error.exit_code


def _say(document: dict[str, Any]) -> None:
    os.write(1, f"{json.dumps(document)}\n".encode())


def _keep(place: int, seed: int, idle_s: float, memory_mb: int) -> int:
    if privileges.require(capabilities.OF_GUESTS) is Privilege.PLAIN_PROCESS:
        raise MachineLacks(f"a guest is only kept in namespaces: {privileges.no_namespaces()}")
    built = kernel.require()
    if COPIES not in patches_of(built.source_version):
        raise MachineLacks(f"Linux {built.source_version} cannot be copied; {kernel.BUILD_COMMAND} --source 7.2")
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=place)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunFailed("another guest is kept already, or about to be") from error
    machine, copy = guest_machine.time_travel(built, seed), source.kept(PACKAGE)
    used = None if copy is None else os.open(copy, os.O_RDONLY | os.O_DIRECTORY)
    outer = os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        for name in (SOCKET, _STARTING):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=place)
        listener.bind(f"/proc/self/fd/{place}/{_STARTING}")
        listener.listen()  # here: who connects is told this process, with which all ends
        own = os.stat(_STARTING, dir_fd=place)

        def gone() -> bool:
            try:
                return not os.path.samestat(os.stat(SOCKET, dir_fd=place), own)
            except OSError:
                return True

        def body() -> int:
            try:
                guest, requests = _booted(machine, copy, memory_mb)
            except (RunFailed, MachineLacks) as error:
                _say({"error": str(error), "kind": type(error).__name__})
                return error.exit_code
            os.rename(_STARTING, SOCKET, src_dir_fd=place, dst_dir_fd=place)
            what = {"process": outer, "is": description(machine), "memory_mb": memory_mb}
            _Keeper(listener, guest, requests, what, idle_s, gone, used).serve()
            return ExitCode.OK

        try:
            return run_in_sandbox(body, own_proc=False)
        finally:
            for name in (SOCKET, _STARTING):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=place)


def _booted(
    machine: guest_machine.GuestMachine, copy: Path | None, memory_mb: int
) -> tuple[BootedGuest, socket.socket]:
    """A guest that has imported, and where it is asked for copies. In a sandbox. Raises RunFailed, MachineLacks."""
    job = boot.prepare(machine, [], copy, training=True, copied=True)
    requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        guest = start(machine, boot.IN_SANDBOX, memory_mb, copies=its.fileno())
    watch, until = Watch(job, 0, lambda _: None), time.monotonic() + _IMPORTED_S
    while not any(heard.report.event == "imported" for heard in watch.heard):
        if guest.poll() is not None or time.monotonic() > until:
            raise RunFailed(f"the guest that is to be kept did not come up{guest.why()}")
        time.sleep(_POLL_S)
        watch.look(0.0)
    return guest, requests


@dataclass
class _Wanted:
    """A copy that somebody waits for."""

    connection: socket.socket
    cpu: int
    files: list[int]
    """For the copy; they are closed once the guest's kernel has them."""
    log_bytes: int = 0
    """Of the kernel's log when it was asked for the copy, as the next."""
    before_s: float = 0.0
    """That the kernel had taken of processors."""
    gone: bool = False
    """Whether nobody waits any more."""


@dataclass
class _Copy:
    """One that runs."""

    pid: int
    process: int
    """A file that can be read when it has ended."""
    connection: socket.socket
    log_bytes: int
    """Of the kernel's log when it began."""
    copying_cpu_s: float


class _Keeper:
    """Serves whoever connects, one message after another; while a copy is made, others are answered."""

    def __init__(
        self,
        listener: socket.socket,
        guest: BootedGuest,
        requests: socket.socket,
        what: dict[str, Any],
        idle_s: float,
        gone: Callable[[], bool],
        source_copy: int | None,
    ) -> None:
        self._listener, self._guest, self._requests, self._what = listener, guest, requests, what
        self._idle_s, self._gone, self._source_copy = idle_s, gone, source_copy
        self._chosen = selectors.DefaultSelector()
        self._connected: set[socket.socket] = set()
        self._copies: dict[socket.socket, _Copy] = {}
        self._wanted: deque[_Wanted] = deque()
        """The first one is being made."""
        self._made, self._stopped, self._used_last = 0, False, time.monotonic()
        self._worked = (0.0, 0.0)
        """What the guest's kernel had taken of processors while it makes a copy, and when that was new."""

    def serve(self) -> None:
        """Until it is stopped, has been idle, the guest has ended, or the socket is gone."""
        self._chosen.register(self._listener, selectors.EVENT_READ, self._accept)
        self._chosen.register(self._requests, selectors.EVENT_READ, self._copied)
        _say(self._status())
        while not self._stopped and self._guest.poll() is None and not self._gone():
            for key, _ in self._chosen.select(_LOOK_S):
                if key in self._chosen.get_map().values():  # not one that was closed because of another
                    key.data()
            self._require_progress()
            if self._connected or self._copies:
                self._used_last = time.monotonic()
            elif time.monotonic() - self._used_last > self._idle_s:
                return

    def _status(self) -> dict[str, Any]:
        return {
            **self._what,
            "copies": self._made,
            "running": len(self._copies),
            "waiting": sum(not wanted.gone for wanted in self._wanted),
            "memory_bytes": _shared_memory_bytes(self._guest.kernel.pid),
            "cpu_s": _cpu_s(self._guest.kernel.pid),
            "ends_in_s": None if self._copies else self._idle_s - (time.monotonic() - self._used_last),
        }

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_COPIED_S)
        self._connected.add(connection)
        self._chosen.register(connection, selectors.EVENT_READ, lambda: self._hear(connection))

    def _hear(self, connection: socket.socket) -> None:
        try:
            message, files, _, _ = socket.recv_fds(connection, MOST_BYTES, _MOST_FILES)
        except ConnectionError:
            message, files = b"", []
        if not message:
            self._leave(connection)
            return
        question = json.loads(message)
        if question["ask"] == "copy":
            self._wanted.append(_Wanted(connection, question["cpu"], files))
            if len(self._wanted) == 1:
                self._begin_copy()
            return
        for file in files:
            os.close(file)
        self._stopped = question["ask"] == "stop"
        _answer(connection, self._status())

    def _leave(self, connection: socket.socket) -> None:
        """Whoever asked has gone, or wants the copy to end: that is answered when it has."""
        self._chosen.unregister(connection)
        self._connected.discard(connection)
        for wanted in self._wanted:
            wanted.gone |= wanted.connection is connection
        if connection in self._copies:
            os.kill(self._copies[connection].pid, signal.SIGKILL)
        elif not any(wanted.connection is connection for wanted in self._wanted):
            connection.close()

    def _begin_copy(self) -> None:
        """Ask the guest's kernel for the first one that is wanted."""
        while self._wanted and self._wanted[0].gone:
            self._drop(self._wanted.popleft())
        if not self._wanted:
            return
        wanted, guest = self._wanted[0], self._guest.kernel.pid
        with suppress(OSError):  # a processor that we may not use: where the guest is then
            os.sched_setaffinity(guest, {wanted.cpu})
        wanted.log_bytes, wanted.before_s = _log().stat().st_size, _cpu_s(guest)
        self._worked = wanted.before_s, time.monotonic()
        try:
            socket.send_fds(self._requests, [b"!"], wanted.files)
        except OSError as error:
            self._cannot(str(error))

    def _require_progress(self) -> None:
        """Nothing is waited for that does not come: on a busy machine a copy may take minutes, and goes on."""
        if not self._wanted:
            return
        used_s, now_s = _cpu_s(self._guest.kernel.pid), time.monotonic()
        if used_s > self._worked[0]:
            self._worked = used_s, now_s
        elif now_s - self._worked[1] > _COPIED_S:
            self._cannot(f"nothing came of it for {_COPIED_S:g} s")

    def _cannot(self, why: str) -> None:
        """What cannot be copied is no longer kept."""
        self._stopped = True
        for wanted in self._wanted:
            _answer(wanted.connection, {"error": f"cannot be copied ({why})"})

    def _drop(self, wanted: _Wanted) -> None:
        for file in wanted.files:
            os.close(file)
        wanted.connection.close()

    def _copied(self) -> None:
        """The guest's kernel says what came of the copy that it was asked for."""
        answered = self._requests.recv(4)
        if not answered:
            self._cannot(f"its kernel has ended{self._guest.why()}")
            return
        pid = struct.unpack("i", answered)[0]
        if pid < 0:
            self._cannot(str(OSError(-pid, f"{os.strerror(-pid)}{memory_is_full(boot.IN_SANDBOX.private)}")))
            return
        wanted = self._wanted.popleft()
        for file in wanted.files:
            os.close(file)
        self._made += 1
        if self._source_copy is not None:
            os.utime(self._source_copy)  # or source.py would remove it, when it has not been used for long
        spent_s = _cpu_s(self._guest.kernel.pid) - wanted.before_s
        copy = _Copy(pid, os.pidfd_open(pid), wanted.connection, wanted.log_bytes, spent_s)
        self._copies[wanted.connection] = copy
        self._chosen.register(copy.process, selectors.EVENT_READ, lambda: self._ended(copy))
        if wanted.gone:
            os.kill(pid, signal.SIGKILL)
        else:
            _answer(wanted.connection, {"copy": self._made})
        self._begin_copy()

    def _ended(self, copy: _Copy) -> None:
        _, status, used = os.wait4(copy.pid, 0)
        self._chosen.unregister(copy.process)
        os.close(copy.process)
        with _log().open("rb") as log:
            log.seek(copy.log_bytes)
            said = log.read()[-MOST_BYTES // 4 :].decode(errors="replace")
        _answer(
            copy.connection,
            {
                "code": os.waitstatus_to_exitcode(status),
                "peak_memory_kb": used.ru_maxrss,
                "cpu_s": used.ru_utime + used.ru_stime + copy.copying_cpu_s,
                "why": memory_is_full(boot.IN_SANDBOX.private),
                "said": said,
            },
        )
        del self._copies[copy.connection]
        self._connected.discard(copy.connection)
        with suppress(KeyError):  # of one that has gone
            self._chosen.unregister(copy.connection)
        copy.connection.close()


def _answer(connection: socket.socket, document: dict[str, Any]) -> None:
    with suppress(OSError):  # nobody is there any more
        connection.send(json.dumps(document).encode())


def _log() -> Path:
    return boot.IN_SANDBOX.private / KERNEL_LOG


def _cpu_s(pid: int) -> float:
    """Seconds of this machine's processors that a process has taken (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _shared_memory_bytes(pid: int) -> int:
    """Of a guest's memory what its kernel has touched: that is what a copy takes at first."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssShmem"))


if __name__ == "__main__":
    sys.exit(main())
