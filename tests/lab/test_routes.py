"""Packets take the routes of the plan: parallel links, and single flows that leave the default route."""

from __future__ import annotations

from typing import Any

import pytest
from in_sandbox import in_sandbox
from networks import network

pytestmark = pytest.mark.root

PARALLEL = [
    {"name": "north", "between": ["a", "b"], "delay": "2 ms", "rate": "1 Gbit/s"},
    {"name": "south", "between": ["a", "b"], "delay": "4 ms", "rate": "1 Gbit/s"},
]
RING = [
    {"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"},
    {"between": ["b", "c"], "delay": "1 ms", "rate": "1 Gbit/s"},
    {"between": ["a", "c"], "delay": "9 ms", "rate": "1 Gbit/s"},
]
PINGS = 5


def carried(
    datacenters: dict[str, int],
    links: list[dict[str, Any]],
    routes: list[dict[str, Any]],
    exceptions: list[list[dict[str, Any]]],
    source: str,
    target: str,
) -> list[list[int]]:
    """Packets on every direction while `source` pings `target`: by default, then under each set of exceptions."""
    from testbed.lab.network import Lab

    counts = []
    with Lab(network(datacenters, links, routes), shaper="relay") as lab:
        for wanted in [None, *exceptions]:
            if wanted is not None:
                lab.use_routes({(one["source"], one["target"]): tuple(one["route"]) for one in wanted})
            before = lab.counters()
            lab.containers[source].run(["ping", "-c", str(PINGS), "-i", "0.05", "-q", lab.address(target)])
            counts.append([now.since(then).packets for now, then in zip(lab.counters(), before, strict=True)])
    return counts


def test_a_file_sends_traffic_over_the_second_of_two_parallel_links() -> None:
    south = [{"from": "a", "to": "b", "via": ["south"]}]
    (found,) = in_sandbox(carried, {"a": 1, "b": 1}, PARALLEL, south, [], "a/0", "b/0")
    assert found == [0, PINGS, PINGS, 0]


def test_one_pair_of_nodes_leaves_the_default_route_and_comes_back_to_it() -> None:
    away = [{"source": "a/0", "target": "b/0", "route": [2]}]
    both = [*away, {"source": "b/0", "target": "a/0", "route": [3]}]
    found = in_sandbox(carried, {"a": 2, "b": 2}, PARALLEL, [], [away, both, []], "a/0", "b/0")
    assert found == [[PINGS, PINGS, 0, 0], [0, PINGS, PINGS, 0], [0, 0, PINGS, PINGS], [PINGS, PINGS, 0, 0]]


def test_its_neighbour_stays_on_the_default_route() -> None:
    away = [{"source": "a/0", "target": "b/0", "route": [2]}]
    found = in_sandbox(carried, {"a": 2, "b": 2}, PARALLEL, [], [away], "a/1", "b/0")
    assert found[1] == [PINGS, PINGS, 0, 0]


def test_a_flow_may_take_the_long_way_round() -> None:
    """By default a reaches c over b; the exception takes the direct link one way, and b's border on the other."""
    direct = [{"source": "a/0", "target": "c/0", "route": [4]}]
    found = in_sandbox(carried, {"a": 1, "b": 1, "c": 1}, RING, [], [direct], "a/0", "c/0")
    assert found == [[PINGS, PINGS, PINGS, PINGS, 0, 0], [0, PINGS, 0, PINGS, PINGS, 0]]
