"""Which router sends what where: default routes as routing-table entries, and these entries in the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.lab import addresses
from testbed.lab.metrics import Metrics
from testbed.lab.netlink import Netlink
from testbed.plan.network_state import NetworkState
from testbed.plan.routes import datacenter_of
from testbed.spec.topology import Direction

if TYPE_CHECKING:
    from testbed.lab.lab import Lab

RoutesOfPairs = Mapping[tuple[str, str], Sequence[int]]
"""(source, target) of every connected pair of places -> indexes of directions; () from a place to itself."""

_SOURCE_TABLES = 1000
"""Routing tables for traffic by source datacenter start here."""


class Hop(NamedTuple):
    """At router `at`, traffic to place `target` leaves by direction `out` (index into directions()).

    `source` is None for everybody's traffic, or the only place whose traffic this entry is for.
    """

    at: str
    source: str | None
    target: str
    out: int


_MAIN_TABLE = 254
_PLACE_BITS = 16


def forget_routes(lab: Lab) -> None:
    """Remove from all routers what `route_routers` wrote, as far as the kernel still has it. Raises RunFailed."""
    first, last = _SOURCE_TABLES, _SOURCE_TABLES + len(lab.places.number_of)
    for router in lab.routers.values():
        with lab.netlink(router) as netlink:
            for message in netlink.ask("get_routes", family=2):
                table = message.get_attr("RTA_TABLE")
                if message["dst_len"] == _PLACE_BITS and (table == _MAIN_TABLE or first <= table < last):
                    dst = f"{message.get_attr('RTA_DST')}/{_PLACE_BITS}"
                    netlink.ask("route", "del", dst=dst, table=table)
            for rule in netlink.ask("get_rules", family=2):
                table = rule.get_attr("FRA_TABLE")
                if first <= table < last:
                    source = f"{rule.get_attr('FRA_SRC')}/{rule['src_len']}"
                    netlink.ask("rule", "del", src=source, table=table, priority=table)


def default_routes_of(network: NetworkState) -> dict[tuple[str, str], Sequence[int]]:
    """The network's default routes, and those from and to switches, which nothing but probes and pings uses."""
    found: dict[tuple[str, str], Sequence[int]] = dict(network.routes)
    for source in (*network.datacenters, *network.switches) if network.switches else ():
        for target, route in network.routes_from(source).items():
            found.setdefault((source, target), route)
    return found


def router_routes(routes: RoutesOfPairs, directions: Sequence[Direction]) -> list[Hop]:
    """Entries that make every pair of places use exactly its path, hop by hop.

    Most pairs agree with the routers on their way; a pair that does not (equal delays) gets entries by source.
    """
    entries = [Hop(source, None, target, path[0]) for (source, target), path in routes.items() if path]
    for (source, target), path in routes.items():
        for index in path[1:]:
            at = directions[index].source
            if routes[at, target][0] != index:
                entries.append(Hop(at, source, target, index))
    return entries


def route_routers(lab: Lab, routes: RoutesOfPairs, several: Mapping[tuple[str, str], Sequence[int]]) -> None:
    """Write the entries of all routers into a lab. Raises RunFailed when the kernel refuses one.

    Where (router, target) has `several` directions, the default one among them, the kernel shares traffic among these.
    """
    hops = router_routes(routes, lab.directions)
    for name, router in lab.routers.items():
        with lab.netlink(router) as netlink:
            for hop in (h for h in hops if h.at == name):
                outs = several.get((name, hop.target), ()) if hop.source is None else ()
                entry: dict[str, Any] = {"dst": lab.places.network(hop.target), "prefsrc": lab.address(name)}
                if hop.out in outs:
                    entry["multipath"] = [next_hop(lab, netlink, out) for out in outs]
                else:
                    entry |= next_hop(lab, netlink, hop.out)
                if hop.source is not None:
                    entry["table"] = _SOURCE_TABLES + lab.places.number_of[hop.source]
                    _rule(netlink, lab.places.network(hop.source), entry["table"])
                netlink.ask("route", "add", **entry)


def next_hop(lab: Lab, netlink: Netlink, direction: int) -> dict[str, Any]:
    """What a route says to leave the router of `netlink` by a direction that begins there."""
    oif = netlink.index(lab.places.link_interface(direction))
    return {"gateway": lab.places.link_ends(direction).target_address, "oif": oif}


def _rule(netlink: Netlink, source: str, table: int) -> None:
    known = {rule.get_attr("FRA_TABLE") for rule in netlink.ask("get_rules")}
    if table not in known:
        netlink.ask("rule", "add", src=source, table=table, priority=table)


def route_nodes(lab: Lab, routes: RoutesOfPairs, metrics: Metrics | None) -> None:
    """Have every node send to its router, with TCP's `metrics` where given, instead of how it was. Raises RunFailed."""
    for node in lab.nodes:
        datacenter, gateway = datacenter_of(node), lab.places.subnet(node).first
        with lab.netlink(lab.containers[node]) as netlink:
            oif = netlink.index(addresses.NODE_INTERFACE)
            netlink.ask("route", "replace", dst="default", gateway=gateway, oif=oif)
            for (source, target), there in routes.items():
                if source != datacenter or target in lab.places.switches:
                    continue
                entry: dict[str, Any] = {"dst": lab.places.network(target), "gateway": gateway, "oif": oif}
                if metrics is not None:
                    back = tuple(routes.get((target, source), ()))
                    entry["metrics"] = metrics.of_route(node, target, tuple(there), back)
                netlink.ask("route", "replace", **entry)
