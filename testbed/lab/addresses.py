"""The lab's address plan, as pure arithmetic.

    place d (0-based)                   10.<d+1>.0.0/16    datacenters, then switches, which have the first address only
      node n of it                      a /30 of its own: router .1, node .2     (10.<d+1>.<4n // 256>.<4n % 256>/30)
    OTN link k                          a /30 of 10.128.0.0/9: forward source .1, forward target .2

Hardware addresses follow from IP addresses, so neighbour entries need no ARP. Interface names say where they lead:
`lan2` of a router to its node 2, `wan0-warsaw` over link 0 to warsaw. The numbers make them unique: Linux takes 15
characters, so a long name is cut.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

PREFIX_LENGTH = 30
_LONGEST_INTERFACE = 15

NODE_INTERFACE = "lan0"
"""A node's only interface; every container has its own network namespace."""


class AddressPair(NamedTuple):
    """The two addresses of a point-to-point subnet."""

    first: str
    second: str


def datacenter_network(datacenter: int) -> str:
    """All addresses of one datacenter, e.g. "10.1.0.0/16"."""
    return f"10.{datacenter + 1}.0.0/16"


def node_subnet(datacenter: int, node: int) -> AddressPair:
    """(router's address, node's address) of a node's own subnet."""
    return _pair(IPv4Network(datacenter_network(datacenter)), node)


def link_subnet(link: int) -> AddressPair:
    """(forward source's address, forward target's address) of an OTN link."""
    return _pair(IPv4Network("10.128.0.0/9"), link)


def router_address(datacenter: int) -> str:
    """The address by which the rest of the lab knows a router: its side of node 0's subnet, also where no node is."""
    return node_subnet(datacenter, 0).first


def hardware_address(address: str) -> str:
    """A locally administered MAC address that is a function of the IP address."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x54" + IPv4Address(address).packed)


def access_interface(node: int) -> str:
    """The router's interface towards its node `node`."""
    return f"lan{node}"


def link_interface(link: int, towards: str) -> str:
    """The interface of OTN link `link` at the router from which it leads to the place `towards`."""
    return f"wan{link}-{towards}"[:_LONGEST_INTERFACE].rstrip("-")


def _pair(network: IPv4Network, index: int) -> AddressPair:
    base = network.network_address + (index << (32 - PREFIX_LENGTH))
    if base + 3 not in network:
        raise ValueError(f"no room for subnet {index} in {network}")
    return AddressPair(str(base + 1), str(base + 2))
