"""ICMP echoes, as ping sends them, of many ends at once in this process.

Not by ping itself: between an answer and the next request, when it expects nothing, it calls sched_yield over and over
for up to 10 ms. On the virtual clock every call takes a microsecond: to measure a link of less than 15 ms there and
back took more of a host's processor than all the training behind it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence

_REQUEST, _ANSWER = 8, 0
_HEADER = struct.Struct("!BBHHH")
"""Type, code, checksum, identifier, number."""

_STAMP = struct.Struct("=q")
_LARGEST_READ = 256
_READINGS = 10
_AT_ONCE_NS = 10_000
"""Two readings of clocks between which no more passes are of the same moment: a virtual clock takes 2 us for them."""

SO_TIMESTAMPNS = 35  # asm-generic; the socket module lacks it
_TIMESPEC = struct.Struct("=qq")
TIMESPEC_BYTES = _TIMESPEC.size


class Echoes:
    """Requests to one address from a raw ICMP socket of its own, and the round trips of those that were answered."""

    def __init__(self, own: socket.socket, address: str, payload_bytes: int) -> None:
        self._socket, self._payload_bytes = own, payload_bytes
        self._identifier = os.getpid() & 0xFFFF
        self._answered = set[int]()
        self.round_trips_s: list[float] = []
        own.setblocking(False)
        own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # of arrival: whenever this process has its turn
        own.connect((address, 0))

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, number: int) -> None:
        """Send a request; where the network refuses it, it is one that is not answered."""
        data = _STAMP.pack(time.monotonic_ns()).ljust(self._payload_bytes, b"\0")
        checksum = internet_checksum(_HEADER.pack(_REQUEST, 0, 0, self._identifier, number) + data)
        with contextlib.suppress(OSError):
            self._socket.send(_HEADER.pack(_REQUEST, 0, checksum, self._identifier, number) + data)

    def receive(self) -> None:
        """Take in a packet that has come, or word that one could not be delivered."""
        try:
            packet, control, _, _ = self._socket.recvmsg(_LARGEST_READ, socket.CMSG_SPACE(_TIMESPEC.size))
        except OSError:
            return
        begin = 4 * (packet[0] & 0xF)  # behind the IP header
        if len(packet) < begin + _HEADER.size + _STAMP.size:
            return
        kind, _, _, identifier, number = _HEADER.unpack_from(packet, begin)
        if (kind, identifier) != (_ANSWER, self._identifier) or number in self._answered:
            return
        (sent_ns,) = _STAMP.unpack_from(packet, begin + _HEADER.size)
        arrived_ns = arrival_ns(control)
        if arrived_ns <= sent_ns:
            return  # the clock of dates was set meanwhile: nobody knows
        self._answered.add(number)
        self.round_trips_s.append((arrived_ns - sent_ns) / 1e9)


def arrival_ns(control: Sequence[tuple[int, int, bytes]]) -> int:
    """When the kernel had a packet, by the steady clock: the kernel says it by that of dates, which may be set.

    Both clocks are read at once. A process that loses its turn between the two readings reads them again: what passed
    meanwhile would make the packet as much earlier as it is, before it was sent even.
    """
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            steady_ns, dates_ns = _both_clocks_ns()
            return steady_ns - max(0, dates_ns - int(seconds * 10**9 + nanoseconds))
    return time.monotonic_ns()


def _both_clocks_ns() -> tuple[int, int]:
    """The steady clock and that of dates, of the narrowest of a few readings, the first that is narrow enough."""
    narrowest_ns, both = sys.maxsize, (0, 0)
    for _ in range(_READINGS):
        before_ns, dates_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after_ns - before_ns < narrowest_ns:
            narrowest_ns, both = after_ns - before_ns, (before_ns, dates_ns)
        if narrowest_ns <= _AT_ONCE_NS:
            break
    return both


def exchange(echoes: Sequence[Echoes], count: int, interval_s: float, patience_s: float) -> None:
    """Send `count` requests each, one every interval; returns when all are answered, or `patience_s` after the last."""
    begin, sent = time.monotonic(), 0
    last = begin + count * interval_s + patience_s
    while (now := time.monotonic()) < last:
        due = begin + sent * interval_s
        if sent < count and now >= due:
            for one in echoes:
                one.send(sent)
            sent += 1
            continue
        if sent == count and all(len(one.round_trips_s) == count for one in echoes):
            return
        until = due if sent < count else last
        for one in select.select(echoes, [], [], max(0.0, until - now))[0]:
            one.receive()


def internet_checksum(data: bytes) -> int:
    """RFC 1071, of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
