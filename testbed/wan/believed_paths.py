"""What a topology says of the paths between datacenters beside what was measured between their ranks, and what to put
into it instead."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from testbed.plan.framing import ACK_BYTES, MSS
from testbed.plan.network_state import NetworkState, planned
from testbed.plan.plan import Plan
from testbed.progress import Reporter
from testbed.thresholds import BELIEVED_RATE, DELAY_BAND_S, RELATIVE_BAND
from testbed.units import show_rate, show_time
from testbed.wan.path_probe import PATH_LIMIT_S
from testbed.wan.remote_workers import Keepers
from testbed.wan.wan_messages import MeasurePath, PathMeasured, PathOpened, PathServed, ServePath

MOST_PATHS = 24
"""Directions that are measured before a run, one after the other, some seconds each."""


@dataclass(frozen=True)
class MeasuredPath:
    """From a rank in one datacenter to one in another, beside what the topology says."""

    source: str
    target: str
    """Datacenters ..."""
    source_rank: int
    target_rank: int
    """... and the ranks between which it was measured."""
    round_trip_s: float
    """The median."""
    round_trip_least_s: float
    rate_bps: float
    """As the topology counts: with the headers that a lab's link carries."""
    sent_bytes: int
    believed_round_trip_s: float
    believed_rate_bps: float
    """Of the slowest link on the way."""
    links: tuple[str, ...]
    """On the way, by the topology."""

    @property
    def delay_off(self) -> bool:
        """Whether the topology's delay is another one."""
        off_s = abs(self.round_trip_s - self.believed_round_trip_s) / 2
        return off_s > max(DELAY_BAND_S, RELATIVE_BAND * self.believed_round_trip_s / 2)

    @property
    def rate_off(self) -> bool:
        """Whether the topology's rate is another one."""
        return abs(self.rate_bps / self.believed_rate_bps - 1) > BELIEVED_RATE

    def __str__(self) -> str:
        return (
            f"{self.source} -> {self.target}: round trip {show_time(self.round_trip_s)} (topology "
            f"{show_time(self.believed_round_trip_s)}), {show_rate(self.rate_bps)} (topology "
            f"{show_rate(self.believed_rate_bps)})"
        )


def measure_paths(plan: Plan, keepers: Keepers, reporter: Reporter) -> list[MeasuredPath]:
    """Between every two datacenters that send each other messages, one direction after the other. Raises RunFailed."""
    network, pairs = planned(plan.network), _pairs(plan)
    found = []
    with reporter.step("measuring the paths between datacenters", total=len(pairs)) as step:
        for (source, target), (sender, receiver) in pairs.items():
            step.detail(f"{source} -> {target}")
            keepers.tell(receiver, ServePath())
            opened, _ = keepers.answers([receiver], PathOpened)[receiver]
            keepers.tell(sender, MeasurePath(opened.address, opened.port))
            sent, _ = keepers.answers([sender], PathMeasured, PATH_LIMIT_S)[sender]
            served, _ = keepers.answers([receiver], PathServed, PATH_LIMIT_S)[receiver]
            found.append(_beside(network, (source, target), (sender, receiver), sent, served))
            step.advance()
    for path in found:
        reporter.note(str(path))
    return found


def _pairs(plan: Plan) -> dict[tuple[str, str], tuple[int, int]]:
    """(source, target) of datacenters -> the first two ranks there that send each other messages."""
    place = {node.name: node.datacenter for node in plan.network.nodes}
    sites = [place[node] for job in plan.jobs for node in job.nodes]
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for flow in plan.flows:
        ends = sites[flow.source], sites[flow.target]
        if ends[0] != ends[1]:
            found.setdefault(ends, (flow.source, flow.target))
    return dict(list(found.items())[:MOST_PATHS])


def _beside(
    network: NetworkState, ends: tuple[str, str], ranks: tuple[int, int], sent: PathMeasured, served: PathServed
) -> MeasuredPath:
    there, back = (network.routes.get(pair, ()) for pair in (ends, ends[::-1]))
    links = [network.links[index] for index in there]
    payload_bps = 8 * served.half_bytes / served.half_s
    return MeasuredPath(
        *ends,
        *ranks,
        round_trip_s=statistics.median(sent.round_trips_s),
        round_trip_least_s=min(sent.round_trips_s),
        rate_bps=payload_bps * (MSS + ACK_BYTES) / MSS,
        sent_bytes=served.received_bytes,
        believed_round_trip_s=sum(network.links[index].delay_s for index in (*there, *back)),
        believed_rate_bps=min((link.rate_bps for link in links), default=float("inf")),
        links=tuple(link.label for link in links),
    )


def hints(paths: Sequence[MeasuredPath]) -> list[str]:
    """What to put into the topology, a line for each pair of datacenters of which it says something else."""
    by_ends = {(path.source, path.target): path for path in paths}
    found = []
    for (source, target), there in by_ends.items():
        back = by_ends.get((target, source))
        both = [path for path in (there, back) if path is not None]
        if back is not None and (target, source) < (source, target):
            continue  # said with the other direction
        if any(path.delay_off or path.rate_off for path in both):
            found.append(_hint(both))
    return found


def _hint(both: Sequence[MeasuredPath]) -> str:
    """Of both directions, or of the one that was measured."""
    first = both[0]
    delay = show_time(statistics.median(path.round_trip_s for path in both) / 2)
    rates = [show_rate(path.rate_bps) for path in both]
    ends = f"{first.source}, {first.target}"
    if len(first.links) > 1:
        return (
            f"between {ends} the topology has {len(first.links)} links ({', '.join(first.links)}); measured one way "
            f"{delay} over all of them, and {' and '.join(rates)}"
        )
    alike = len(both) == 1 or abs(both[0].rate_bps / both[1].rate_bps - 1) <= BELIEVED_RATE
    slower = show_rate(min(path.rate_bps for path in both))
    rate = f"rate: {slower}" if alike else f"forward: {{rate: {rates[0]}}}, reverse: {{rate: {rates[1]}}}"
    return f"in the topology, as measured: - {{between: [{ends}], delay: {delay}, {rate}}}"


def as_documents(paths: Sequence[MeasuredPath]) -> list[Mapping[str, Any]]:
    """Entries of `paths` in wan.json."""
    return [asdict(path) for path in paths]
