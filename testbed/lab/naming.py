"""What is called how, and has which address, in the lab of a network: nodes, routers, and the ends of links."""

from __future__ import annotations

from typing import NamedTuple

from testbed.lab import addresses
from testbed.plan.plan import Network
from testbed.plan.routes import datacenters_of


class LinkEnds(NamedTuple):
    """Where a direction begins and ends: routers, and their addresses on the link."""

    source: str
    source_address: str
    target: str
    target_address: str


class LabNames:
    """Names and addresses of a network's lab; nothing of it needs to exist."""

    def __init__(self, network: Network) -> None:
        self.nodes = tuple(node.name for node in network.nodes)
        self.switches = network.switches
        self.number_of = {name: i for i, name in enumerate((*datacenters_of(network), *network.switches))}
        """Of every router's place, the number in its addresses: of datacenters, then of switches."""
        self._directions = network.directions

    @property
    def routers(self) -> tuple[str, ...]:
        """Every place has one: datacenters, then switches."""
        return tuple(self.number_of)

    def address(self, name: str) -> str:
        """The IPv4 address of a node ("paris/0") or a router ("paris"). Raises KeyError for another name."""
        if name in self.number_of:
            return addresses.router_address(self.number_of[name])
        if name not in self.nodes:
            raise KeyError(name)
        return self.subnet(name).second

    def subnet(self, node: str) -> addresses.AddressPair:
        """(its router's address, its own) of a node's subnet."""
        datacenter, _, number = node.partition("/")
        return addresses.node_subnet(self.number_of[datacenter], int(number))

    def network(self, place: str) -> str:
        """All addresses of a datacenter or switch, e.g. "10.1.0.0/16"."""
        return addresses.datacenter_network(self.number_of[place])

    def link_ends(self, direction: int) -> LinkEnds:
        """Of a direction of a link, by its number."""
        asked = self._directions[direction]
        pair = addresses.link_subnet(direction // 2)
        here, there = pair if direction % 2 == 0 else pair[::-1]
        return LinkEnds(asked.source, here, asked.target, there)

    def link_interface(self, direction: int) -> str:
        """The interface by which a direction's source sends over it."""
        return addresses.link_interface(direction // 2, self._directions[direction].target)
