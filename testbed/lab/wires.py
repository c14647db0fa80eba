"""The wires of a lab: veth pairs from nodes to their routers, network cards, and the shaped links between routers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from testbed.errors import RunFailed
from testbed.lab import addresses
from testbed.lab.cards import CardShaper
from testbed.lab.container import Container, Port, Wire
from testbed.lab.metrics import Metrics
from testbed.lab.netlink import Netlink, bring_up, raise_end
from testbed.lab.shaping import End, ShapedDirection, ShapedLink, Shaper
from testbed.plan.framing import LARGEST_GSO, gso_bytes
from testbed.plan.plan import Framing
from testbed.plan.routes import datacenter_of
from testbed.spec.topology import Direction

if TYPE_CHECKING:
    from testbed.lab.lab import Lab

_SCOPE_LINK = 253  # RT_SCOPE_LINK

_CARRIER_S = 10.0
"""For both ends of a wire to be up: it takes no time."""
_LOOK_S = 1e-3


class Cabling:
    """Lays the wires of a lab whose containers exist. All methods raise RunFailed when the kernel refuses something."""

    def __init__(self, lab: Lab, framing: Framing, metrics: Metrics, seed: int) -> None:
        self._lab, self._framing, self._metrics, self._seed = lab, framing, metrics, seed

    def connect_nodes(self) -> None:
        """Join every node to the router of its datacenter."""
        lab = self._lab
        for name, router in lab.routers.items():
            with lab.netlink(router) as netlink:
                for node in lab.nodes:
                    if datacenter_of(node) == name:
                        self._connect_node(node, netlink)

    def name_switches(self) -> None:
        """Give every switch an address of its own, where no wire has one for it."""
        for name in self._lab.places.switches:
            with self._lab.netlink(self._lab.routers[name]) as netlink:
                netlink.ask("addr", "add", index=netlink.index("lo"), address=self._lab.address(name), prefixlen=32)
            # numbered before its wires, so that Mininet takes this address for the switch's
            port = Port("lo", node=self._lab.routers[name], port=-1, moveIntfFn=_stays)
            port.ip, port.prefixLen = self._lab.address(name), 32

    def _connect_node(self, name: str, router: Netlink) -> None:
        lab, pair = self._lab, self._lab.places.subnet(name)
        datacenter, _, number = name.partition("/")
        outer, inner = addresses.access_interface(int(number)), addresses.NODE_INTERFACE
        ends = [
            {"ifname": interface, "address": addresses.hardware_address(address), "mtu": self._framing.mtu}
            for interface, address in ((outer, pair.first), (inner, pair.second))
        ]
        router.ask("link", "add", kind="veth", **ends[0], peer=ends[1] | {"net_ns_pid": lab.containers[name].pid})
        # towards the node as large as any may come: a router that cuts a super-packet has every segment acknowledged
        bring_up(router, outer, pair.first, pair.second, LARGEST_GSO)
        with lab.netlink(lab.containers[name]) as netlink:
            bring_up(netlink, inner, pair.second, pair.first, self._framing.gso_bytes[datacenter])
        self._tell_mininet(lab.containers[name], inner, pair.second, lab.routers[datacenter], outer, pair.first)

    def shape_cards(self, shaper: CardShaper) -> None:
        """Shape what leaves the nodes that have network cards."""
        lab = self._lab
        for number, card in enumerate(lab.cards):
            index, node = len(lab.directions) + number, lab.containers[card.source]
            hardware = addresses.hardware_address(lab.address(card.source))
            end = End(card.source, node.pid, addresses.NODE_INTERFACE, hardware)
            shaper.shape(self._shaped(index, card, end, end), self._framing.gso_bytes[card.target])

    def connect_routers(self, shaper: Shaper) -> None:
        """Make and shape the links between routers, and bring them up."""
        numbers = range(len(self._lab.directions) // 2)
        links = [self._link(number) for number in numbers]
        if links:
            shaper.build(links)
        for number, link in zip(numbers, links, strict=True):
            for direction in (2 * number, 2 * number + 1):
                self._bring_up(direction)
            a, a_address, b, b_address = self._lab.places.link_ends(2 * number)
            ports = link.forward.source.interface, link.reverse.source.interface
            routers = self._lab.routers
            self._tell_mininet(routers[a], ports[0], a_address, routers[b], ports[1], b_address)

    def _link(self, number: int) -> ShapedLink:
        lab = self._lab
        here, there = (self._end(2 * number + i) for i in (0, 1))
        forward, reverse = lab.directions[2 * number : 2 * number + 2]
        return ShapedLink(
            self._shaped(2 * number, forward, here, there),
            self._shaped(2 * number + 1, reverse, there, here),
            self._framing.mtu,
        )

    def _end(self, direction: int) -> End:
        ends = self._lab.places.link_ends(direction)
        interface = self._lab.places.link_interface(direction)
        hardware = addresses.hardware_address(ends.source_address)
        return End(ends.source, self._lab.routers[ends.source].pid, interface, hardware)

    def _shaped(self, index: int, asked: Direction, source: End, target: End) -> ShapedDirection:
        room = self._metrics.queue_room(index)
        return ShapedDirection(index, asked, source, target, room, self._seed * 1_000_003 + index)

    def wait_for_carriers(self) -> None:
        """Until the kernel has noticed that all wires carry: it does so when it has nothing else to do, and drops the
        first packets that come before.
        """
        until = time.monotonic() + _CARRIER_S
        for container in self._lab.everywhere():
            with self._lab.netlink(container) as netlink:
                for interface in container.nameToIntf:
                    while not netlink.carries(interface):
                        if time.monotonic() > until:
                            raise RunFailed(f"{container.name}: interface {interface} did not come up")
                        time.sleep(_LOOK_S)

    def take_down(self, direction: int) -> None:
        """The end of a link where a direction begins; the kernel forgets all routes over it."""
        router = self._lab.routers[self._lab.directions[direction].source]
        with self._lab.netlink(router) as netlink:
            index = netlink.index(self._lab.places.link_interface(direction))
            netlink.ask("link", "set", index=index, state="down")

    def bring_back(self, direction: int) -> None:
        """What `take_down` took, but for the routes of the lab."""
        ends = self._lab.places.link_ends(direction)
        with self._lab.netlink(self._lab.routers[ends.source]) as netlink:
            raise_end(netlink, self._lab.places.link_interface(direction), ends.target_address)
            self._route_to_other_end(netlink, direction)

    def _bring_up(self, direction: int) -> None:
        ends = self._lab.places.link_ends(direction)
        asked = self._lab.directions[direction]
        interface = self._lab.places.link_interface(direction)
        with self._lab.netlink(self._lab.routers[ends.source]) as netlink:
            bring_up(netlink, interface, ends.source_address, ends.target_address, gso_bytes([asked]))
            self._route_to_other_end(netlink, direction)

    def _route_to_other_end(self, netlink: Netlink, direction: int) -> None:
        """Without it the link gate would measure slow start."""
        oif = netlink.index(self._lab.places.link_interface(direction))
        other, metrics = self._lab.places.link_ends(direction).target_address, self._metrics.of_link(direction)
        netlink.ask("route", "add", dst=f"{other}/32", oif=oif, scope=_SCOPE_LINK, metrics=metrics)

    def _tell_mininet(self, a: Container, a_port: str, a_ip: str, b: Container, b_port: str, b_ip: str) -> None:
        wire = self._lab.net.addLink(a, b, cls=Wire, intf=Port, intfName1=a_port, intfName2=b_port)
        for port, ip in ((wire.intf1, a_ip), (wire.intf2, b_ip)):
            port.ip, port.prefixLen, port.mac = ip, addresses.PREFIX_LENGTH, addresses.hardware_address(ip)


def _stays(*_: object) -> None:
    """What Mininet calls to move an interface that is in its place already."""
