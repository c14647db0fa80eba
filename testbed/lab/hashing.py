"""Where the kernel's own multipath sends a connection's packets: next hops of equal cost, and what the hash picks.

With hash policy 3 the kernel hashes addresses, protocol and ports alone: policy 1 takes its word for packets that come
with a hash of their own, which TCP renews with every connection.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

from testbed.errors import RunFailed
from testbed.lab import addresses
from testbed.lab.namespaces import inside
from testbed.lab.transport import get_sysctl, set_sysctl
from testbed.plan.network_state import NetworkState
from testbed.plan.plan import Route
from testbed.plan.routes import datacenter_of
from testbed.spec.topology import Direction

if TYPE_CHECKING:
    from testbed.lab.lab import Lab

_POLICY = {"net.ipv4.fib_multipath_hash_policy": "3", "net.ipv4.fib_multipath_hash_fields": "55"}
"""Chosen fields, and these: 0x37, both addresses, the protocol, both ports."""

_SEED = "net.ipv4.fib_multipath_hash_seed"  # Linux 6.11
_SAME_DELAY_S = 1e-12


class Connection(NamedTuple):
    """Packets of TCP from one node's port to another node's port."""

    source: str
    source_port: int
    target: str
    target_port: int


def equal_hops(network: NetworkState) -> dict[tuple[str, str], tuple[int, ...]]:
    """(place, datacenter) -> the directions with which routes as short as the shortest begin, where there are several.

    As short is: the same delay and as many links.
    """
    directions = network.links
    places = (*network.datacenters, *network.switches)
    shortest = {place: network.routes_from(place) for place in places}
    found = {}
    for at in places:
        leaving = [
            index for index, direction in enumerate(directions) if direction.source == at and index not in network.down
        ]
        for target in network.datacenters:
            if target == at or target not in shortest[at]:
                continue
            delay_s, links = _length(directions, shortest[at][target])
            hops = []
            for index in leaving:
                rest = shortest[directions[index].target].get(target)
                if rest is not None:
                    this_s, these = _length(directions, (index, *rest))
                    if these == links and abs(this_s - delay_s) <= _SAME_DELAY_S:
                        hops.append(index)
            if len(hops) > 1:
                found[at, target] = tuple(hops)
    return found


def _length(directions: Sequence[Direction], route: Route) -> tuple[float, int]:
    return sum(directions[index].delay_s for index in route), len(route)


def hash_by_ports(pid: int, where: str, seed: int) -> dict[str, str]:
    """Have the router of process `pid` hash by ports; returns the settings as read back. Raises RunFailed.

    Every router needs a `seed` (above 0) of its own: the hash of a packet and of its answer is the same, so with one
    seed both would go over the same spine. A kernel that lets nobody give it one (before Linux 6.11) draws one for all
    its routers when it starts.
    """
    with inside(pid):
        for key, value in _POLICY.items():
            set_sysctl(key, value, where)
        found = {key: get_sysctl(key) for key in _POLICY}
        if os.path.exists("/proc/sys/" + _SEED.replace(".", "/")):  # noqa: PTH110 - one name, no path
            set_sysctl(_SEED, str(seed), where)
            found[_SEED] = get_sysctl(_SEED)
    return found


class Hashing:
    """Asks the routers of a lab which route packets take, rules and all. A context manager."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._opened = ExitStack()
        self._queries: dict[str, _Queries] = {}
        self._index: dict[tuple[str, str], int] = {}
        """(router, interface) -> its index."""
        self._leaving: dict[tuple[str, int], int] = {}
        """(router, index of an interface) -> the direction that begins there."""

    def __enter__(self) -> Hashing:
        lab = self._lab
        with ExitStack() as opened:
            for name, router in lab.routers.items():
                self._queries[name] = opened.enter_context(closing(_Queries(router.pid, name)))
                with inside(router.pid):
                    for index, interface in socket.if_nameindex():
                        self._index[name, interface] = index
            for number, direction in enumerate(lab.directions):
                there = self._index[direction.source, lab.places.link_interface(number)]
                self._leaving[direction.source, there] = number
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def route_taken(self, connection: Connection) -> Route:
        """The directions that packets of a connection take. Raises RunFailed when a router has no route for them."""
        lab = self._lab
        packet = connection._replace(source=lab.address(connection.source), target=lab.address(connection.target))
        at, goal = datacenter_of(connection.source), datacenter_of(connection.target)
        interface = addresses.access_interface(int(connection.source.partition("/")[2]))
        taken: list[int] = []
        while at != goal:
            out = self._leaving.get((at, self._queries[at].outgoing(packet, self._index[at, interface])))
            if out is None or len(taken) > len(lab.directions):
                raise RunFailed(f"{at}: packets from {connection.source} to {connection.target} go nowhere")
            taken.append(out)
            at, interface = lab.directions[out].target, lab.places.link_interface(out ^ 1)
        return tuple(taken)


_RTM_NEWROUTE, _RTM_GETROUTE, _NLMSG_ERROR = 24, 26, 2
_NLM_F_REQUEST = 0x1
_RTA_DST, _RTA_SRC, _RTA_IIF, _RTA_OIF, _RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT = 1, 2, 3, 4, 27, 28, 29
_HEADER, _ROUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI")
_ANSWER_S = 10.0


class _Queries:
    """Route look-ups in one network namespace. pyroute2 does not know ports, and takes longer than thousands may."""

    def __init__(self, pid: int, where: str) -> None:
        self._where = where
        with inside(pid):
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.settimeout(_ANSWER_S)

    def close(self) -> None:
        self._socket.close()

    def outgoing(self, packet: Connection, arrived_by: int) -> int:
        """The index of the interface by which a packet leaves that came in by another; its ends are addresses.

        Raises RunFailed.
        """
        attributes = b"".join(
            (
                _attribute(_RTA_DST, socket.inet_aton(packet.target)),
                _attribute(_RTA_SRC, socket.inet_aton(packet.source)),
                _attribute(_RTA_IIF, struct.pack("=i", arrived_by)),
                _attribute(_RTA_IP_PROTO, struct.pack("=B", socket.IPPROTO_TCP)),
                _attribute(_RTA_SPORT, struct.pack("!H", packet.source_port)),
                _attribute(_RTA_DPORT, struct.pack("!H", packet.target_port)),
            )
        )
        body = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0) + attributes
        try:
            self._socket.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body)
            answer = self._socket.recv(1 << 16)
        except OSError as error:
            raise RunFailed(f"{self._where}: netlink route get {packet} failed: {error}") from error
        kind = _HEADER.unpack_from(answer)[1]
        if kind != _RTM_NEWROUTE:
            code = -struct.unpack_from("=i", answer, _HEADER.size)[0] if kind == _NLMSG_ERROR else 0
            raise RunFailed(f"{self._where}: netlink route get {packet} was refused: {os.strerror(code)}")
        return int(struct.unpack("=i", _attributes(answer[_HEADER.size + _ROUTE.size :])[_RTA_OIF])[0])


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(data: bytes) -> Mapping[int, bytes]:
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        found[kind] = data[at + 4 : at + length]
        at += length + -length % 4
    return found
