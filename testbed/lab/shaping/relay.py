"""The relay shaper: TAPs in the border routers, and the process between them (relay_process.py)."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.errors import MachineLacks, RunFailed, in_words
from testbed.lab.counters import interface_drops
from testbed.lab.namespaces import inside
from testbed.lab.netlink import Netlink
from testbed.lab.shaping import CHANGEABLE, End, LinkCounters, ShapedDirection, ShapedLink, TimedChange

_TUN = "/dev/net/tun"
_TUN_REMEDY = "modprobe tun (a container: docker run --device /dev/net/tun)"
_NO_TUN = (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EPERM, errno.EACCES, errno.ENOTDIR)
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x2, 0x1000, 0x4000
_OFFLOAD_CSUM, _OFFLOAD_TSO4, _OFFLOAD_TSO6 = 0x1, 0x2, 0x4

_TAP_QUEUE_PACKETS = 20_000
"""Room between the kernel and the relay: a burst must not be lost before the relay has seen it."""

_ANSWER_S = 10.0

_AWAKE_S = 100e-6
"""Who sleeps until a frame is due wakes some 60 us later, on a slow machine 150 us."""

_CHANGES = "delay_s", "rate_bps", "sends", "loss", "jitter_s"
"""Of a TimedChange."""


def open_tap(name: str) -> int:
    """A new TAP in the current network namespace, with vnet headers and TCP offload. It lives as long as its fd.

    Raises MachineLacks where the machine has none, or forbids it; OSError.
    """
    try:
        fd = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NO_TUN:
            raise
        raise MachineLacks(f"the relay has no TAP: {in_words(error)}; add it with: {_TUN_REMEDY}") from error
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _OFFLOAD_CSUM | _OFFLOAD_TSO4 | _OFFLOAD_TSO6)
    except OSError:
        os.close(fd)
        raise
    return fd


class RelayProcess:
    """A relay that carries between TAPs from its start on, and is steered by requests."""

    def __init__(self, taps: Sequence[int], directions: Sequence[dict[str, Any]]) -> None:
        """`directions`: what each has, as in relay_process.py, with its TAPs as `source` and `sink`. The process has
        copies of its own of these. Raises RunFailed."""
        ours, theirs = socket.socketpair()
        program = Path(__file__).with_name("relay_process.py")
        command = [sys.executable, "-I", "-S", str(program), str(theirs.fileno())]
        self._control: socket.socket | None = ours
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno(), *taps], stdin=subprocess.DEVNULL, start_new_session=True
            )
        ours.settimeout(_ANSWER_S)
        self._asking = threading.Lock()
        """Held for a request and its answer: links may be changed by a thread while counters are read."""
        try:
            self.started = self.ask({"parent": os.getpid(), "directions": directions})
            """What it said of itself."""
        except RunFailed:  # nobody else knows of the process
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What it answers. Raises RunFailed."""
        if self._control is None:
            raise RunFailed("the relay is not running")
        try:
            with self._asking:
                answer = self._answer(self._control, request)
        except OSError as error:
            raise RunFailed(f"the relay process does not answer: {error}") from error
        decoded: dict[str, Any] = json.loads(answer)
        if "error" in decoded:
            raise RunFailed(f"relay: {decoded['error']}")
        return decoded

    @staticmethod
    def _answer(control: socket.socket, request: dict[str, Any]) -> bytes:
        """A line for a line. Raises OSError, and RunFailed where the other end is closed."""
        control.sendall(json.dumps(request).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            part = control.recv(1 << 20)
            if not part:
                raise RunFailed("the relay process ended; the links are dead")
            answer += part
        return answer

    def stay_awake(self) -> None:
        """Have it look again and again when a frame is nearly due. Not on the virtual clock, where nobody is late."""
        self.ask({"op": "stay_awake", "seconds": _AWAKE_S})

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._control is None:
            return
        self._control.close()
        self._control = None
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class RelayShaper:
    """Starts one relay process for all links and steers it."""

    name = "relay"

    def __init__(self) -> None:
        self._directions: list[ShapedDirection] = []
        self._process: RelayProcess | None = None
        self._in_force: list[dict[str, Any]] = []
        self._early_s = 0.0
        self._scheduled = 0
        """Changes, so far."""

    @property
    def pid(self) -> int | None:
        """See Shaper."""
        return None if self._process is None else self._process.pid

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        self._directions = [d for link in links for d in (link.forward, link.reverse)]
        taps: list[int] = []
        try:
            for link in links:
                taps += [_make_tap(end, link.mtu) for end in (link.forward.source, link.forward.target)]
            self._start(taps)
        finally:
            for fd in taps:  # the relay has its own copies: its death is the link's
                os.close(fd)

    def _start(self, taps: list[int]) -> None:
        self._in_force = [
            {name: getattr(d.asked, name) for name in sorted(CHANGEABLE)} | {"queue_bytes": d.queue_bytes}
            for d in self._directions
        ]
        entries = []
        for i, (direction, values) in enumerate(zip(self._directions, self._in_force, strict=True)):
            # Link k has TAPs 2k (forward source) and 2k+1; its directions read one and write the other.
            entries.append({"source": taps[i], "sink": taps[i ^ 1], "seed": direction.seed, **values})
        self._process = RelayProcess(taps, entries)

    def hasten(self, early_s: float) -> None:
        """Have all directions let go of what they carry so much earlier, for what a passage takes by itself, and the
        process stay awake for that."""
        self._early_s = early_s
        if self._process is not None:
            self._process.stay_awake()
        for place in range(len(self._directions)):
            self._ask({"op": "set", "direction": place, "early_s": early_s})

    def counters(self, *, reset_peaks: bool = False) -> list[LinkCounters]:
        """See Shaper. Frames that the kernel dropped at a TAP count as dropped."""
        counted = self._ask({"op": "counters", "reset_peaks": reset_peaks})["directions"]
        rows = []
        for direction, row in zip(self._directions, counted, strict=True):
            row["dropped"] += row.pop("refused") + _kernel_drops(direction)
            row["lateness"] = tuple(row["lateness"])
            rows.append(LinkCounters(direction.index, direction.asked.label, **row))
        return rows

    def change(self, direction: int, **values: float) -> None:
        """See Shaper."""
        if unknown := set(values) - CHANGEABLE:
            raise ValueError(f"cannot change {sorted(unknown)}")
        place = next(i for i, d in enumerate(self._directions) if d.index == direction)
        self._ask({"op": "set", "direction": place, **values})
        self._in_force[place] |= values

    def schedule(self, changes: Sequence[TimedChange]) -> None:
        """See TimedShaper."""
        places = {direction.index: place for place, direction in enumerate(self._directions)}
        asked = []
        for number, change in enumerate(changes, self._scheduled):
            values = {name: getattr(change, name) for name in _CHANGES}
            asked.append(
                {"at_ns": round(change.at_s * 1e9), "number": number, "direction": places[change.direction]}
                | {name: value for name, value in values.items() if value is not None}
            )
        self._scheduled += len(changes)
        self._ask({"op": "schedule", "changes": asked})

    def happened(self) -> list[float]:
        """See TimedShaper."""
        return [instant * 1e-9 for _, instant in sorted(self._ask({"op": "happened"})["happened"])]

    def describe(self) -> list[dict[str, Any]]:
        """See Shaper."""
        started = {} if self._process is None else self._process.started
        return [
            {"direction": d.asked.label, "shaper": self.name, "process": started, "early_s": self._early_s, **values}
            for d, values in zip(self._directions, self._in_force, strict=True)
        ]

    def close(self) -> None:
        """See Shaper."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            raise RunFailed("the relay is not running")
        return self._process.ask(request)


def _make_tap(end: End, mtu: int) -> int:
    with inside(end.pid):
        fd = open_tap(end.interface)
    with Netlink(end.pid, end.border) as netlink:
        ours = {"address": end.hardware_address, "mtu": mtu, "txqlen": _TAP_QUEUE_PACKETS}
        netlink.ask("link", "set", index=netlink.index(end.interface), **ours)
    return fd


def _kernel_drops(direction: ShapedDirection) -> int:
    """Frames lost on the way into the relay, and on the way out of it. Raises RunFailed where it has none."""
    source, target = direction.source, direction.target
    into = interface_drops(source.pid, source.interface).sent
    return into + interface_drops(target.pid, target.interface).received
