"""The directions that messages between two ranks cross in a case: its routes, the default ones, and network cards."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.plan import routes
from testbed.plan.network_state import NetworkState, network_at, planned
from testbed.plan.plan import Case, Plan, Route


class RankRoutes:
    """The directions from one rank to another, by number, the network card of the first included."""

    def __init__(self, plan: Plan, case: Case | None, network: NetworkState | None = None) -> None:
        """In a case; without one, on the default routes of the network as it is planned. `network`: what links are by
        now, where that is not as the case begins."""
        as_it_begins = planned(plan.network) if case is None else network_at(plan, case)
        self.network = as_it_begins if network is None else network
        self.node_of = routes.nodes_of_ranks(plan)
        self._datacenter = {rank: routes.datacenter_of(node) for rank, node in self.node_of.items()}
        self._given = {} if case is None else routes.routes_of_ranks(plan, case)

    def __call__(self, source: int, target: int) -> Route:
        """() from a rank to itself; between two that are not connected, the card alone."""
        if source == target:
            return ()
        default = self.network.routes.get((self.datacenter(source), self.datacenter(target)), ())
        return self.card(source) + self._given.get((source, target), default)

    def card(self, rank: int) -> Route:
        """The network card of a rank's node; () where it has none."""
        return self.network.card_routes.get(self.node_of[rank], ())

    def datacenter(self, rank: int) -> str:
        """Where a rank is."""
        return self._datacenter[rank]

    def busy_s(self, wire_bytes: Sequence[float]) -> list[float]:
        """How long each direction of the network, then each network card, is busy with so many bytes."""
        return [8 * size / one.rate_bps for size, one in zip(wire_bytes, self.network.everything, strict=True)]
