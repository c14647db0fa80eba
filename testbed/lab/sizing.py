"""What follows from delay and rate: bandwidth-delay products, queue room, initial windows, retransmission timeouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from testbed.plan.framing import ACK_BYTES, MSS, MTU
from testbed.spec.topology import Direction

SMALLEST_QUEUE = 64 * 2**20
"""Bytes of room where a file does not say."""
_LARGEST_WINDOW = 2**30
"""TCP's own."""
_RATE_PROBE_S, _RATE_PROBE_ROUND_TRIPS, _RATE_PROBE_PACKETS = 0.6, 12, 100
_SHORTEST_TIMEOUT_S, _LONGEST_TIMEOUT_S = 1.0, 60.0


class RouteFacts(NamedTuple):
    """A route between two datacenters: its slowest rate (bit/s), its round-trip time (s), the BDP of both (bytes)."""

    rate_bps: float
    rtt_s: float

    @property
    def bdp_bytes(self) -> float:
        """Bytes that fill the route for one round trip."""
        return self.rate_bps * self.rtt_s / 8


def route_facts(there: Sequence[Direction], back: Sequence[Direction]) -> RouteFacts:
    """Facts of a route and of the one back; the rate is that of the first, infinite inside a datacenter."""
    rate = min((direction.rate_bps for direction in there), default=math.inf)
    return RouteFacts(rate, sum(direction.delay_s for direction in (*there, *back)))


def initial_window(route: RouteFacts, largest_burst_bytes: float) -> int:
    """Segments of a window for what is sent along a route: twice the BDP, and the largest burst.

    initcwnd is that of the route; initrwnd, for what comes in, that of the route back.
    """
    bdp = route.bdp_bytes if math.isfinite(route.rate_bps) else 0.0
    return max(10, math.ceil(min(_LARGEST_WINDOW, 2 * bdp + largest_burst_bytes) / MSS))


def rate_probe_bytes(route: RouteFacts) -> float:
    """What the link gate's measurement of a rate (probes.py) may send along a route.

    Its windows hold all of it: where acknowledgements come back more slowly than data goes, they would limit the rate.
    """
    return _RATE_PROBE_PACKETS * MTU + route.rate_bps * (_RATE_PROBE_S + _RATE_PROBE_ROUND_TRIPS * route.rtt_s) / 8


def retransmission_floor_s(directions: Iterable[tuple[Direction, float]], held_s: float = 0.0) -> float | None:
    """The least TCP may wait for an acknowledgement that crosses these directions, each with its queue's room in bytes.

    A segment may have to wait for full queues: where nothing is lost, an earlier timeout would only be spurious. None
    where losses are asked for, so that TCP recovers as it would. A link may send nothing for `held_s`.
    """
    total = 0.0
    for direction, room in directions:
        if direction.loss > 0:
            return None
        total += direction.delay_s + 8 * room / direction.rate_bps
    return min(max(_SHORTEST_TIMEOUT_S, total) + held_s, _LONGEST_TIMEOUT_S)


def queue_room(direction: Direction, rtt_s: float, nodes: int, largest_burst_bytes: float) -> float:
    """Bytes that may wait for the wire: as the file says, else what a lossless network would never overflow.

    TCP's initial window lets every node hand over two BDP and its largest burst at host speed; `rtt_s` is the longest
    round trip of what crosses the direction.
    """
    if direction.queue_bytes > 0:
        return direction.queue_bytes
    bdp = RouteFacts(direction.rate_bps, rtt_s).bdp_bytes
    return max(SMALLEST_QUEUE, nodes * (2 * bdp + 2 * largest_burst_bytes))


def netem_limit(direction: Direction, queue_bytes: float) -> int:
    """netem's `limit`: packets in flight and waiting together, twice over.

    R x D / 8 bytes are in flight. It bounds packets, not bytes: a GSO packet counts as one, and so does an
    acknowledgement. On a slow route back nearly all are acknowledgements, so all are taken for as small.
    """
    in_flight = direction.rate_bps * (direction.delay_s + direction.jitter_s) / 8
    return 2 * math.ceil((in_flight + queue_bytes) / ACK_BYTES)
