"""Background traffic of a plan: who sends it, over which directions, and as what it comes to the model's links.

Datagrams of one size leave the router of a datacenter at equal distances, the first one half a distance behind the
common start of an iteration, and take the default route, which has to be one link. Nothing acknowledges them.
"""

from __future__ import annotations

from testbed.errors import BadInput
from testbed.pipeline.link import LinkStream
from testbed.plan.framing import ETHERNET_HEADER, MTU
from testbed.plan.network_state import NetworkState
from testbed.plan.plan import Background, Plan, Route

DATAGRAM_BYTES = MTU + ETHERNET_HEADER
"""On the wire: as long as a full segment of TCP."""

MOST_SHARE = 0.95
"""Of a direction's rate: with more, what a job sends would wait for ever longer."""


def every_s(flow: Background) -> float:
    """From one datagram to the next."""
    return 8 * DATAGRAM_BYTES / flow.rate_bps


def route_of(network: NetworkState, flow: Background) -> Route:
    """The direction that it takes. Raises BadInput where there is none, or where it would have to take several: behind
    a router datagrams come as jobs let them pass on the link before, which the model does not follow."""
    route = network.routes.get((flow.source, flow.target), ())
    if len(route) != 1:
        expected = "two datacenters whose default route is one link"
        raise BadInput.of(network.name, "background", f"{flow.source} -> {flow.target}", expected)
    return route


def background_bps(plan: Plan, network: NetworkState) -> list[float]:
    """Per direction of a network, what background traffic takes of its rate."""
    taken = [0.0] * len(network.everything)
    for flow in plan.background:
        for index in route_of(network, flow):
            taken[index] += flow.rate_bps
    return taken


def streams_on(plan: Plan, network: NetworkState) -> tuple[LinkStream, ...]:
    """What comes to each link from the common start of an iteration on."""
    return tuple(
        LinkStream(index, every_s(flow) / 2, every_s(flow), float(DATAGRAM_BYTES))
        for flow in plan.background
        for index in route_of(network, flow)
    )


def check_background(plan: Plan, network: NetworkState, source: str) -> None:
    """Raises BadInput for flows that a network has no way or no room for, and beside links that change."""
    taken = background_bps(plan, network)
    for index, (rate_bps, link) in enumerate(zip(taken, network.everything, strict=True)):
        if rate_bps > MOST_SHARE * link.rate_bps:
            flow = next(flow for flow in plan.background if index in route_of(network, flow))
            expected = f"at most {MOST_SHARE:.0%} of the rate of {link.label} for all that takes it"
            raise BadInput.of(source, f"{flow.source} -> {flow.target}: rate", f"{rate_bps:g} bit/s", expected)
    if plan.background and plan.events:
        raise BadInput.of(source, "background", str(plan.events[0]), "no events beside it: one or the other")
    if plan.background and plan.recovery is not None:
        raise BadInput.of(source, "background", "workers that fail", "one or the other")
