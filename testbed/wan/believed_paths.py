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
    believed_delay_s: float
    """Of it the way there."""
    believed_rate_bps: float
    """Of the slowest link on the way."""
    links: tuple[str, ...]
    """On the way, by the topology: names of links."""
    links_back: tuple[str, ...]
    """On the way back."""

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
        believed_delay_s=sum(link.delay_s for link in links),
        believed_rate_bps=min((link.rate_bps for link in links), default=float("inf")),
        links=tuple(link.link for link in links),
        links_back=tuple(network.links[index].link for index in back),
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
    ends = f"{first.source}, {first.target}"
    delays = [show_time(delay_s) for delay_s in _delays_s(both)]
    rates = [show_rate(path.rate_bps) for path in both]
    ways = list(dict.fromkeys((first.links, first.links_back[::-1])))
    if len(ways) > 1 or len(first.links) > 1:
        said = " there, and back ".join(", ".join(way) for way in ways)
        return (
            f"between {ends} the topology has {said}; measured {show_time(_round_trip_s(both))} there and back "
            f"over all of them, and {' and '.join(rates)}"
        )
    (name,) = first.links
    named = "" if name in (f"{first.source}--{first.target}", f"{first.target}--{first.source}") else f"name: {name}, "
    if len(both) > 1 and abs(both[0].rate_bps / both[1].rate_bps - 1) <= BELIEVED_RATE:
        rates = [show_rate(min(path.rate_bps for path in both))]
    values = {"delay": delays, "rate": rates}
    alike = [f"{field}: {each[0]}" for field, each in values.items() if len(set(each)) == 1]
    unlike = [
        f"{side}: {{{', '.join(f'{field}: {each[place]}' for field, each in values.items() if len(set(each)) > 1)}}}"
        for place, side in enumerate(("forward", "reverse"))
        if len(alike) < len(values)
    ]
    return f"in the topology, as measured: - {{between: [{ends}], {named}{', '.join([*alike, *unlike])}}}"


def _round_trip_s(both: Sequence[MeasuredPath]) -> float:
    return statistics.median(path.round_trip_s for path in both)


def _delays_s(both: Sequence[MeasuredPath]) -> tuple[float, float]:
    """What to write for the way there and the one back: as the topology has it where the two together are right; else
    each by half of what is missing more, since nothing tells on which way it is."""
    first = both[0]
    there_s, back_s = first.believed_delay_s, first.believed_round_trip_s - first.believed_delay_s
    if not any(path.delay_off for path in both):
        return there_s, back_s
    measured_s = _round_trip_s(both)
    there_s = min(max(there_s + (measured_s - first.believed_round_trip_s) / 2, 0.0), measured_s)
    return there_s, measured_s - there_s


def as_documents(paths: Sequence[MeasuredPath]) -> list[Mapping[str, Any]]:
    """Entries of `paths` in wan.json."""
    return [asdict(path) for path in paths]
