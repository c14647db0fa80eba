"""The lab: one container per node, one router per datacenter and switch, shaped OTN links between the routers.

    node "paris/0" --veth-- router "paris" ==OTN link, shaped at each router's egress== router "warsaw" --veth-- ...

Where the topology has network cards (`inside`), a node's own end of its veth pair is shaped too. A switch is a router
without nodes.

Everything is routed (no Ethernet switch, no bridge, no controller), along exactly the routes of the plan; wires.py lays
the wires, lab_routes.py the routes, addresses.py explains addresses. A Lab is built inside a sandbox
(sandbox.py), which is also what removes it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from mininet.net import Mininet

from testbed.errors import RunFailed
from testbed.lab import addresses, cards, transport
from testbed.lab.cgroups import LabGroups, NodeLimits, limited
from testbed.lab.container import Container
from testbed.lab.counters import tcp_counters
from testbed.lab.hashing import hash_by_ports
from testbed.lab.host_settings import Host, HostPriority
from testbed.lab.lab_routes import LabRoutes
from testbed.lab.liveness import Liveness
from testbed.lab.metrics import Metrics
from testbed.lab.namespaces import attach, inside
from testbed.lab.naming import LabNames
from testbed.lab.netlink import KeptConnections, Netlink, shown_interface, shown_route
from testbed.lab.probes import Ends, one_way_delays
from testbed.lab.sandbox import TCP_MEM_VARIABLE, require_sandbox
from testbed.lab.shaping import LinkCounters, TimedChange, TimedShaper, choose, require_timed, tbf
from testbed.lab.shaping.passage import added_s
from testbed.lab.shaping.relay import RelayShaper
from testbed.lab.trains import TYPE_OF_SERVICE, Train, stamps
from testbed.lab.wires import Cabling
from testbed.plan.events import links_change
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan, Route
from testbed.plan.timeline import LinkEvent
from testbed.spec.topology import Direction

_COMING_UP = 16
"""Containers whose shells come up side by side: each waits for others' programs to be loaded more than it computes."""

_UNSHAPED_BPS = 34e9
"""Of a link that is to be no matter, unless it is faster."""

_PROBES = 3
"""Of which the fastest tells what a way takes."""


def serves_as_well(plan: Plan, other: Plan) -> bool:
    """Whether the containers of a plan's lab can be wired anew for another plan, and nothing be left of the first."""
    if plan.network.switches or "ports" in (plan.enforcement, other.enforcement):
        return False  # what routers' own addresses and hashes, and nodes' ports, were set to stays in the containers
    same = ((one.network.nodes, one.network.switches, one.network.limits, one.transport) for one in (plan, other))
    return next(same) == next(same)


class Lab:
    """A live lab of a plan's network, as a context manager. Build it in the main thread of a sandbox.

    Traffic takes the network's default routes; `routes.use` lays a case's over them.
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
        self.containers: dict[str, Container] = {}
        """Every node ("paris/0")."""
        self.routers: dict[str, Container] = {}
        """Of every datacenter and switch, by its name."""
        self._say = progress or (lambda _text: None)
        self._host = Host(host_priority)
        self.sysctls: dict[str, dict[str, str]] = {}
        """Of every container, what was set there."""
        self._net: Any = None
        self.groups = LabGroups({})
        """Which hold the nodes' ranks to their limits."""
        self._limited = ExitStack()
        self._netlinks = KeptConnections()
        self.alive = Liveness(self.processes)
        self._asked_shaper = shaper
        self._take(plan, largest_burst_bytes)

    def _take(self, plan: Plan, largest_burst_bytes: int) -> None:
        """What is the plan's to say, but for the containers."""
        self.name = plan.network.name
        self.directions: tuple[Direction, ...] = plan.network.directions
        self.cards: tuple[Direction, ...] = plan.network.cards
        self.places = LabNames(plan.network)
        self.nodes = self.places.nodes
        self.warnings: list[str] = []
        self.largest_burst_bytes = largest_burst_bytes
        self._seed, self.virtual = plan.seed, plan.clock.name == "virtual"
        self._limits = plan.network.limits
        self.by_ports = plan.enforcement == "ports"
        changes = [event for event in plan.events if isinstance(event, LinkEvent)]
        self._shaper = choose(self._asked_shaper, timed=links_change(plan))
        self._card_shaper = cards.choose() if self.cards else None
        self._metrics = Metrics(plan.network, largest_burst_bytes, changes)
        self._profile = transport.profile(plan.transport, self._metrics.largest_window_bytes())
        self._wires = Cabling(self, plan.framing, self._metrics, plan.seed)
        sized = self._metrics if self._profile.initial_windows else None
        self.routes = LabRoutes(self, planned(plan.network), self._wires, sized)

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
        # of a group with a share of processors, the kernel has no real-time processes, or does not hold them to it
        return self._host.real_time and all(limit.cpus is None for limit in self._limits)

    @property
    def transport_name(self) -> str:
        """The TCP profile in use."""
        return self._profile.name

    def address(self, name: str) -> str:
        """The IPv4 address of a node ("paris/0") or a router ("paris"). Raises KeyError for another name."""
        return self.places.address(name)

    def interface(self, node: str) -> str:
        """The interface by which a node reaches the others (for GLOO_SOCKET_IFNAME). Raises KeyError."""
        if node not in self.nodes:
            raise KeyError(node)
        return addresses.NODE_INTERFACE

    def attach(self, node: str) -> None:
        """Move a just-forked, single-threaded process into a node; its next fork is in the PID namespace too."""
        attach(self.containers[node].pid)

    def link_ends(self, direction: int) -> tuple[Container, str, Container, str]:
        """(source router, its address on the link, target router, its address) of a direction."""
        source, here, target, there = self.places.link_ends(direction)
        return self.routers[source], here, self.routers[target], there

    def card_ends(self, card: int, neighbour: str) -> tuple[Container, str, Container, str]:
        """(node, its address, another node or router of its datacenter, its address) of a network card."""
        node = self.cards[card].source
        there = self.containers.get(neighbour) or self.routers[neighbour]
        return self.containers[node], self.address(node), there, self.address(neighbour)

    def probe_s(self, source: str, target: str, frame_bytes: int) -> float:
        """Seconds that a frame of so many bytes takes between two nodes: the least of a few, which are sent while
        nothing else is on its way. Raises RunFailed where too few of them arrive."""
        route = [self.directions[number] for number in self.routes.default((source, target))]
        delay_s, rate_bps = sum(link.delay_s for link in route), min(link.rate_bps for link in route)
        ends = Ends(self.containers[source], self.address(source), self.containers[target], self.address(target))
        return one_way_delays(ends, delay_s, rate_bps, at_most=_PROBES, frame_bytes=frame_bytes).minimum

    def send_train(self, source: str, target: str, route: Route, packets: int, frame_bytes: int) -> Train:
        """Send frames of so many bytes from one node to another along a route, back to back. Raises RunFailed."""
        ends = Ends(self.containers[source], self.address(source), self.containers[target], self.address(target))
        own_route = self.routes.of_flows.of_service(TYPE_OF_SERVICE, source, target, route)
        return Train(ends, packets, frame_bytes, own_route)

    def stamp_packets(self) -> None:
        """Trains will be sent: have the kernel stamp packets as they come, until the lab is closed."""
        self._limited.enter_context(stamps())

    # --- life ----------------------------------------------------------------------------------

    def __enter__(self) -> Lab:
        require_sandbox()
        try:
            with self.alive.blaming("the lab was built"):
                self._build()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._shaper.close()
        self._host.close()
        self._netlinks.close()
        if self._net is not None:
            for host in self._net.hosts:
                if host.shell is not None:  # of one that did not come up
                    host.shell.kill()  # the holder of the namespaces; its container's processes die with it
            for host in self._net.hosts:
                host.cleanup()
            self._net = None
        self._limited.close()  # whose processes end with their containers

    def _build(self) -> None:
        limits = {one.node: NodeLimits(one.memory_bytes, one.cpus) for one in self._limits}
        if limits:
            self.groups = self._limited.enter_context(limited(limits))
        self._host.steady()
        # Mininet's own set-up would rewrite the machine's TCP sysctls and limits: mark it as done.
        Mininet.inited = True
        self._net = Mininet(topo=None, build=False, controller=None)
        self._net.built = True
        self._make_containers()
        self._lay_wires()

    def _lay_wires(self) -> None:
        """All between the containers, and what they need to know of it."""
        self._say("access links")
        self._wires.connect_nodes()
        self._wires.name_switches()
        if self._card_shaper is not None:
            self._say(f"{len(self.cards)} network cards ({self._card_shaper.name})")
            self._wires.shape_cards(self._card_shaper)
        self._say(f"{len(self.directions) // 2} OTN links ({self.shaper_name})")
        self._wires.connect_routers(self._shaper)
        if self.directions and isinstance(self._shaper, RelayShaper) and not self.virtual:
            self._shaper.hasten(self._added_s())
        self._say("routes")
        self.routes.lay()
        self._say(f"TCP profile {self._profile.name}")
        for container in self.everywhere():
            self.sysctls[container.name] |= transport.apply(self._profile, container.pid, container.name)
        self._wires.wait_for_carriers()
        self._check_memory()

    def _added_s(self) -> float:
        """What a passage through the relay takes by itself; nothing where this cannot be measured."""
        try:
            return added_s()
        except (RunFailed, OSError) as error:  # too much else to do, or a kernel without packet sockets
            self._say(f"links are as slow as this machine: {error}")
            return 0.0

    def rewire(self, plan: Plan, *, largest_burst_bytes: int) -> None:
        """Lay all wires, links and routes anew between the same containers, for a plan that `serves_as_well` allows.

        Whatever was on its way is lost. Raises RunFailed.
        """
        with self.alive.blaming("the lab was wired anew"):
            self.routes.forget()
            self._shaper.close()
            for router in self.routers.values():  # every wire has an end there, and goes with it
                with self.netlink(router) as netlink:
                    for port in netlink.ask("get_links"):
                        if port.get_attr("IFLA_IFNAME") in router.nameToIntf:
                            netlink.ask("link", "del", index=port["index"])
            for host in self._net.hosts:
                for known in (host.intfs, host.ports, host.nameToIntf):
                    known.clear()
            self._net.links.clear()
            self._take(plan, largest_burst_bytes)
            self._lay_wires()

    def _make_containers(self) -> None:
        routers = self.places.routers
        total = len(self.nodes) + len(routers)
        coming: deque[Container] = deque()
        for done, name in enumerate([*self.nodes, *routers]):
            if len(coming) == _COMING_UP:
                self._prepare(coming.popleft())
            self._say(f"container {done + 1} of {total}: {name}")
            coming.append(self._net.addHost(name, cls=Container, ip=None))
        for container in coming:
            self._prepare(container)

    def _prepare(self, container: Container) -> None:
        """What a container needs that is coming up, before it has any wires."""
        name, routers = container.name, self.places.routers
        container.come_up()
        (self.routers if name in routers else self.containers)[name] = container
        with inside(container.pid):
            self.sysctls[name] = transport.prepare_namespace(name, forward=name in routers)
        if self.by_ports and name in routers:
            self.sysctls[name] |= hash_by_ports(container.pid, name, 1 + self._seed % 2**30 + routers.index(name))
        with self.netlink(container) as netlink:
            netlink.ask("link", "set", index=netlink.index("lo"), state="up")

    def everywhere(self) -> tuple[Container, ...]:
        """All containers: of nodes, then of routers."""
        return (*self.containers.values(), *self.routers.values())

    def netlink(self, container: Container) -> AbstractContextManager[Netlink]:
        """A connection to the kernel about a container's network, which is kept until the lab is closed."""
        return self._netlinks.about(container.pid, container.name)

    def _check_memory(self) -> None:
        # Every node may hold its largest burst twice: not yet acknowledged, and received but not yet read.
        needed = 2.0 * len(self.containers) * self.largest_burst_bytes
        machines = os.environ.get(TCP_MEM_VARIABLE)
        if machines is None:  # it is not seen from a container that has a network namespace of its own
            return
        if (warning := transport.tcp_memory_warning(machines, needed)) is not None:
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

    def queue_room(self, direction: int) -> float:
        """Bytes that may wait for the wire of a direction; numbered as in `counters`."""
        return self._metrics.queue_room(direction)

    def change_link(self, direction: int, **values: float) -> None:
        """Change delay_s, rate_bps, jitter_s, loss or queue_bytes of a live direction. Raises RunFailed."""
        if self._card_shaper is not None and direction >= len(self.directions):
            self._card_shaper.change(direction, **values)
        else:
            self._shaper.change(direction, **values)

    def schedule_changes(self, changes: Sequence[TimedChange]) -> None:
        """Have directions of links change at instants to come. Raises RunFailed, BadInput where the shaper cannot."""
        self._timed().schedule(changes)

    def changes_happened(self) -> list[float]:
        """When those really happened that were scheduled since this was asked last, in the order in which they were."""
        return self._timed().happened()

    def _timed(self) -> TimedShaper:
        require_timed(self.shaper_name, self._shaper)
        assert isinstance(self._shaper, TimedShaper)
        return self._shaper

    @contextmanager
    def unshaped(self) -> Iterator[None]:
        """No delay, jitter or loss, and a rate that nothing waits for; in the end all as asked again.

        A body that fails leaves it so: there is nothing more to measure then. Raises RunFailed.
        """
        everything, shaped = self.directions + self.cards, []
        for number, one in enumerate(everything):
            free = {"rate_bps": max(_UNSHAPED_BPS, one.rate_bps)}
            if number < len(self.directions) or self.card_shaper_name != tbf.Buckets.name:
                free |= {"delay_s": 0.0, "jitter_s": 0.0, "loss": 0.0}
            shaped.append((number, free))
        for direction, values in shaped:
            self.change_link(direction, **values)
        yield
        for direction, values in shaped:
            self.change_link(direction, **{name: getattr(everything[direction], name) for name in values})

    def processes(self) -> dict[str, int]:
        """What must live for the lab to live, in words, and its process id."""
        relay = {} if self._shaper.pid is None else {"the relay process, which carries the links,": self._shaper.pid}
        routers = {f"the router of {name}": router.pid for name, router in self.routers.items()}
        return relay | routers | {f"container {name}": container.pid for name, container in self.containers.items()}

    def carriers(self) -> tuple[int, ...]:
        """Processes that carry the links' packets, where the kernel alone does not."""
        return () if self._shaper.pid is None else (self._shaper.pid,)

    def describe(self) -> dict[str, Any]:
        """Everything in force, read back from the kernel, as JSON-able data for the manifest."""
        containers = {}
        for container in self.everywhere():
            with self.netlink(container) as netlink:
                containers[container.name] = {
                    "interfaces": [shown_interface(m) for m in netlink.ask("get_links")],
                    "routes": [shown_route(m) for m in netlink.ask("get_routes", family=2)],
                    "sysctls": self.sysctls[container.name],
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
