"""What a message weighs on the wire: segments, their headers, the MTU that all links share, and super-packets."""

from __future__ import annotations

import math
from collections.abc import Iterable

from testbed.spec.topology import Direction

MTU = 9000
"""Bytes of the largest IP packet."""

ETHERNET_HEADER = 14
IP_TCP_HEADERS = 52
"""IPv4 (20) and TCP with timestamps (32)."""

MSS = MTU - IP_TCP_HEADERS
"""TCP payload of a full segment."""

PREAMBLE_BYTES = 48
"""What gloo puts before a message's payload, in the same call and so in the same segments."""

ACK_BYTES = ETHERNET_HEADER + IP_TCP_HEADERS
"""A packet without data. Every super-packet is acknowledged by one as it arrives: routes have `quickack`."""

WARMUP_ROUNDS = 4
"""Messages that a worker sends each of its neighbours, one after the other, before it says that it is connected."""

LARGEST_GSO = 65536
"""Bytes of the longest super-packet that any interface of a lab takes."""
_GSO_SECONDS = 1e-3
"""How much of a link's time one super-packet may take: it is delivered as one block."""


def wire_bytes(payload_bytes: float) -> float:
    """Bytes on the wire of a message: its payload and the headers of the segments that carry it.

    Gloo's preamble is in these segments: it is among what gloo adds, but may need one more of them.
    """
    segments = math.ceil((payload_bytes + PREAMBLE_BYTES) / MSS) if payload_bytes else 0
    return payload_bytes + segments * (ETHERNET_HEADER + IP_TCP_HEADERS)


def equal_parts(elements: int, count: int) -> list[int]:
    """How many elements of a message each of `count` streams carries: as equal as can be, the larger parts first; fewer
    parts where there are not so many elements.
    """
    each, more = divmod(elements, count)
    return [each + (number < more) for number in range(min(elements, count))]


def part_bytes(payload_bytes: float, element_bytes: int, streams: int) -> tuple[float, ...]:
    """Payload bytes of the parts of a message, each of which is sent over a stream of its own."""
    if streams == 1:
        return (payload_bytes,)
    parts = equal_parts(math.ceil(payload_bytes / element_bytes), streams)
    return tuple(float(element_bytes * part) for part in parts)


def there_and_back(payload_bytes: float, gso: int, gloo_bytes: float, notice_bytes: float) -> tuple[float, float]:
    """All wire bytes that a message's sender and its receiver send each other for it.

    There: the message with what gloo adds, and the acknowledgement of its receive's notice. Back: that notice, and the
    acknowledgements of the packet ahead of the message and of its super-packets, which are limited by `gso`.
    """
    size, acknowledged = sent_and_acknowledged(payload_bytes, gso, gloo_bytes, notice_bytes)
    return size + ACK_BYTES, acknowledged + notice_bytes


def sent_and_acknowledged(payload_bytes: float, gso: int, gloo_bytes: float, notice_bytes: float) -> tuple[float, int]:
    """Wire bytes of a message with what gloo adds, and of the acknowledgements of its packets: of the one ahead of it,
    and of its super-packets, which are limited by `gso`.
    """
    size = wire_bytes(payload_bytes) + gloo_bytes
    packets = 1 + math.ceil((size - notice_bytes) / super_packet_bytes(gso))
    return size, packets * ACK_BYTES


def gso_bytes(directions: Iterable[Direction]) -> int:
    """The longest super-packet allowed towards links: 1 ms of the slowest, a quarter of the least queue that a file
    asks for, 64 KiB; at least the MTU, and no more where a link loses or delays packet by packet.
    """
    limits = [float(LARGEST_GSO)]
    for direction in directions:
        if direction.loss or direction.jitter_s:
            return MTU
        limits.append(direction.rate_bps * _GSO_SECONDS / 8)
        if direction.queue_bytes:
            limits.append(direction.queue_bytes / 4)
    return int(max(min(limits), MTU))


def super_packet_bytes(gso: int) -> int:
    """Wire bytes of the longest super-packet that TCP makes under a limit of `gso` bytes: full segments."""
    return max(1, gso // MTU) * (MTU + ETHERNET_HEADER)
