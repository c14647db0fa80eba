"""How large what TCP begins with and what queues hold is, for one network and the largest burst on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from testbed.lab import sizing
from testbed.plan.plan import Network, Route
from testbed.plan.routes import all_directions, by_datacenters, card_routes, datacenter_of
from testbed.spec.topology import Direction

_RTAX_RTO_MIN = 13  # an unlocked one is ignored


class Metrics:
    """Of routes and queues of a network whose nodes may have `largest_burst_bytes` on their way to another."""

    def __init__(self, network: Network, largest_burst_bytes: int) -> None:
        self._nodes, self._burst_bytes = len(network.nodes), largest_burst_bytes
        self._everything, self._card_of = all_directions(network), card_routes(network)
        self._paths = by_datacenters(network)

    def queue_room(self, direction: Direction) -> float:
        """Bytes that may wait for the wire of a direction."""
        return sizing.queue_room(direction, self._nodes, self._burst_bytes)

    def of_link(self, there: Direction, back: Direction) -> dict[str, int]:
        """Of the route from one end of a link to the other: the link gate's own connections take it."""
        return self._of(sizing.path_facts([there], [back]), (there, back))

    def of_route(self, node: str, target: str, there: Route, back: Route) -> dict[str, int]:
        """Of the route from a node to another datacenter, or its own; both ends' network cards included."""
        at_target = next((card for name, card in self._card_of.items() if datacenter_of(name) == target), ())
        there, back = self._card_of.get(node, ()) + there, at_target + back
        return self._of(self._facts(there, back), [self._everything[way] for way in (*there, *back)])

    def largest_window_bytes(self) -> float:
        """The most that TCP may have in flight on a default route: two bandwidth-delay products, and the burst."""
        wan = [self._facts(route, self._paths.get((b, a), ())) for (a, b), route in self._paths.items() if a != b]
        return 2 * max((facts.bdp_bytes for facts in wan), default=0.0) + self._burst_bytes

    def _of(self, facts: sizing.PathFacts, crossed: Sequence[Direction]) -> dict[str, int]:
        """No slow start, acknowledgements at once, no timeout while a segment may wait in the queues of `crossed`."""
        window = sizing.initial_window(facts, self._burst_bytes)
        metrics = {"initcwnd": window, "initrwnd": window, "quickack": 1}
        floor_s = sizing.retransmission_floor_s((direction, self.queue_room(direction)) for direction in crossed)
        if floor_s is not None:
            metrics |= {"lock": 1 << _RTAX_RTO_MIN, "rto_min": math.ceil(1e3 * floor_s)}
        return metrics

    def _facts(self, there: Route, back: Route) -> sizing.PathFacts:
        return sizing.path_facts([self._everything[i] for i in there], [self._everything[i] for i in back])
