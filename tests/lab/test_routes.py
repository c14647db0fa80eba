"""Packets take the routes of the plan: parallel links, and single flows that leave the default route."""

from __future__ import annotations

from collections import Counter
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
    from testbed.lab.lab import Lab

    counts = []
    with Lab(network(datacenters, links, routes), shaper="relay") as lab:
        for wanted in [None, *exceptions]:
            if wanted is not None:
                lab.routes.use({(one["source"], one["target"]): tuple(one["route"]) for one in wanted})
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


FABRIC = [
    {"between": [leaf, spine], "delay": "1 ms", "rate": "1 Gbit/s"} for leaf in ("a", "b") for spine in ("s", "t")
]


def everybody() -> dict[str, Any]:
    """Mininet's ping from everybody to everybody in a Clos of two leaves and two spines, and the spines' addresses."""
    from testbed.lab.lab import Lab

    with Lab(network({"a": 1, "b": 1, "s": 0, "t": 0}, FABRIC), shaper="relay") as lab:
        return {"loss": lab.net.pingAll(timeout="2"), "addresses": [lab.address("s"), lab.net["t"].IP()]}


def test_switches_have_addresses_and_answer() -> None:
    assert in_sandbox(everybody) == {"loss": 0, "addresses": ["10.3.0.1", "10.4.0.1"]}


def test_a_flow_is_pinned_to_another_spine_each_way() -> None:
    there = [{"source": "a/0", "target": "b/0", "route": [2, 7]}]
    both = [*there, {"source": "b/0", "target": "a/0", "route": [6, 3]}]
    found = in_sandbox(carried, {"a": 1, "b": 1, "s": 0, "t": 0}, FABRIC, [], [there, both], "a/0", "b/0")
    assert found == [
        [PINGS, PINGS, 0, 0, PINGS, PINGS, 0, 0],
        [0, PINGS, PINGS, 0, PINGS, 0, 0, PINGS],
        [0, 0, PINGS, PINGS, 0, 0, PINGS, PINGS],
    ]


def lost_and_back(shaper: str, enforcement: str) -> list[list[int]]:
    """Packets on every direction while a/0 pings b/0, pinned to the second spine: before, without it, and after."""
    from dataclasses import replace

    from testbed.lab.lab import Lab

    pinned = {("a/0", "b/0"): (2, 7), ("b/0", "a/0"): (6, 3)}
    plan = replace(network({"a": 1, "b": 1, "s": 0, "t": 0}, FABRIC), enforcement=enforcement)  # type: ignore[arg-type]
    counts = []
    with Lab(plan, shaper=shaper) as lab:
        for step in ("", "lose", "restore"):
            if step == "lose":
                lab.routes.lose("t")
            elif step == "restore":
                lab.routes.restore()
            lab.routes.use({} if step == "lose" else pinned)
            before = lab.counters()
            lab.containers["a/0"].run(["ping", "-c", str(PINGS), "-i", "0.05", "-q", lab.address("b/0")])
            counts.append([now.since(then).packets for now, then in zip(lab.counters(), before, strict=True)])
    return counts


@pytest.mark.parametrize("enforcement", ["rules", "ports"])
def test_a_lost_spine_and_its_return(enforcement: str) -> None:
    there, elsewhere = [0, 0, PINGS, PINGS, 0, 0, PINGS, PINGS], [PINGS, PINGS, 0, 0, PINGS, PINGS, 0, 0]
    assert in_sandbox(lost_and_back, "relay", enforcement) == [there, elsewhere, there]


EACH = 6
"""Connections for each way there and back."""


def hashed() -> list[dict[str, Any]]:
    """TCP connections through routers that hash, for each way there and back: look-ups, and what directions carried."""
    import socket
    from dataclasses import replace

    from testbed.lab.hashing import Connection, Hashing
    from testbed.lab.lab import Lab
    from testbed.lab.namespaces import inside

    plan = replace(network({"a": 1, "b": 1, "s": 0, "t": 0}, FABRIC), enforcement="ports")
    found: list[dict[str, Any]] = []
    with Lab(plan, shaper="relay") as lab, Hashing(lab) as hashing:
        with inside(lab.containers["b/0"].pid):
            listener = socket.create_server((lab.address("b/0"), 0))
        for port in range(20_000, 20_400):
            there = Connection("a/0", port, "b/0", listener.getsockname()[1])
            back = Connection("b/0", there.target_port, "a/0", port)
            routes = sorted(hashing.route_taken(there) + hashing.route_taken(back))
            if [one["routes"] for one in found].count(routes) == EACH:
                continue
            with inside(lab.containers["a/0"].pid):
                sender = socket.socket()
            sender.bind((lab.address("a/0"), port))
            before = lab.counters()
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
            sender.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(receiver.recv(left))
            carried = [now.since(then).packets for now, then in zip(lab.counters(), before, strict=True)]
            found.append({"routes": routes, "carried": carried})
            sender.close()
            receiver.close()
    return found


def test_the_kernels_hash_sends_tcp_where_a_look_up_says() -> None:
    found = in_sandbox(hashed)
    for one in found:
        assert [index for index, packets in enumerate(one["carried"]) if packets > 2] == one["routes"], one
    ways = Counter(tuple(one["routes"]) for one in found)
    assert sorted(ways.values()) == [EACH] * 4  # either spine there, either spine back


def lost_twice() -> list[list[int]]:
    """Packets from a to each of three spines while a/0 pings b/0: with all, without one, without two, and after."""
    from testbed.lab.lab import Lab

    fabric = [{"between": [at, spine], "delay": "1 ms", "rate": "1 Gbit/s"} for spine in "stu" for at in "ab"]
    counts = []
    with Lab(network({"a": 1, "b": 1, "s": 0, "t": 0, "u": 0}, fabric), shaper="relay") as lab:
        for step in ("", "s", "t", "restore"):
            if step == "restore":
                lab.routes.restore()
            elif step:
                lab.routes.lose(step)
            before = lab.counters()
            lab.containers["a/0"].run(["ping", "-c", str(PINGS), "-i", "0.05", "-q", lab.address("b/0")])
            seen = [now.since(then).packets for now, then in zip(lab.counters(), before, strict=True)]
            counts.append([seen[4 * spine] for spine in range(3)])
    return counts


def test_what_is_lost_stays_lost_when_more_is() -> None:
    first, second, third = [PINGS, 0, 0], [0, PINGS, 0], [0, 0, PINGS]
    assert in_sandbox(lost_twice) == [first, second, third, first]
