"""What a topology says that happens to its links, as events of a plan: a direction each, at a moment, as in the lab."""

from __future__ import annotations

from testbed.errors import BadInput
from testbed.full_scale import similitude
from testbed.full_scale.similitude import LEAST_RATE_BPS, MOST_RATE_BPS, Scales
from testbed.plan.network_state import planned
from testbed.plan.plan import Network
from testbed.plan.timeline import LinkEvent, Moment
from testbed.spec.event_text import EventText
from testbed.spec.topology import Direction, Topology
from testbed.units import show_rate


def link_events(topology: Topology, network: Network, at: Scales | None = None) -> tuple[LinkEvent, ...]:
    """In order of time. `network` is that of the topology, `at` the scale that the lab has it at. Raises BadInput."""
    found = [
        event
        for read in map(topology.event, topology.events)
        for number, direction in enumerate(planned(network).links)
        if _meant(read, direction)
        for event in _of_direction(topology.name, read, number, direction, at)
    ]
    return tuple(sorted(found, key=lambda event: event.at))


def _meant(read: EventText, direction: Direction) -> bool:
    ends = direction.source, direction.target
    if read.what == "datacenter":
        return read.name in ends
    return read.name == direction.link and read.ends in (None, ends)


def _of_direction(name: str, read: EventText, number: int, direction: Direction, at: Scales | None) -> list[LinkEvent]:
    """What an event does to a direction, which `direction` is as planned: at once, and when it sends again."""
    time = 1.0 if at is None else at.seconds
    delay_s, rate_bps, becomes = None, None, read.becomes
    if becomes.delay_s is not None:
        delay_s = becomes.delay_s * time
    if becomes.rate_share is not None:
        rate_bps = direction.rate_bps * becomes.rate_share
    elif becomes.rate_bps is not None:
        asked = direction._replace(rate_bps=becomes.rate_bps)
        rate_bps = asked.rate_bps if at is None else similitude.direction_at(asked, at).rate_bps
    if rate_bps is not None and not LEAST_RATE_BPS <= rate_bps <= MOST_RATE_BPS:
        expected = f"a rate from {show_rate(LEAST_RATE_BPS)} to {show_rate(MOST_RATE_BPS)} in the lab"
        raise BadInput.of(name, "events", f"{read.text}: {show_rate(rate_bps)}", expected)
    begin = Moment(read.iteration, read.seconds * time)
    if not read.down_s:
        return [LinkEvent(direction.link, begin, number, read.text, delay_s, rate_bps)]
    end = Moment(read.iteration, (read.seconds + read.down_s) * time)
    return [
        LinkEvent(direction.link, begin, number, read.text, sends=False),
        LinkEvent(direction.link, end, number, read.text, delay_s, rate_bps, sends=True),
    ]
