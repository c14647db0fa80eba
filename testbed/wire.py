"""What a message weighs on the wire: segments, their headers, and the MTU that all links of the lab share."""

from __future__ import annotations

import math

MTU = 9000
"""Bytes of the largest IP packet."""

ETHERNET_HEADER = 14
IP_TCP_HEADERS = 52
"""IPv4 (20) and TCP with timestamps (32)."""

MSS = MTU - IP_TCP_HEADERS
"""TCP payload of a full segment."""


def wire_bytes(payload_bytes: float) -> float:
    """Bytes on the wire of a message: its payload and the headers of the segments that carry it."""
    return payload_bytes + math.ceil(payload_bytes / MSS) * (ETHERNET_HEADER + IP_TCP_HEADERS)
