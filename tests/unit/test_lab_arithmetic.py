"""Arithmetic of the lab: addresses, sizes, routes, verdicts, parsers."""

from __future__ import annotations

import math
from ipaddress import IPv4Network

import pytest

from testbed.errors import BadInput
from testbed.lab import addresses, counters, sizing, transport
from testbed.lab.metrics import Metrics
from testbed.lab.routing_tables import Hop, router_routes
from testbed.plan import framing
from testbed.plan.plan import Route
from testbed.plan.routes import by_datacenters
from testbed.planning.resolve import network_of
from testbed.spec.document import validate
from testbed.spec.topology import Direction, Topology


def direction(**values: float) -> Direction:
    settings = {"delay_s": 0.01, "rate_bps": 1e9, "queue_bytes": 0.0, "jitter_s": 0.0, "loss": 0.0} | values
    return Direction(link="a--b", source="a", target="b", **settings)


def topology(nodes: int, links: list[tuple[str, str, str]]) -> Topology:
    names = sorted({end for one, other, _ in links for end in (one, other)})
    document = {
        "name": "t",
        "datacenters": {name: {"nodes": nodes} for name in names},
        "links": [{"between": [one, other], "delay": delay, "rate": "1 Gbit/s"} for one, other, delay in links],
    }
    return validate(Topology, document, "t")


def all_paths(of: Topology) -> dict[tuple[str, str], Route]:
    return by_datacenters(network_of(of))


def test_every_subnet_is_its_own() -> None:
    subnets = [addresses.node_subnet(dc, node) for dc in range(100) for node in range(100)]
    subnets += [addresses.link_subnet(link) for link in range(5000)]
    every = [address for pair in subnets for address in pair]
    assert len(set(every)) == len(every)
    for dc in (0, 99):
        inside = IPv4Network(addresses.datacenter_network(dc))
        assert all(IPv4Network(a).subnet_of(inside) for n in (0, 99) for a in addresses.node_subnet(dc, n))
    assert len({addresses.hardware_address(address) for address in every}) == len(every)


def test_interface_names_fit() -> None:
    assert len(addresses.link_interface(10**6, "a-long-name-of-a-datacenter")) <= 15
    assert addresses.link_interface(3, "warsaw") == "wan3-warsaw"
    assert len(addresses.access_interface(99)) <= 15


def test_a_subnet_beyond_the_network_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        addresses.node_subnet(0, 2**14)


def test_initial_window_covers_twice_the_bdp_and_the_burst() -> None:
    path = sizing.route_facts([direction()], [direction()])
    assert path.bdp_bytes == 2.5e6
    assert sizing.initial_window(path, 1e6) == math.ceil(6e6 / 8948)
    inside = sizing.route_facts([], [])
    assert sizing.initial_window(inside, 1e6) == math.ceil(1e6 / 8948)
    assert sizing.initial_window(inside, 0) == 10


def test_the_slowest_hop_and_all_delays_count() -> None:
    path = sizing.route_facts([direction(), direction(rate_bps=1e8)], [direction(delay_s=0.03)])
    assert path == (1e8, pytest.approx(0.05))  # type: ignore[comparison-overlap]


def test_queue_room_is_as_asked_or_lossless() -> None:
    assert sizing.queue_room(direction(queue_bytes=50_000.0), 0.02, 8, 16e6) == 50_000
    assert sizing.queue_room(direction(), 0.02, 8, 16e6) == 8 * (2 * 2.5e6 + 32e6)
    assert sizing.queue_room(direction(rate_bps=1e6), 0.02, 1, 1e3) == 64 * 2**20


BACK = {"delay": "150 ms", "rate": "100 Mbit/s"}
UNLIKE = {"between": ["a", "b"], "delay": "0.05 ms", "rate": "1 Gbit/s", "reverse": BACK}


def test_windows_and_queues_hold_a_round_trip_of_each_way_at_its_own_rate() -> None:
    """What comes in is sent at the rate of the way back: 18.8 MB in a round trip of 150.05 ms at 1 Gbit/s."""
    document = {"name": "t", "datacenters": {"a": {"nodes": 1}, "b": {"nodes": 1}}, "links": [UNLIKE]}
    metrics = Metrics(network_of(validate(Topology, document, "t")), 1_000_000)
    fast, slow = (math.ceil((2 * rate * 0.15005 / 8 + 1e6) / 8948) for rate in (1e9, 1e8))
    from_a, from_b = metrics.of_route("a/0", "b", (0,), (1,)), metrics.of_route("b/0", "a", (1,), (0,))
    assert (from_a["initcwnd"], from_a["initrwnd"]) == (fast, slow)
    assert (from_b["initcwnd"], from_b["initrwnd"]) == (slow, fast)
    assert from_a["mtu"] == from_b["mtu"] == framing.MTU, "also where the route has no interface any more"
    assert metrics.queue_room(0) == pytest.approx(2 * (2 * 1e9 * 0.15005 / 8 + 2e6))
    for route_taken in (0, 1):  # of the link gate: also where no acknowledgement comes back while it measures
        path = sizing.RouteFacts((1e9, 1e8)[route_taken], 0.15005)
        assert (
            metrics.of_link(route_taken)["initcwnd"] * 8948 >= sizing.rate_probe_bytes(path) >= path.rate_bps * 1.5 / 8
        )


def test_no_window_is_larger_than_tcp_can_have() -> None:
    assert sizing.initial_window(sizing.RouteFacts(34e9, 1.0), 1e6) * 8948 < 2**30 + 8948


def test_a_timeout_comes_after_the_longest_wait_in_lossless_queues() -> None:
    """1 Gbit/s: 64 MB wait for 0.512 s; two directions, 10 ms each."""
    crossed = [(direction(), 64e6), (direction(), 64e6)]
    assert sizing.retransmission_floor_s(crossed) == pytest.approx(1.044)
    assert sizing.retransmission_floor_s([]) == 1.0
    assert sizing.retransmission_floor_s([(direction(rate_bps=1e6), 64e6)]) == 60.0
    assert sizing.retransmission_floor_s([*crossed, (direction(loss=0.01), 64e6)]) is None


@pytest.mark.parametrize(
    ("rate", "queue", "size"),
    [(1e6, 0.0, 9000), (1e8, 0.0, 12_500), (1e9, 0.0, 65_536), (1e9, 100e3, 25_000), (1e9, 9e3, 9000)],
)
def test_super_packets_take_a_millisecond_at_most(rate: float, queue: float, size: int) -> None:
    assert framing.gso_bytes([direction(), direction(rate_bps=rate, queue_bytes=queue)]) == size


@pytest.mark.parametrize(("gso", "size"), [(9000, 9014), (25_180, 2 * 9014), (65_536, 7 * 9014)])
def test_super_packets_are_full_segments(gso: int, size: int) -> None:
    assert framing.super_packet_bytes(gso) == size


def test_netem_limit_holds_flight_and_queue_twice() -> None:
    # nothing but acknowledgements of 66 bytes: 2 x ceil((1.25 MB + 16 MB) / 66)
    assert sizing.netem_limit(direction(), 16e6) == 2 * math.ceil(17.25e6 / 66)


def test_routes_follow_the_paths_hop_by_hop() -> None:
    chain = topology(1, [("a", "b", "1 ms"), ("b", "c", "1 ms")])
    hops = router_routes(all_paths(chain), chain.directions())
    assert set(hops) == {
        Hop("a", None, "b", 0),
        Hop("a", None, "c", 0),
        Hop("b", None, "a", 1),
        Hop("b", None, "c", 2),
        Hop("c", None, "b", 3),
        Hop("c", None, "a", 3),
    }


def test_a_pair_that_disagrees_with_a_router_on_its_way_is_routed_by_source() -> None:
    chain = topology(1, [("a", "b", "1 ms"), ("b", "c", "1 ms"), ("c", "d", "1 ms"), ("b", "d", "2 ms")])
    paths = all_paths(chain)
    paths["a", "d"] = (0, 2, 4)  # over c
    paths["b", "d"] = (6,)  # not over c: as long
    hops = router_routes(paths, chain.directions())
    assert Hop("b", "a", "d", 2) in hops
    assert Hop("b", None, "d", 6) in hops


def test_unconnected_datacenters_have_no_routes() -> None:
    islands = topology(1, [("a", "b", "1 ms"), ("c", "d", "1 ms")])
    assert ("a", "c") not in all_paths(islands)
    assert all_paths(islands)["a", "a"] == ()


def test_profiles_hold_what_is_in_flight() -> None:
    small = transport.profile("otn-lossless", 1e6)
    assert small.sysctls["net.ipv4.tcp_rmem"] == "4096 33554432 134217728"
    large = transport.profile("otn-lossless", 100e6)
    middle = int(large.sysctls["net.ipv4.tcp_rmem"].split()[1])
    assert middle >= 200e6
    assert not transport.profile("tcp-default", 1e6).sysctls
    assert small.sysctls_if_known == {"net.ipv4.tcp_tso_rtt_log": "31"}
    assert not transport.profile("tcp-default", 1e6).sysctls_if_known
    with pytest.raises(BadInput, match="otn-lossless, tcp-default, tcp-cubic, tcp-bbr"):
        transport.profile("rdma", 0)


def test_too_little_tcp_memory_is_said_with_the_remedy() -> None:
    assert transport.tcp_memory_warning("287901 383868 575802", 512 * 2**20) is None
    warning = transport.tcp_memory_warning("5667 7556 11334", 512 * 2**20)
    assert warning is not None
    assert "sysctl -w net.ipv4.tcp_mem=" in warning


def test_kernel_counters_are_parsed() -> None:
    text = "Tcp: RtoAlgorithm RetransSegs\nTcp: 1 7\nTcpExt: PruneCalled TCPTimeouts\nTcpExt: 0 3\n"
    assert counters.parse(text) == {
        "TcpRtoAlgorithm": 1,
        "TcpRetransSegs": 7,
        "TcpExtPruneCalled": 0,
        "TcpExtTCPTimeouts": 3,
    }
