"""What was counted of the network while a case was trained: by a lab's links and nodes, or by whoever else can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from testbed.judge.fidelity import NetworkEvidence
from testbed.lab.background_senders import BackgroundSenders
from testbed.lab.counters import LOSS_SIGNS
from testbed.lab.lab import Lab
from testbed.lab.shaping import LinkCounters
from testbed.plan.background import carried_bytes
from testbed.plan.network_state import network_at
from testbed.plan.plan import Case, Plan
from testbed.plan.state_exchange import StateTraffic
from testbed.plan.timeline import LinkEvent
from testbed.plan.traffic import PlannedTraffic, planned_traffic
from testbed.planning.training_prediction import link_events_of

Beside = Sequence[PlannedTraffic | StateTraffic]

RETRANSMITS = "TcpRetransSegs"


class CountedNetwork(NamedTuple):
    """Of one case."""

    evidence: NetworkEvidence
    links: Sequence[Mapping[str, object]]
    """The rows of links.parquet; none where nothing counts what links carry."""


class NetworkAccounts(Protocol):
    """Counts from `begin` to `end`, which are told in turn while no worker trains."""

    def begin(self) -> None:
        """A case begins."""

    def mark(self) -> Mark:
        """What is counted until now, to go back to."""

    def leave_out(self, since: Mark) -> Mark:
        """What was counted since a mark is not the case's; returns the one to go back to from here on."""

    def carried(self) -> Sequence[float]:
        """Wire bytes of every direction since `begin`; () where nothing counts what links carry."""

    def end(self, plan: Plan, case: Case, iterations: Mapping[int, int], beside: Beside = ()) -> CountedNetwork:
        """It is over, after so many iterations of each job at work, by its number; `beside` is what was to be carried
        beside them, per direction: by states that ranks sent each other, by looks at other routes, or by iterations
        without all of a job."""


class _LabCounts(NamedTuple):
    """What a lab has counted so far."""

    links: Sequence[LinkCounters]
    tcp: Mapping[str, int]

    def since(self, earlier: _LabCounts) -> _LabCounts:
        """What was added after `earlier`."""
        links = [after.since(then) for after, then in zip(self.links, earlier.links, strict=True)]
        return _LabCounts(links, {name: count - earlier.tcp.get(name, 0) for name, count in self.tcp.items()})


class Mark(NamedTuple):
    """Of a case, what is counted until some moment."""

    counts: _LabCounts
    left_out: int
    """How many parts of it are left out."""


class LabAccounts:
    """Those of a lab."""

    def __init__(self, lab: Lab, background: BackgroundSenders | None = None) -> None:
        """What `background` has sent by the end of a case counts as planned."""
        self._lab, self._background = lab, background
        self._before = self._ended = self._counts()
        self._left_out: list[_LabCounts] = []
        self._between = list[LinkCounters]()
        """What links have counted so far when no case was trained, in several parts."""

    def begin(self) -> None:
        """See NetworkAccounts."""
        self._before = self._counts(reset_peaks=True)
        self._between += self._before.since(self._ended).links
        self._ended = self._before  # until it is over; of a case that begins anew, too
        self._left_out = []

    def mark(self) -> Mark:
        """See NetworkAccounts."""
        return Mark(self._counts(), len(self._left_out))

    def leave_out(self, since: Mark) -> Mark:
        """See NetworkAccounts."""
        now = self._counts()
        self._left_out = [*self._left_out[: since.left_out], now.since(since.counts)]
        return Mark(now, len(self._left_out))

    def carried(self) -> Sequence[float]:
        """See NetworkAccounts."""
        return [link.wire_bytes for link in self._counts().since(self._before).links]

    def end(self, plan: Plan, case: Case, iterations: Mapping[int, int], beside: Beside = ()) -> CountedNetwork:
        """See NetworkAccounts."""
        self._ended = self._counts()
        counted = self._ended.since(self._before)
        for part in self._left_out:
            counted = counted.since(part)
            self._between += part.links
        links = counted.links
        planned = _of_all(plan, case, iterations)
        for index, more in enumerate(beside):
            was = planned[index]
            planned[index] = PlannedTraffic(was.wire_bytes + more.wire_bytes, was.messages + more.messages)
        if self._background is not None:
            sent = zip(plan.background, self._background.sent_bytes(), strict=True)
            lost = [row.dropped + (row.lost or 0) for row in links]
            beside_jobs = [row.wire_bytes - each.wire_bytes for row, each in zip(links, planned, strict=True)]
            carried = carried_bytes(network_at(plan, case), sent, lost, beside_jobs)
            planned = [
                each._replace(wire_bytes=each.wire_bytes + more) for each, more in zip(planned, carried, strict=True)
            ]
        rows = [link_row(row, carried) for row, carried in zip(links, planned, strict=True)]
        tcp = counted.tcp
        evidence = NetworkEvidence(
            drops=sum(row.dropped + (row.lost or 0) for row in links),
            retransmits=tcp.get(RETRANSMITS, 0),
            other={name: count for name, count in tcp.items() if count and name != RETRANSMITS},
            lossless=lossless(plan, case),
            jitters=jitters(plan, case),
            full_queues=_full_queues(plan, case, links),
            full_before=_full_queues(plan, case, self._between),
        )
        return CountedNetwork(evidence, rows)

    def _counts(self, *, reset_peaks: bool = False) -> _LabCounts:
        """TCP's signs of loss are over all nodes."""
        signs = dict.fromkeys(LOSS_SIGNS, 0)
        links = self._lab.counters(reset_peaks=reset_peaks)
        for counters in self._lab.tcp_counters().values():
            for name in LOSS_SIGNS:
                signs[name] += counters.get(name, 0)
        return _LabCounts(links, signs)


def _of_all(plan: Plan, case: Case, iterations: Mapping[int, int]) -> list[PlannedTraffic]:
    """What so many iterations of jobs should bring, per direction."""
    each = [(count, planned_traffic(plan, case, [job])) for job, count in iterations.items()]
    return [
        PlannedTraffic(
            sum(count * traffic[place].wire_bytes for count, traffic in each),
            sum(count * traffic[place].messages for count, traffic in each),
        )
        for place in range(len(network_at(plan, case).everything))
    ]


def lossless(plan: Plan, case: Case) -> bool:
    """Whether the plan asks for a network that loses nothing, in any of its cases: where it is to lose some in one, TCP
    sends again early in all, also what only waits in a queue (Metrics)."""
    if plan.transport != "otn-lossless" or any(link.loss for link in network_at(plan, case).links):
        return False
    return not any(isinstance(event, LinkEvent) and event.loss for event in plan.events)


def _full_queues(plan: Plan, case: Case, links: Sequence[LinkCounters]) -> list[tuple[str, int]]:
    """See NetworkEvidence."""
    everything = network_at(plan, case).everything
    may_lose = {index for index, direction in enumerate(everything) if direction.loss}
    may_lose |= {event.direction for event in link_events_of(plan, case) if event.loss}
    dropped: dict[str, int] = {}
    for row in links:
        if row.dropped and (row.lost is not None or row.direction not in may_lose):
            dropped[row.label] = dropped.get(row.label, 0) + row.dropped
    return list(dropped.items())


def jitters(plan: Plan, case: Case) -> bool:
    """Whether the plan asks for packets that are delayed by chance."""
    if any(link.jitter_s for link in network_at(plan, case).links):
        return True
    return any(event.jitter_s for event in link_events_of(plan, case))


def link_row(counted: LinkCounters, planned: PlannedTraffic) -> dict[str, object]:
    """One direction in links.parquet: what was counted, and what the plan should bring."""
    return counted.as_row() | {"planned_bytes": planned.wire_bytes, "planned_messages": planned.messages}
