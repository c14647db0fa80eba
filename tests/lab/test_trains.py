"""A train of packets takes the route that it is sent along, and tells its delay and its rate."""

from __future__ import annotations

import pytest
from in_sandbox import in_sandbox
from networks import network

from testbed.lab.shaping.passage import MOST_S

pytestmark = pytest.mark.root

LINKS = [
    {"name": "north", "between": ["a", "b"], "delay": "2 ms", "rate": "1 Gbit/s"},
    {"name": "south", "between": ["a", "b"], "delay": "4 ms", "rate": "60 Mbit/s"},
]
PACKETS, FRAME = 400, 1500


def sent(packets: int) -> list[list[float]]:
    """Of trains over either link, read long after they came: their times, and what every direction carried."""
    import time

    from testbed.lab.lab import Lab

    found = []
    with Lab(network({"a": 1, "b": 1}, LINKS, []), shaper="relay") as lab:
        lab.stamp_packets()
        lab.routes.use({("a/0", "b/0"): (2,)})  # what else this pair sends goes another way
        for route in ((0,), (2,), (0,)):
            before, train = lab.counters(), lab.send_train("a/0", "b/0", route, packets, FRAME)
            time.sleep(0.3)
            came = train.arrived()
            counts = [now.since(then).wire_bytes for now, then in zip(lab.counters(), before, strict=True)]
            found.append([*(came or ()), *counts])
    return found


def test_it_tells_the_delay_and_the_rate_of_its_route_whenever_it_is_read() -> None:
    north, south, again = in_sandbox(sent, PACKETS)
    assert [north[3:], south[3:], again[3:]] == [[600e3, 0, 0, 0], [0, 0, 600e3, 0], [600e3, 0, 0, 0]]
    for came, delay_s, rate_bps in ((north, 2e-3, 1e9), (south, 4e-3, 60e6), (again, 2e-3, 1e9)):
        first_s, last_s, sent_s = came[:3]
        wire_s = 8 * (PACKETS - 1) * FRAME / rate_bps
        assert last_s - first_s > 0.8 * wire_s, "no faster than the link"
        if sent_s < wire_s > 0.05:  # shorter ones a busy machine may stretch
            assert last_s - first_s < 3 * wire_s
        assert first_s > delay_s - MOST_S  # what a passage takes by itself is taken off
