"""How large what TCP begins with and what queues hold is, for one network and the largest burst on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from testbed.lab import sizing
from testbed.plan.framing import MTU
from testbed.plan.network_state import planned
from testbed.plan.plan import Network, Route
from testbed.plan.routes import datacenter_of
from testbed.plan.timeline import LinkEvent
from testbed.spec.topology import Direction


def _held_s(changes: Sequence[LinkEvent]) -> float:
    """For how long links send nothing: of every direction the time, all of them one after the other at the worst. Of
    outages that overlap none is over before the last one is."""
    began: dict[int, list[LinkEvent]] = {}
    total_s: dict[int, float] = {}
    for change in changes:
        outages = began.setdefault(change.direction, [])
        if change.sends is False:
            outages.append(change)
        elif change.sends is True and outages:
            if len(outages) == 1:
                before_s = total_s.get(change.direction, 0.0)
                total_s[change.direction] = before_s + change.at.seconds - outages[0].at.seconds
                outages.clear()
            else:
                outages.pop()
    return max(total_s.values(), default=0.0)


_RTAX_RTO_MIN = 13  # an unlocked one is ignored


class Metrics:
    """Of routes and queues of a network whose nodes may have `largest_burst_bytes` on their way to another."""

    def __init__(self, network: Network, largest_burst_bytes: int, changes: Sequence[LinkEvent] = ()) -> None:
        """`changes`: what becomes of links. Room is for the largest delay and rate, timeouts for the smallest rate and
        for as long as nothing is sent, and those that TCP has anyway where something is to be lost."""
        self._nodes, self._burst_bytes = len(network.nodes), largest_burst_bytes
        whole = planned(network)
        self._least_bps = [direction.rate_bps for direction in whole.everything]
        for change in changes:
            was = whole.links[change.direction]
            delay_s, rate_bps = max(was.delay_s, change.delay_s or 0.0), max(was.rate_bps, change.rate_bps or 0.0)
            whole = whole.with_direction(change.name, change.direction, delay_s, rate_bps, sends=None)
            self._least_bps[change.direction] = min(self._least_bps[change.direction], change.rate_bps or math.inf)
        self._held_s = _held_s(changes)
        self._loss = {change.direction: change.loss for change in changes if change.loss}
        self._everything, self._card_of, self._routes = whole.everything, whole.card_routes, whole.routes
        self._rtt_s = self._longest_round_trips()

    def queue_room(self, index: int) -> float:
        """Bytes that may wait for the wire of a direction, or of a card; numbered as in a NetworkState."""
        return sizing.queue_room(self._everything[index], self._rtt_s[index], self._nodes, self._burst_bytes)

    def of_link(self, index: int) -> dict[str, int]:
        """Of the route from the begin of a direction to its end: the link gate's own connections take it.

        Its windows have room for all that a measurement sends.
        """
        there, back = (index,), (index ^ 1,)
        out, into = (sizing.rate_probe_bytes(self._facts(*pair)) for pair in ((there, back), (back, there)))
        return self._of(there, back, out, into)

    def of_route(self, node: str, target: str, there: Route, back: Route) -> dict[str, int]:
        """Of the route from a node to another datacenter, or its own; both ends' network cards included."""
        at_target = next((card for name, card in self._card_of.items() if datacenter_of(name) == target), ())
        return self._of(self._card_of.get(node, ()) + there, at_target + back)

    def largest_window_bytes(self) -> float:
        """The most that TCP may have in flight on a default route: two bandwidth-delay products, and the burst."""
        wan = [self._facts(route, self._routes.get((b, a), ())) for (a, b), route in self._routes.items() if a != b]
        return 2 * max((facts.bdp_bytes for facts in wan), default=0.0) + self._burst_bytes

    def _longest_round_trips(self) -> list[float]:
        """Per direction and card, in seconds: over its own link, and of all default routes that cross it."""
        cards = {index for card in self._card_of.values() for index in card}
        numbers = range(len(self._everything))
        found = [self._facts((index,), (index if index in cards else index ^ 1,)).rtt_s for index in numbers]
        for (source, target), there in self._routes.items():
            rtt_s = self._facts(there, self._routes.get((target, source), ())).rtt_s
            for index in (*there, *(index for index in cards if self._everything[index].target == source)):
                found[index] = max(found[index], rtt_s)
        return found

    def _of(self, there: Route, back: Route, more_there: float = 0.0, more_back: float = 0.0) -> dict[str, int]:
        """No slow start, acknowledgements at once, no timeout while a segment may wait in the queues on the way.

        Windows for so many bytes more than a burst, in each direction.
        """
        out, into = self._facts(there, back), self._facts(back, there)
        metrics = {
            "initcwnd": sizing.initial_window(out, self._burst_bytes + more_there),
            "initrwnd": sizing.initial_window(into, self._burst_bytes + more_back),
            "quickack": 1,
            "mtu": MTU,  # a connection whose route has changed sends once by the old one, which has no interface left
        }
        crossed = ((self._at_worst(index), self.queue_room(index)) for index in (*there, *back))
        floor_s = sizing.retransmission_floor_s(crossed, self._held_s)
        if floor_s is not None:
            metrics |= {"lock": 1 << _RTAX_RTO_MIN, "rto_min": math.ceil(1e3 * floor_s)}
        return metrics

    def _at_worst(self, index: int) -> Direction:
        direction = self._everything[index]
        return direction._replace(rate_bps=self._least_bps[index], loss=self._loss.get(index, direction.loss))

    def _facts(self, there: Route, back: Route) -> sizing.RouteFacts:
        return sizing.route_facts([self._everything[i] for i in there], [self._everything[i] for i in back])
