"""Background traffic of a plan: who sends it, over which directions, and as what it comes to the model's links.

Datagrams of one size leave the router of a datacenter at equal distances, the first one half a distance behind the
common start of an iteration, or behind the instant from which on the flow has another rate, and take the default route.
Nothing acknowledges them. An iteration begins with none of the one before on its way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from testbed.errors import BadInput
from testbed.pipeline.link import Stream, StreamSpan
from testbed.plan.framing import ETHERNET_HEADER, MTU
from testbed.plan.network_state import NetworkState
from testbed.plan.plan import Background, Plan, Route
from testbed.plan.timeline import LinkEvent, LinkLost
from testbed.units import show_rate

DATAGRAM_BYTES = MTU + ETHERNET_HEADER
"""On the wire: as long as a full segment of TCP."""

MOST_SHARE = 0.95
"""Of a direction's rate: with more, what a job sends would wait for ever longer."""


_ROUNDING = 1e-9
"""Of sums of rates."""


def every_s(rate_bps: float) -> float:
    """From one datagram to the next."""
    return 8 * DATAGRAM_BYTES / rate_bps


def rates_change(plan: Plan) -> bool:
    """Whether some of it has not the same rate all the time."""
    return any(flow.changes for flow in plan.background)


def most_bps(flow: Background) -> float:
    """The highest rate that it ever has."""
    return max(flow.rate_bps, *(change.rate_bps for change in flow.changes), 0.0)


def rates_from(flow: Background, since_s: float | None) -> list[tuple[float, float]]:
    """(seconds from then, rate) from a time of its own on, the first at 0; None: the rate that it has first stays."""
    if since_s is None:
        return [(0.0, flow.rate_bps)]
    before = [change.rate_bps for change in flow.changes if change.at_s <= since_s]
    later = [(change.at_s - since_s, change.rate_bps) for change in flow.changes if change.at_s > since_s]
    return [(0.0, before[-1] if before else flow.rate_bps), *later]


def spans_of(flow: Background, since_s: float | None) -> tuple[StreamSpan, ...]:
    """When its datagrams are sent, in seconds from a time of its own; see `rates_from`."""
    rates = rates_from(flow, since_s)
    ends_s = [at_s for at_s, _ in rates[1:]]
    return tuple(
        StreamSpan(at_s + every_s(rate_bps) / 2, every_s(rate_bps), end_s)
        for (at_s, rate_bps), end_s in zip(rates, [*ends_s, math.inf], strict=True)
        if rate_bps > 0
    )


def route_of(network: NetworkState, flow: Background) -> Route:
    """The directions that it takes. Raises BadInput where there are none."""
    route = network.routes.get((flow.source, flow.target), ())
    if not route:
        expected = "two datacenters with a default route between them"
        raise BadInput.of(network.name, "background", f"{flow.source} -> {flow.target}", expected)
    return route


def carried_bytes(
    network: NetworkState, sent: Iterable[tuple[Background, float]], lost: Sequence[int], counted: Sequence[float]
) -> list[float]:
    """Per direction of a network, what background traffic has carried of the wire bytes that each flow sent.

    Nobody sends lost datagrams again. `lost` are frames per direction, of which nobody knows whose they were: between
    none and all of them were datagrams, so many that `counted`, what each direction has carried beside other traffic,
    is right if it can be.
    """
    brought = [0.0] * len(network.everything)
    fewest = list(brought)
    for flow, size in sent:
        left = size
        for index in route_of(network, flow):
            left = max(0.0, left - lost[index] * DATAGRAM_BYTES)
            brought[index] += size
            fewest[index] += left
    return [min(max(few, had), most) for few, had, most in zip(fewest, counted, brought, strict=True)]


def background_bps(plan: Plan, network: NetworkState) -> list[float]:
    """Per direction of a network, what background traffic takes of its rate: the most that each flow ever has."""
    taken = [0.0] * len(network.everything)
    for flow in plan.background:
        for index in route_of(network, flow):
            taken[index] += most_bps(flow)
    return taken


def streams_on(plan: Plan, network: NetworkState, since_s: float | None = None) -> tuple[Stream, ...]:
    """What is on the links from the common start of an iteration on, which begins so long after the first one that
    counts; None: with rates as they are at first."""
    spans = [(flow, spans_of(flow, since_s)) for flow in plan.background]
    return tuple(Stream(route_of(network, flow), float(DATAGRAM_BYTES), mine) for flow, mine in spans if mine)


def check_background(plan: Plan, network: NetworkState, source: str) -> None:
    """Raises BadInput for flows that a network has no way or no room for, and for what they cannot stand beside."""
    if not plan.background:
        return
    if plan.enforcement == "ports":
        expected = "rules beside background traffic, whose datagrams the routers' own hash would send elsewhere"
        raise BadInput.of(source, "enforcement", "ports", expected)
    for state in _states(plan, network):
        _check_room(plan, state, source, "" if state is network else " after an event")
    crossed = {index for flow in plan.background for index in route_of(network, flow)}
    for event in plan.events:
        if isinstance(event, LinkEvent) and event.direction in crossed and _endless(plan, event):
            expected = "an end of it: background traffic would wait for ever"
            raise BadInput.of(source, "events", event.said, expected)


def _check_room(plan: Plan, network: NetworkState, source: str, when: str) -> None:
    routes = [route_of(network, flow) for flow in plan.background]
    begins = [(-math.inf, number, flow.rate_bps) for number, flow in enumerate(plan.background)]
    later = [(one.at_s, number, one.rate_bps) for number, flow in enumerate(plan.background) for one in flow.changes]
    now_bps, taken = [0.0] * len(routes), [0.0] * len(network.everything)
    for _, together in groupby(sorted(begins + later), key=lambda change: change[0]):
        changed = [(number, rate_bps) for _, number, rate_bps in together]
        for number, rate_bps in changed:
            for index in routes[number]:
                taken[index] += rate_bps - now_bps[number]
            now_bps[number] = rate_bps
        for flow, index in ((plan.background[number], index) for number, _ in changed for index in routes[number]):
            link = network.everything[index]
            if taken[index] > (MOST_SHARE + _ROUNDING) * link.rate_bps:
                had = f"{link.label}, {show_rate(link.rate_bps)}{when}"
                expected = f"at most {MOST_SHARE:.0%} of the rate of {had}, for all that takes it"
                raise BadInput.of(source, f"{flow.source} -> {flow.target}: rate", show_rate(taken[index]), expected)


def _states(plan: Plan, network: NetworkState) -> Iterator[NetworkState]:
    """What the network is at first, and after each event that changes links."""
    yield network
    for event in plan.events:
        if isinstance(event, (LinkEvent, LinkLost)):
            network = event.on_network(network)
            yield network


def _endless(plan: Plan, begun: LinkEvent) -> bool:
    """Whether an outage begins that has no end."""
    if begun.sends is not False:
        return False
    over = (
        event.sends and event.direction == begun.direction and event.said == begun.said and event.at >= begun.at
        for event in plan.events
        if isinstance(event, LinkEvent)
    )
    return not any(over)
