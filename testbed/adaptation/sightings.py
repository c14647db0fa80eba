"""What a job sees of one of its own iterations: when its messages crossed, and what its actions took. No more.

Between two datacenters it sees messages of two sizes: those of the pipeline, and a probe that it sends once in an
iteration while nothing else is on its way. Both together tell a delay from a rate.
A path that it does not use it may look at (looks.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from testbed.pipeline.ir import Kind
from testbed.plan.plan import Route
from testbed.trace.tables import KINDS, MESSAGE_LETTERS, Trace

PROBE_BYTES = 1500.0
"""On the wire: one packet."""

SENDER_LIMITED = 1.2
"""What comes in no longer than so many times what it took to send does not tell of a link."""

Pair = tuple[str, str]
"""Two datacenters: source and target."""


class Path(NamedTuple):
    """From one datacenter to another, by one of the routes between them."""

    source: str
    target: str
    route: Route
    """Directions, by their numbers in the plan."""
    over: str = ""
    """Their links in words; "" for the route as planned."""

    @property
    def pair(self) -> Pair:
        """Its ends."""
        return self.source, self.target


RankKind = tuple[int, Kind]


class PlacedRanks(NamedTuple):
    """Of every rank of a job."""

    sites: tuple[str, ...]
    """Its datacenter."""
    pipeline_ranks: tuple[int, ...]
    """Its place in the pipeline; the same of all replicas' and tensor ranks that have the same stages."""
    word_shorter_s: Mapping[Path, float] = MappingProxyType({})
    """By so much less than a probe does word that a receive is posted take, as planned ..."""
    word_shorter_bytes: float = 0.0
    """... being so many bytes shorter."""


class Crossing(NamedTuple):
    """Messages from one datacenter to another."""

    probe_s: float
    message_s: float
    """The least of all that the pipeline sent there, from when the receiver was ready for it too."""
    message_bytes: float
    """On the wire."""

    @property
    def tells_rate(self) -> bool:
        """Whether they are longer than a probe: else they say no more than it does."""
        return self.message_bytes > PROBE_BYTES

    @property
    def per_byte_s(self) -> float:
        """What a message of more bytes than a probe took longer than one, for each of them."""
        return max(0.0, self.message_s - self.probe_s) / (self.message_bytes - PROBE_BYTES)


class TrainTimes(NamedTuple):
    """Packets sent back to back over links that were idle, from when the first one was sent."""

    first_s: float
    """Until it came ..."""
    last_s: float
    """... and until the last one did."""
    wire_bytes: float
    """Of all of them."""
    sent_s: float = 0.0
    """How long it took to send them: of a link that is faster than its sender it is known how fast it is at least."""

    def crossing(self, message_bytes: float, planned_bps: float) -> Crossing:
        """What a packet and a message of so many bytes take there; at the planned rate where all that is known of the
        rate is that it may be that.
        """
        per_byte_s = max(0.0, self.last_s - self.first_s) / (self.wire_bytes - PROBE_BYTES)
        if self.last_s - self.first_s <= SENDER_LIMITED * self.sent_s:
            per_byte_s = min(per_byte_s, 8 / planned_bps)
        longer_s = per_byte_s * max(0.0, message_bytes - PROBE_BYTES)
        return Crossing(self.first_s, self.first_s + longer_s, message_bytes)


class ActionTimes(NamedTuple):
    """All actions of a kind on a rank, each as if it were whole."""

    mean_s: float
    deviation_s: float
    """Between them; 0 of a single one."""
    actions: int


class Sighting(NamedTuple):
    """One iteration."""

    iteration_s: float
    crossings: Mapping[Path, Crossing]
    """By the paths that it used."""
    slots: Mapping[RankKind, ActionTimes]
    """By pipeline rank; of several replicas that of the slowest."""
    looked: Mapping[Path, Crossing] = MappingProxyType({})
    """What messages would take, as planned, by paths that it did not use and looked at."""

    def by_themselves(self, shares: Mapping[Path, float]) -> Sighting:
        """With messages as if they had not had to wait for others on a full link: these shares of what they took longer
        than a probe, which no delay changes. More than 1 where they waited for word that took longer than as planned.
        """
        crossings = {
            path: each._replace(
                message_s=each.probe_s + shares.get(path, 1.0) * max(0.0, each.message_s - each.probe_s)
            )
            for path, each in self.crossings.items()
        }
        return self._replace(crossings=crossings)

    def of_other_actions(self, larger: float, longer: float) -> Sighting:
        """As it would be of actions that compute so many times as much, and messages of so many times the bytes."""
        crossings, slots = {}, {}
        for path, each in self.crossings.items():
            size = longer * each.message_bytes
            if each.tells_rate and size > PROBE_BYTES:
                longer_s = (size - PROBE_BYTES) * each.per_byte_s
                crossings[path] = Crossing(each.probe_s, each.probe_s + longer_s, size)
            else:
                crossings[path] = each._replace(message_bytes=min(size, each.message_bytes))
        for which, times in self.slots.items():
            slots[which] = ActionTimes(larger * times.mean_s, larger * times.deviation_s, times.actions)
        return self._replace(crossings=crossings, slots=slots)


def sighting(trace: Trace, ranks: PlacedRanks, probes_s: Mapping[Path, float]) -> Sighting:
    """What the times of an iteration of the job with these ranks say; of every two datacenters it uses one path."""
    path_of, by_pair = {path.pair: path for path in probes_s}, {path.pair: probe for path, probe in probes_s.items()}
    shorter_s = {path.pair: ranks.word_shorter_s.get(path, 0.0) for path in probes_s}
    crossed, slots = _crossed(trace, ranks.sites, by_pair), _slots(trace, ranks.pipeline_ranks)
    # nothing hangs on words where a message was sent when word had come even if it took as long as a probe
    sure = _least([each for each in crossed if not each.sent_s < each.posted_s + by_pair.get(each.back, 0.0)], by_pair)
    for pair, crossing in sure.items():
        if crossing.tells_rate:
            shorter_s[pair] = ranks.word_shorter_bytes * crossing.per_byte_s
    words_s = {pair: max(0.0, probe - shorter_s[pair]) for pair, probe in by_pair.items()}
    probes = {pair: Crossing(probe, probe, PROBE_BYTES) for pair, probe in by_pair.items()}  # for want of messages
    found = {**probes, **_least(crossed, by_pair, words_s), **sure}
    crossings = {path_of[pair]: crossing for pair, crossing in found.items()}
    return Sighting(float(trace.makespans()[0]), crossings, slots)


def with_wire_bytes(measured: Trace, predicted: Trace) -> Trace:
    """A measured trace, which does not know what its messages are on the wire, with what the model says of messages of
    as many bytes.
    """
    messages, known = measured.messages.copy(), predicted.messages
    payloads, first = np.unique(known["payload_bytes"], return_index=True)
    places = np.minimum(np.searchsorted(payloads, messages["payload_bytes"]), len(payloads) - 1)
    same = payloads[places] == messages["payload_bytes"]
    messages["wire_bytes"] = np.where(same, known["wire_bytes"][first][places], messages["wire_bytes"])
    return replace(measured, messages=messages)


class _Crossed(NamedTuple):
    """A message of the pipeline."""

    pair: Pair
    wire_bytes: float
    posted_s: float
    """Not a number where nobody knows when: of receives that are posted early."""
    sent_s: float
    arrived_s: float

    @property
    def back(self) -> Pair:
        """The way of the word that its receive is posted."""
        source, target = self.pair
        return target, source


def _crossed(trace: Trace, sites: Sequence[str], pairs: Collection[Pair]) -> list[_Crossed]:
    """Messages between these datacenters, without those for which their receivers were not waiting: of them it is only
    known that they lay ready.
    """
    sent = trace.messages[np.isin(trace.messages["kind"], list(MESSAGE_LETTERS))]
    sent = sent[~np.isnan(sent["arrived_s"])]
    names = ("source_rank", "target_rank", "wire_bytes", "posted_s", "sent_s", "arrived_s")
    every = (
        _Crossed((sites[source], sites[target]), *rest)
        for source, target, *rest in zip(*(sent[name].tolist() for name in names), strict=True)
    )
    return [each for each in every if each.pair in pairs]


def _least(
    crossed: Sequence[_Crossed], probes_s: Mapping[Pair, float], words_s: Mapping[Pair, float] = MappingProxyType({})
) -> dict[Pair, Crossing]:
    """The fastest message of every pair, from when it was sent and word of its receive had come."""
    found: dict[Pair, Crossing] = {}
    for each in crossed:
        ready_s = each.posted_s + words_s.get(each.back, 0.0)
        took_s = each.arrived_s - (ready_s if ready_s > each.sent_s else each.sent_s)
        if each.pair not in found or took_s < found[each.pair].message_s:
            found[each.pair] = Crossing(probes_s[each.pair], took_s, each.wire_bytes)
    return found


def _slots(trace: Trace, pipeline_ranks: Sequence[int]) -> dict[RankKind, ActionTimes]:
    table = trace.actions
    whole_s = (table["end_s"] - table["start_s"]) * table["part_of"] / (table["part_end"] - table["part_begin"])
    found: dict[RankKind, ActionTimes] = {}
    for rank, place in enumerate(pipeline_ranks):
        for code, kind in enumerate(KINDS):
            mine = whole_s[(table["rank"] == rank) & (table["kind"] == code)]
            if len(mine):
                times = ActionTimes(float(mine.mean()), float(mine.std()), len(mine))
                found[place, kind] = max(found.get((place, kind), times), times)
    return found
