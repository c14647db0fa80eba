"""Ports with which the routers' hash sends every pair of nodes over the wanted route, and the connections there are.

Gloo leaves its ports to the kernel, which picks them from a node's ip_local_port_range. In a range of two, its listener
gets the odd one and all its connections the even one: Linux keeps odd ports for bind and even ones for connect, and one
port serves connections to different addresses. Of two nodes the one with the greater address connects. So one number
for each node decides what all its connections hash to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

from testbed.lab.hashing import Connection
from testbed.plan.plan import Route

NodePair = tuple[str, str]
"""Source node, target node."""

RANGE = "net.ipv4.ip_local_port_range"

_FIRST, _LAST = 32768, 60998
_TRIES = 1024
"""Ports tried for a node: of two next hops, enough for ten routes wanted of it."""

_ESTABLISHED = "01"


class PortChoice(NamedTuple):
    """An even port for every node, and the pairs that take their route with these."""

    port_of: Mapping[str, int]
    hashed: frozenset[NodePair]


def between(nodes: NodePair, port_of: Mapping[str, int], address_of: Mapping[str, str]) -> Connection:
    """Packets from the first node to the second over gloo's connection, when `port_of` has their even ports."""
    source, target = nodes
    connects = IPv4Address(address_of[source]) > IPv4Address(address_of[target])
    return Connection(source, port_of[source] + (not connects), target, port_of[target] + connects)


def choose(
    wanted: Mapping[NodePair, Route],
    first: Iterable[NodePair],
    address_of: Mapping[str, str],
    route_taken: Callable[[Connection], Route],
) -> PortChoice:
    """Ports node by node, each with as many of the wanted routes to the nodes before it as can be had.

    Those of the pairs `first` come before any others.
    """
    important = frozenset(first)
    port_of: dict[str, int] = {}
    hashed: set[NodePair] = set()
    for node in dict.fromkeys(node for pair in wanted for node in pair):
        mine = [pair for pair in wanted if node in pair and all(end in port_of or end == node for end in pair)]
        best: tuple[tuple[int, int], int, list[NodePair]] = ((-1, -1), _FIRST, [])
        for port in range(_FIRST, min(_LAST, _FIRST + 2 * _TRIES), 2):
            tried = port_of | {node: port}
            took = [pair for pair in mine if route_taken(between(pair, tried, address_of)) == wanted[pair]]
            worth = sum(pair in important for pair in took), len(took)
            if worth > best[0]:
                best = worth, port, took
            if len(took) == len(mine):
                break
        port_of[node] = best[1]
        hashed.update(best[2])
    return PortChoice(port_of, frozenset(hashed))


def connections(pid: int, source: str, node_at: Mapping[str, str]) -> list[Connection]:
    """The connections of the node `source` to other nodes; `pid` is its container's, `node_at` the nodes by address."""
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        (_, port), (address, target_port) = _end(local), _end(remote)
        if state == _ESTABLISHED and address in node_at:
            found.append(Connection(source, port, node_at[address], target_port))
    return found


def _end(text: str) -> tuple[str, int]:
    """Address and port as the kernel shows them: the address a hexadecimal number in the machine's order of bytes."""
    address, port = text.split(":")
    return str(IPv4Address(int(address, 16).to_bytes(4, sys.byteorder))), int(port, 16)
