"""The lab: one container per node, one border router per datacenter, shaped OTN links between the borders.

    node "paris/0" --veth-- border "paris" ==OTN link, shaped at each border's egress== border "warsaw" --veth-- ...

Where the topology has network cards (`inside`), a node's own end of its veth pair is shaped too.

Everything is routed (no switch, no bridge, no controller), along exactly the routes of the plan; addresses are
explained in addresses.py. A Lab is built inside a sandbox (sandbox.py), which is also what removes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from mininet.net import Mininet

from testbed.lab import addresses, cards, sizing, transport
from testbed.lab.container import Container, Port, Wire
from testbed.lab.counters import tcp_counters
from testbed.lab.flow_routes import FlowRoutes
from testbed.lab.host import Host, HostPriority
from testbed.lab.namespaces import attach, inside
from testbed.lab.netlink import Netlink, bring_up, shown_interface, shown_route
from testbed.lab.routes import border_routes
from testbed.lab.sandbox import TCP_MEM_VARIABLE, require_sandbox
from testbed.lab.shaping import End, LinkCounters, ShapedDirection, ShapedLink, choose
from testbed.plan.framing import LARGEST_GSO, gso_bytes
from testbed.plan.plan import Plan, Route
from testbed.plan.routes import all_directions, by_datacenters, card_routes, datacenter_of, datacenters_of
from testbed.spec.topology import Direction

_SOURCE_TABLES = 1000
"""Routing tables for traffic by source datacenter start here."""

_SCOPE_LINK = 253  # RT_SCOPE_LINK
_RTAX_RTO_MIN = 13  # an unlocked one is ignored


class Lab:
    """A live lab of a plan's network, as a context manager. Build it in the main thread of a sandbox.

    Traffic takes the network's default routes; `use_routes` lays a case's over them.
    `largest_burst_bytes` is the most that a node may have on its way to another: queues and initial windows have room
    for it, so what is handed to a link first leaves first, whole.
    Raises MachineLacks when something is missing on the machine, RunFailed when the kernel refuses a setting.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        shaper: str = "auto",
        largest_burst_bytes: int = 16_000_000,
        progress: Callable[[str], None] | None = None,
        host_priority: HostPriority = HostPriority.on,
    ) -> None:
        self.name = plan.network.name
        self.directions: tuple[Direction, ...] = plan.network.directions
        self.cards: tuple[Direction, ...] = plan.network.cards
        self.nodes: tuple[str, ...] = tuple(node.name for node in plan.network.nodes)
        self.containers: dict[str, Container] = {}
        """Every node ("paris/0")."""
        self.borders: dict[str, Container] = {}
        """Every datacenter's border router, by the datacenter's name."""
        self.warnings: list[str] = []
        self.largest_burst_bytes = largest_burst_bytes
        self._seed = plan.seed
        self._framing = plan.framing
        self._say = progress or (lambda _text: None)
        self._datacenters = {name: i for i, name in enumerate(datacenters_of(plan.network))}
        self._paths = by_datacenters(plan.network)
        self._everything, self._card_of = all_directions(plan.network), card_routes(plan.network)
        self._shaper = choose(shaper)
        self._card_shaper = cards.choose() if self.cards else None
        self._host = Host(host_priority)
        self._profile = self._make_profile(plan.transport)
        self._sysctls: dict[str, dict[str, str]] = {}
        self._net: Any = None
        self._flow_routes = FlowRoutes(self)

    # --- what is where -------------------------------------------------------------------------

    @property
    def net(self) -> Any:
        """The Mininet object, e.g. for mininet.cli.CLI(lab.net)."""
        return self._net

    @property
    def shaper_name(self) -> str:
        """The shaper in use: "netem" or "relay"."""
        return self._shaper.name

    @property
    def card_shaper_name(self) -> str | None:
        """What shapes network cards: "netem", "tbf", or None where there are none."""
        return None if self._card_shaper is None else self._card_shaper.name

    @property
    def real_time_workers(self) -> bool:
        """Whether the machine lets workers run under SCHED_RR, and the lab is asked to use that."""
        return self._host.real_time

    @property
    def transport_name(self) -> str:
        """The TCP profile in use."""
        return self._profile.name

    def address(self, node: str) -> str:
        """The IPv4 address of a node ("paris/0") or a border ("paris"). Raises KeyError for another name."""
        if node in self._datacenters:
            return addresses.border_address(self._datacenters[node])
        datacenter, _, number = node.partition("/")
        if node not in self.nodes:
            raise KeyError(node)
        return addresses.node_subnet(self._datacenters[datacenter], int(number)).second

    def interface(self, node: str) -> str:
        """The interface by which a node reaches the others (for GLOO_SOCKET_IFNAME). Raises KeyError."""
        if node not in self.nodes:
            raise KeyError(node)
        return addresses.NODE_INTERFACE

    def attach(self, node: str) -> None:
        """Move a just-forked, single-threaded process into a node; its next fork is in the PID namespace too."""
        attach(self.containers[node].pid)

    def link_ends(self, direction: int) -> tuple[Container, str, Container, str]:
        """(source border, its address on the link, target border, its address) of a direction."""
        asked = self.directions[direction]
        pair = addresses.link_subnet(direction // 2)
        here, there = pair if direction % 2 == 0 else pair[::-1]
        return self.borders[asked.source], here, self.borders[asked.target], there

    def link_interface(self, direction: int) -> str:
        """The interface by which a direction's source border sends over it."""
        return addresses.link_interface(direction // 2, self.directions[direction].target)

    def card_ends(self, card: int, neighbour: str) -> tuple[Container, str, Container, str]:
        """(node, its address, another node or border of its datacenter, its address) of a network card."""
        node = self.cards[card].source
        there = self.containers.get(neighbour) or self.borders[neighbour]
        return self.containers[node], self.address(node), there, self.address(neighbour)

    # --- life ----------------------------------------------------------------------------------

    def __enter__(self) -> Lab:
        require_sandbox()
        try:
            self._build()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        self._shaper.close()
        self._host.close()
        if self._net is not None:
            for host in self._net.hosts:
                host.shell.kill()  # the holder of the namespaces; its container's processes die with it
            for host in self._net.hosts:
                host.cleanup()
            self._net = None

    def _build(self) -> None:
        self._host.steady()
        # Mininet's own set-up would rewrite the machine's TCP sysctls and limits: mark it as done.
        Mininet.inited = True
        self._net = Mininet(topo=None, build=False, controller=None)
        self._net.built = True
        self._make_containers()
        self._say("access links")
        for datacenter in self._datacenters:
            with self.netlink(self.borders[datacenter]) as border:
                for node in self.nodes:
                    if datacenter_of(node) == datacenter:
                        self._connect_node(datacenter, int(node.partition("/")[2]), border)
        self._shape_cards()
        self._say(f"{len(self.directions) // 2} OTN links ({self.shaper_name})")
        self._connect_borders()
        self._say("routes")
        self._route_borders()
        for node in self.nodes:
            self._route_node(node)
        self._say(f"TCP profile {self._profile.name}")
        for container in (*self.containers.values(), *self.borders.values()):
            self._sysctls[container.name] |= transport.apply(self._profile, container.pid, container.name)
        self._check_memory()

    def _make_containers(self) -> None:
        nodes = self.nodes
        total = len(nodes) + len(self._datacenters)
        for done, name in enumerate([*nodes, *self._datacenters]):
            self._say(f"container {done + 1} of {total}: {name}")
            container = self._net.addHost(name, cls=Container, ip=None)
            (self.borders if name in self._datacenters else self.containers)[name] = container
            with inside(container.pid):
                self._sysctls[name] = transport.prepare_namespace(name, forward=name in self._datacenters)
            with self.netlink(container) as netlink:
                netlink.ask("link", "set", index=netlink.index("lo"), state="up")

    def netlink(self, container: Container) -> Netlink:
        """A connection to the kernel about a container's network."""
        return Netlink(container.pid, container.name)

    # --- wires ---------------------------------------------------------------------------------

    def _connect_node(self, datacenter: str, number: int, border: Netlink) -> None:
        name = f"{datacenter}/{number}"
        pair = addresses.node_subnet(self._datacenters[datacenter], number)
        outer, inner = addresses.access_interface(number), addresses.NODE_INTERFACE
        gso = self._framing.gso_bytes[datacenter]
        border.ask(
            "link",
            "add",
            kind="veth",
            ifname=outer,
            address=addresses.hardware_address(pair.first),
            mtu=self._framing.mtu,
            peer={
                "ifname": inner,
                "address": addresses.hardware_address(pair.second),
                "mtu": self._framing.mtu,
                "net_ns_pid": self.containers[name].pid,
            },
        )
        # towards the node as large as any may come: a border that cuts a super-packet has every segment acknowledged
        bring_up(border, outer, pair.first, pair.second, LARGEST_GSO)
        with self.netlink(self.containers[name]) as netlink:
            bring_up(netlink, inner, pair.second, pair.first, gso)
        self._tell_mininet(self.containers[name], inner, pair.second, self.borders[datacenter], outer, pair.first)

    def _shape_cards(self) -> None:
        if self._card_shaper is None:
            return
        self._say(f"{len(self.cards)} network cards ({self._card_shaper.name})")
        for number, card in enumerate(self.cards):
            index, node = len(self.directions) + number, self.containers[card.source]
            here = self.address(card.source)
            end = End(card.source, node.pid, addresses.NODE_INTERFACE, addresses.hardware_address(here))
            shaped = ShapedDirection(index, card, end, end, self._queue_room(card), self._seed * 1_000_003 + index)
            self._card_shaper.shape(shaped, self._framing.gso_bytes[card.target])

    def _connect_borders(self) -> None:
        links = []
        for number, (forward, reverse) in enumerate(zip(self.directions[::2], self.directions[1::2], strict=True)):
            subnet = addresses.link_subnet(number)
            here, there = (
                End(
                    asked.source,
                    self.borders[asked.source].pid,
                    addresses.link_interface(number, asked.target),
                    addresses.hardware_address(address),
                )
                for asked, address in zip((forward, reverse), subnet, strict=True)
            )
            shaped = [
                ShapedDirection(
                    2 * number + i, asked, *ends, self._queue_room(asked), self._seed * 1_000_003 + 2 * number + i
                )
                for i, (asked, ends) in enumerate([(forward, (here, there)), (reverse, (there, here))])
            ]
            links.append(ShapedLink(shaped[0], shaped[1], self._framing.mtu))
        if links:
            self._shaper.build(links)
        for number, link in enumerate(links):
            subnet = addresses.link_subnet(number)
            for direction, own, other in ((link.forward, *subnet), (link.reverse, *subnet[::-1])):
                asked = direction.asked
                with self.netlink(self.borders[asked.source]) as netlink:
                    gso = gso_bytes([asked])
                    bring_up(netlink, direction.source.interface, own, other, gso)
                    # The link gate's own connections use this route; without it they would measure slow start.
                    other_way = link.reverse if direction is link.forward else link.forward
                    facts = sizing.path_facts([asked], [other_way.asked])
                    oif = netlink.index(direction.source.interface)
                    metrics = self._metrics(facts, (link.forward.asked, link.reverse.asked))
                    netlink.ask("route", "add", dst=f"{other}/32", oif=oif, scope=_SCOPE_LINK, metrics=metrics)
            ends = self.borders[link.forward.asked.source], self.borders[link.forward.asked.target]
            ports = link.forward.source.interface, link.reverse.source.interface
            self._tell_mininet(ends[0], ports[0], subnet.first, ends[1], ports[1], subnet.second)

    def _tell_mininet(self, a: Container, a_port: str, a_ip: str, b: Container, b_port: str, b_ip: str) -> None:
        wire = self._net.addLink(a, b, cls=Wire, intf=Port, intfName1=a_port, intfName2=b_port)
        for port, ip in ((wire.intf1, a_ip), (wire.intf2, b_ip)):
            port.ip, port.prefixLen, port.mac = ip, addresses.PREFIX_LENGTH, addresses.hardware_address(ip)

    # --- routes --------------------------------------------------------------------------------

    def _route_borders(self) -> None:
        hops = border_routes(self._paths, self.directions)
        for name, border in self.borders.items():
            with self.netlink(border) as netlink:
                for hop in (h for h in hops if h.at == name):
                    pair = addresses.link_subnet(hop.out // 2)
                    entry: dict[str, Any] = {
                        "dst": addresses.datacenter_network(self._datacenters[hop.target]),
                        "gateway": pair.second if hop.out % 2 == 0 else pair.first,
                        "oif": netlink.index(self.link_interface(hop.out)),
                        "prefsrc": self.address(name),
                    }
                    if hop.source is not None:
                        number = self._datacenters[hop.source]
                        entry["table"] = _SOURCE_TABLES + number
                        self._rule(netlink, addresses.datacenter_network(number), entry["table"])
                    netlink.ask("route", "add", **entry)

    @staticmethod
    def _rule(netlink: Netlink, source: str, table: int) -> None:
        known = {rule.get_attr("FRA_TABLE") for rule in netlink.ask("get_rules")}
        if table not in known:
            netlink.ask("rule", "add", src=source, table=table, priority=table)

    def _route_node(self, node: str) -> None:
        datacenter, _, number = node.partition("/")
        gateway = addresses.node_subnet(self._datacenters[datacenter], int(number)).first
        with self.netlink(self.containers[node]) as netlink:
            oif = netlink.index(addresses.NODE_INTERFACE)
            netlink.ask("route", "add", dst="default", gateway=gateway, oif=oif)
            for target, index in self._datacenters.items():
                if (datacenter, target) not in self._paths:
                    continue
                entry: dict[str, Any] = {"dst": addresses.datacenter_network(index), "gateway": gateway, "oif": oif}
                if self._profile.initial_windows:
                    there, back = self._paths[datacenter, target], self._paths.get((target, datacenter), ())
                    entry["metrics"] = self._route_metrics(node, target, there, back)
                netlink.ask("route", "add", **entry)

    def use_routes(self, wanted: Mapping[tuple[str, str], Route]) -> None:
        """Send traffic between these (source node, target node) this way from now on, all other as by default."""
        exceptions = {
            ends: route
            for ends, route in wanted.items()
            if route != self._paths[datacenter_of(ends[0]), datacenter_of(ends[1])]
        }
        self._flow_routes.use(exceptions)
        if not self._profile.initial_windows:
            return
        for (source, target), route in exceptions.items():
            back = wanted.get((target, source), self._paths.get((datacenter_of(target), datacenter_of(source)), ()))
            self._flow_routes.size(source, target, self._route_metrics(source, datacenter_of(target), route, back))

    # --- sizes ---------------------------------------------------------------------------------

    def _metrics(self, facts: sizing.PathFacts, crossed: Sequence[Direction]) -> dict[str, int]:
        """A route's TCP metrics: no slow start, acknowledgements at once, and no timeout while a segment may wait in
        the queues of `crossed`.
        """
        window = sizing.initial_window(facts, self.largest_burst_bytes)
        metrics = {"initcwnd": window, "initrwnd": window, "quickack": 1}
        floor_s = sizing.retransmission_floor_s((direction, self._queue_room(direction)) for direction in crossed)
        if floor_s is not None:
            metrics |= {"lock": 1 << _RTAX_RTO_MIN, "rto_min": math.ceil(1e3 * floor_s)}
        return metrics

    def _queue_room(self, direction: Direction) -> float:
        return sizing.queue_room(direction, len(self.nodes), self.largest_burst_bytes)

    def _route_metrics(self, node: str, target: str, there: Route, back: Route) -> dict[str, int]:
        """Of the route from a node to another datacenter, or its own; both ends' network cards included."""
        at_target = next((card for name, card in self._card_of.items() if datacenter_of(name) == target), ())
        there, back = self._card_of.get(node, ()) + there, at_target + back
        return self._metrics(self._facts(there, back), [self._everything[way] for way in (*there, *back)])

    def _facts(self, there: Route, back: Route) -> sizing.PathFacts:
        return sizing.path_facts([self._everything[i] for i in there], [self._everything[i] for i in back])

    def _make_profile(self, name: str) -> transport.Profile:
        wan = [self._facts(route, self._paths.get((b, a), ())) for (a, b), route in self._paths.items() if a != b]
        largest = max((facts.bdp_bytes for facts in wan), default=0.0)
        return transport.profile(name, 2 * largest + self.largest_burst_bytes)

    def _check_memory(self) -> None:
        # Every node may hold its largest burst twice: not yet acknowledged, and received but not yet read.
        needed = 2.0 * len(self.containers) * self.largest_burst_bytes
        if (warning := transport.tcp_memory_warning(os.environ[TCP_MEM_VARIABLE], needed)) is not None:
            self.warnings.append(warning)
            self._say(f"warning: {warning}")

    # --- measuring and changing ----------------------------------------------------------------

    def counters(self, *, reset_peaks: bool = False) -> list[LinkCounters]:
        """One reading per direction, in the order of `directions`, then per card; see LinkCounters.since."""
        links = self._shaper.counters(reset_peaks=reset_peaks) if self.directions else []
        return links + ([] if self._card_shaper is None else self._card_shaper.counters())

    def tcp_counters(self) -> dict[str, dict[str, int]]:
        """Per node: TCP's counters (testbed.lab.counters) since the lab was built."""
        return {node: tcp_counters(container.pid) for node, container in self.containers.items()}

    def change_link(self, direction: int, **values: float) -> None:
        """Change delay_s, rate_bps, jitter_s, loss or queue_bytes of a live direction. Raises RunFailed."""
        if self._card_shaper is not None and direction >= len(self.directions):
            self._card_shaper.change(direction, **values)
        else:
            self._shaper.change(direction, **values)

    def processes(self) -> dict[str, int]:
        """What must live for the lab to live, in words, and its process id."""
        relay = {} if self._shaper.pid is None else {"the relay process, which carries the links,": self._shaper.pid}
        borders = {f"the border router of {name}": one.pid for name, one in self.borders.items()}
        return relay | borders | {f"container {name}": one.pid for name, one in self.containers.items()}

    def carriers(self) -> tuple[int, ...]:
        """Processes that carry the links' packets, where the kernel alone does not."""
        return () if self._shaper.pid is None else (self._shaper.pid,)

    def describe(self) -> dict[str, Any]:
        """Everything in force, read back from the kernel, as JSON-able data for the manifest."""
        containers = {}
        for container in (*self.containers.values(), *self.borders.values()):
            with self.netlink(container) as netlink:
                containers[container.name] = {
                    "interfaces": [shown_interface(m) for m in netlink.ask("get_links")],
                    "routes": [shown_route(m) for m in netlink.ask("get_routes", family=2)],
                    "sysctls": self._sysctls[container.name],
                }
        return {
            "shaper": self.shaper_name,
            "transport": self._profile.name,
            "host": self._host.describe(),
            "largest_burst_bytes": self.largest_burst_bytes,
            "links": self._shaper.describe() if self.directions else [],
            "cards": [] if self._card_shaper is None else self._card_shaper.describe(),
            "containers": containers,
            "warnings": self.warnings,
        }
