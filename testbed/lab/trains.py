"""Trains: packets that one node sends another back to back, along a route of their own, while others take theirs.

The kernel stamps packets as they come, so that nobody has to look at them meanwhile.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

from testbed.lab.echoes import SO_TIMESTAMPNS, TIMESPEC_BYTES, arrival_ns
from testbed.lab.probes import Ends, give_room, udp
from testbed.plan.framing import ETHERNET_HEADER, MTU

TYPE_OF_SERVICE = 0x10
"""Of their packets (RFC 1349: least delay), which nothing else in a lab has: by it routers tell them from others."""

_STAMP = struct.Struct("=iq")
_LEAST_BYTES = ETHERNET_HEADER + 20 + 8 + _STAMP.size
_ROOM_BYTES = 1 << 26


def stamps() -> socket.socket:
    """As long as this is open the kernel stamps all packets that come. To begin with that it takes a while, in which it
    stamps them when they are read: a socket that asks for it and is sent packets at once would say what is not so.
    """
    keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    keeper.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return keeper


class Arrivals(NamedTuple):
    """Of a train of which half or more has come."""

    first_s: float
    """From when its first packet was sent until that came ..."""
    last_s: float
    """... and until the last one did; where packets are missing, as those that came say."""
    sent_s: float
    """How long it took to send."""


class Train:
    """One that is on its way: it has left when this is made, and is no more once it was asked what has `arrived`."""

    def __init__(self, ends: Ends, packets: int, frame_bytes: int, own_route: AbstractContextManager[None]) -> None:
        """Of so many packets, which take their own route as long as the context lasts."""
        self._packets, self._stack = packets, ExitStack()
        with ExitStack() as opened:
            opened.enter_context(own_route)
            sender, self._receiver = opened.enter_context(udp(ends))
            give_room(self._receiver, socket.SO_RCVBUF, _ROOM_BYTES)
            give_room(sender, socket.SO_SNDBUF, _ROOM_BYTES)
            self._receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TYPE_OF_SERVICE)
            padding, begun_ns = bytes(frame_bytes - _LEAST_BYTES), time.monotonic_ns()
            for number in range(packets):
                sender.send(_STAMP.pack(number, begun_ns) + padding)
            self._sent_s = (time.monotonic_ns() - begun_ns) / 1e9
            self._stack = opened.pop_all()

    def arrived(self, within_s: float = 0.0) -> Arrivals | None:
        """What has come, once all has or when so long has passed; None of less than half."""
        came, until = dict[int, float](), time.monotonic() + within_s
        with self._stack:
            while len(came) < self._packets:
                if not select.select([self._receiver], [], [], max(0.0, until - time.monotonic()))[0]:
                    break
                packet, control, _, _ = self._receiver.recvmsg(MTU, socket.CMSG_SPACE(TIMESPEC_BYTES))
                number, sent_ns = _STAMP.unpack_from(packet)
                came[number] = (arrival_ns(control) - sent_ns) / 1e9
        return arrivals(came, self._packets, self._sent_s)


def arrivals(came: dict[int, float], packets: int, sent_s: float) -> Arrivals | None:
    """Of a train of so many packets, sent in so long, by their numbers when those came that did, since it left."""
    if len(came) < max(2, packets / 2):
        return None
    first, last = min(came), max(came)
    each_s = (came[last] - came[first]) / (last - first)
    first_s = came[first] - first * each_s
    return Arrivals(first_s, first_s + (packets - 1) * each_s, sent_s)
