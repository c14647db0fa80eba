"""A guest that is kept between commands: it has booted and imported, and each command measures in a copy of it.

A copy is a process with memory of its own (patches/7.2/copies.patch). It begins where the kept guest halted, whatever
other copies did, so it gives the nanoseconds that a boot gives. guest_keeper.py keeps it; this is what commands ask.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import site
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from testbed import source
from testbed.errors import MachineLacks, RunFailed, listed
from testbed.files import user_cache
from testbed.vm.guest_machine import GuestMachine
from testbed.vm.idle import idlest_cpu
from testbed.vm.kernel_process import KERNEL_LOG, kernel_output

VARIABLE = "TESTBED_KEPT_GUEST"
"""In our environment: "no" where a command is to boot a guest of its own."""

SOCKET, LOCK, LOG = "socket", "lock", "keeper.log"
MOST_BYTES = 2**16
_MOST_DIRECTORIES = 64
"""Of one message, as in copies.patch."""

ANSWER_S = 60.0
_COPIED_S, _ENDED_S, _READY_S = 900.0, 60.0, 180.0
"""Who keeps it gives up a copy sooner, where nothing comes of it (guest_keeper.py)."""

_GONE = ": it was a copy of the kept guest, which has ended"

_UNLIKE = {
    "kernel": "it is another kernel",
    "seed": "its seed is {there}, not {here}",
    "source": "the source has changed",
    "python": "Python or its packages have changed",
}
"""Of what decides the nanoseconds, why a kept guest does not suit."""


def directory() -> Path:
    """Where a user's kept guest is asked; may not be there. RuntimeError for a user without home."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "testbed-guest" if runtime and Path(runtime).is_dir() else user_cache("guest")


def description(machine: GuestMachine) -> dict[str, Any]:
    """What decides the nanoseconds that a guest gives, but for its plans."""
    return {
        "kernel": machine.build["sha256"],
        "seed": machine.seed,
        "source": source.digest(),
        "python": _python(),
    }


def _python() -> str:
    """Of the interpreter, and of what is installed for it."""
    said = [sys.version, sys.prefix, sys.base_prefix]
    for place in map(Path, site.getsitepackages()):
        if place.is_dir():
            entries = [entry for entry in os.scandir(place) if entry.name != "__pycache__"]
            said += sorted(f"{entry.name} {entry.stat().st_mtime_ns}" for entry in entries)
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


class KeptGuest:
    """A connection to whoever keeps this user's guest; of it one copy can be had."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._keeper = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self._ended: dict[str, Any] | None = None
        self.copy = 0
        """The how many-th copy it is."""

    def status(self) -> dict[str, Any]:
        """What it is, and what it does. Raises RunFailed."""
        return self._asked({"ask": "status"}, ANSWER_S)

    def stop(self) -> None:
        """End it, and all copies of it; nothing is left when this returns. Raises RunFailed."""
        keeper = os.pidfd_open(self._keeper)
        try:
            self._asked({"ask": "stop"}, ANSWER_S)
            if not select.select([keeper], [], [], _ENDED_S)[0]:
                raise self._removed(f"did not end within {_ENDED_S:g} s")
        finally:
            os.close(keeper)

    def copied(self, private: Path, directories: Sequence[Path]) -> KeptGuest:
        """Have a copy, which is given the job's directory, that of all results, and that of each task's. RunFailed."""
        self._private = private
        files = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in directories]
        try:
            self.copy = self._asked({"ask": "copy", "cpu": idlest_cpu()}, _COPIED_S, files)["copy"]
        finally:
            for file in files:
                os.close(file)
        return self

    def poll(self) -> int | None:
        """None while the copy runs."""
        if self._ended is None and select.select([self._connection], [], [], 0)[0]:
            self._hear_end()
        return None if self._ended is None else int(self._ended["code"])

    def end(self) -> None:
        """The copy has ended when this returns. Raises RunFailed."""
        if self._ended is None:
            with suppress(OSError):  # its end has come meanwhile
                self._connection.shutdown(socket.SHUT_WR)
            if not select.select([self._connection], [], [], _ENDED_S)[0]:
                raise self._removed(f"did not end a copy within {_ENDED_S:g} s")
            self._hear_end()
        self._connection.close()

    def used(self) -> tuple[int, float]:
        """By the copy, and to make it."""
        assert self._ended is not None
        return self._ended["peak_memory_kb"], self._ended["cpu_s"]

    def why(self) -> str:
        """What is known of why the copy ended."""
        assert self._ended is not None
        return f"{self._ended['why']}{kernel_output(self._private)}"

    def close(self) -> None:
        """It is not used."""
        self._connection.close()

    def _hear_end(self) -> None:
        said = self._received()
        self._ended = said or {"code": 1, "peak_memory_kb": 0, "cpu_s": 0.0, "why": _GONE, "said": ""}
        (self._private / KERNEL_LOG).write_text(self._ended["said"], encoding="utf-8")

    def _asked(self, question: Mapping[str, Any], limit_s: float, files: Sequence[int] = ()) -> dict[str, Any]:
        try:
            socket.send_fds(self._connection, [json.dumps(question).encode()], files)
        except OSError as error:
            raise self._removed(f"cannot be asked ({error.strerror})") from error
        if not select.select([self._connection], [], [], limit_s)[0]:
            raise self._removed(f"did not answer within {limit_s:g} s")
        answer = self._received()
        if "error" in answer or not answer:
            raise self._removed(answer.get("error", "ended while it was asked"))
        return answer

    def _received(self) -> dict[str, Any]:
        """What came; nothing where the connection has ended."""
        try:
            message = self._connection.recv(MOST_BYTES)
        except ConnectionError:
            message = b""
        said: dict[str, Any] = json.loads(message or b"{}")
        return said

    def _removed(self, why: str) -> RunFailed:
        """What cannot be relied on is ended, so that the next command does without it."""
        with suppress(ProcessLookupError):
            os.kill(self._keeper, signal.SIGKILL)
        return RunFailed(f"the kept guest {why}: it is ended; testbed guest start starts another one")


def find() -> KeptGuest | None:
    """This user's, if there is one."""
    try:
        place = os.open(directory(), os.O_PATH | os.O_DIRECTORY)
    except (OSError, RuntimeError):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(ANSWER_S)
    try:
        connection.connect(f"/proc/self/fd/{place}/{SOCKET}")  # the whole path may be longer than a socket's may be
    except OSError:
        connection.close()
        return None
    finally:
        os.close(place)
    return KeptGuest(connection)


def suitable(
    machine: GuestMachine, memory_mb: int, *, training: bool, shown: bool, directories: int
) -> tuple[KeptGuest | None, str | None]:
    """This user's kept guest if it gives what a boot of this machine would; else why it does not.

    `directories` are those for results. (None, None) where there is none, or it is not to be used.
    """
    if os.environ.get(VARIABLE) == "no" or not machine.virtual or (found := find()) is None:
        return None, None
    status = found.status()
    why = unlike(status["is"], description(machine))
    if memory_mb > status["memory_mb"]:
        why.append(f"it has {status['memory_mb']} MiB of memory, {memory_mb} are needed")
    if not training:
        why.append("nothing is trained")
    if shown:
        why.append("a directory is shown")
    if directories + 2 > _MOST_DIRECTORIES:
        why.append(f"these are more than {_MOST_DIRECTORIES - 2} plans")
    if not why:
        return found, None
    found.close()
    return None, f"the kept guest is not used: {listed(why)}"


def unlike(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Why a guest of one description does not suit where another is wanted; nothing where it does."""
    return [
        words.format(there=there[name], here=here[name]) for name, words in _UNLIKE.items() if there[name] != here[name]
    ]


def started(seed: int, idle_s: float, memory_mb: int) -> dict[str, Any]:
    """Start a keeper, and return what it says of its guest. Raises MachineLacks, RunFailed."""
    try:
        place = directory()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)
        log = (place / LOG).open("wb")
    except (OSError, RuntimeError) as error:
        raise MachineLacks(f"there is no place for a guest's socket: {error}") from error
    with log:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "testbed.vm.guest_keeper", str(place), str(seed), str(idle_s), str(memory_mb)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(source.PACKAGE.parent)},
            start_new_session=True,
        )
    assert keeper.stdout is not None
    with keeper.stdout as stream:
        said = stream.readline() if select.select([stream], [], [], _READY_S)[0] else b""
    if said:
        answer: dict[str, Any] = json.loads(said)
        if "error" not in answer:
            return answer
        raise {"MachineLacks": MachineLacks}.get(answer["kind"], RunFailed)(answer["error"])
    keeper.kill()
    last = (place / LOG).read_text(errors="replace").strip().splitlines()[-1:]
    raise RunFailed(f"no guest came up: {last[0] if last else f'nothing was said within {_READY_S:g} s'}")
