"""Which routes a lab's traffic takes: the network's default ones, a case's laid over them, and what is left of both
when links are lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from testbed.grouping import grouped
from testbed.lab import ports, transport
from testbed.lab.flow_routes import Enforced, FlowRoutes
from testbed.lab.hashing import Hashing, equal_hops
from testbed.lab.metrics import Metrics
from testbed.lab.namespaces import inside
from testbed.lab.routing_tables import RoutesOfPairs, default_routes_of, forget_routes, route_nodes, route_routers
from testbed.lab.wires import Cabling
from testbed.plan.network_state import NetworkState
from testbed.plan.plan import Route
from testbed.plan.routes import datacenter_of

if TYPE_CHECKING:
    from testbed.lab.lab import Lab


class LabRoutes:
    """The routes of a lab, whose containers are there and whose wires are laid when they are."""

    def __init__(self, lab: Lab, state: NetworkState, wires: Cabling, metrics: Metrics | None) -> None:
        """`metrics`: what TCP begins with on each route; None: what it would without us."""
        self._lab, self._wires, self._metrics = lab, wires, metrics
        self._state = state
        """Without what `lose` took."""
        self._default_routes: RoutesOfPairs = {}
        self.of_flows = FlowRoutes(lab)

    def lay(self) -> None:
        """Write the default routes of what is left of the network into routers and nodes."""
        self._default_routes = default_routes_of(self._state)
        route_routers(self._lab, self._default_routes, equal_hops(self._state) if self._lab.by_ports else {})
        route_nodes(self._lab, self._default_routes, self._metrics)

    def default(self, pair: tuple[str, str]) -> Route:
        """Directions from one node to another, where no case says otherwise."""
        return tuple(self._default_routes.get((datacenter_of(pair[0]), datacenter_of(pair[1])), ()))

    def forget(self) -> None:
        """Remove them all from routers and nodes. Raises RunFailed."""
        self.of_flows.clear()
        forget_routes(self._lab)

    def use(self, wanted: Mapping[tuple[str, str], Route]) -> Enforced:
        """Send traffic between these (source node, target node) over these routes from now on, all other as by default.

        Returns which of it the routers' own hash sends there, and what is pinned by rule. Raises RunFailed.
        """
        self.of_flows.clear()
        elsewhere = {pair: route for pair, route in wanted.items() if route != self.default(pair)}
        hashed = frozenset[tuple[str, str]]()
        pinned = elsewhere
        if self._lab.by_ports:
            both_directions = self._both_directions(wanted)
            hashed = self._as_hashed(both_directions)
            pinned = {pair: route for pair, route in both_directions.items() if pair not in hashed}
        self.of_flows.pin(pinned)
        if self._metrics is not None:
            for (source, target), route in elsewhere.items():
                back = wanted.get((target, source), self.default((target, source)))
                metrics = self._metrics.of_route(source, datacenter_of(target), route, back)
                self.of_flows.size(source, target, metrics)
        return Enforced(hashed, frozenset(pinned))

    def choose_ports(self, wanted: Mapping[tuple[str, str], Route]) -> None:
        """Before workers join: have nodes use ports with which routers hash their traffic to these routes.

        Raises RunFailed.
        """
        address_of = {node: self._lab.address(node) for node in self._lab.nodes}
        with Hashing(self._lab) as hashing:
            chosen = ports.choose(self._both_directions(wanted), wanted, address_of, hashing.route_taken)
        for node, port in chosen.port_of.items():
            with inside(self._lab.containers[node].pid):
                transport.set_sysctl(ports.RANGE, f"{port} {port + 1}", node)
                self._lab.sysctls[node][ports.RANGE] = transport.get_sysctl(ports.RANGE)

    def lose(self, *names: str) -> None:
        """Take links down, by name or all of a switch; until `restore`, default routes are those of what is left.

        What was lost before stays lost. Routes of `use` stay pinned, dead ones too. Raises RunFailed; BadInput
        for what is no switch or link.
        """
        before, self._state = self._state, self._state.without(*names)
        for direction in sorted(self._state.down - before.down):
            self._wires.take_down(direction)
        self.of_flows.forget_tables(self._state.down)
        forget_routes(self._lab)
        self.lay()

    def restore(self) -> None:
        """Bring what `lose` took back, with the default routes of the whole network. Raises RunFailed."""
        if not self._state.down:
            return
        for direction in sorted(self._state.down):
            self._wires.bring_back(direction)
        self._wires.wait_for_carriers()
        self._state = replace(self._state, down=frozenset())
        forget_routes(self._lab)
        self.lay()

    def _both_directions(self, wanted: Mapping[tuple[str, str], Route]) -> dict[tuple[str, str], Route]:
        """What of `wanted` leaves its datacenter, and what is sent back for it."""
        answers = {(target, source): self.default((target, source)) for source, target in wanted}
        return {pair: route for pair, route in (answers | dict(wanted)).items() if route}

    def _as_hashed(self, wanted: Mapping[tuple[str, str], Route]) -> frozenset[tuple[str, str]]:
        """Those pairs that have connections, and whose connections take the wanted route."""
        node_at = {self._lab.address(node): node for node in self._lab.nodes}
        with Hashing(self._lab) as hashing:
            taken = grouped(
                ((source, connection.target), hashing.route_taken(connection))
                for source in {source for source, _ in wanted}
                for connection in ports.connections(self._lab.containers[source].pid, source, node_at)
                if (source, connection.target) in wanted
            )
        return frozenset(pair for pair, found in taken.items() if {*found} == {wanted[pair]})
