"""A run as a Perfetto trace: every action and message of every measured iteration, predicted beside measured.

A schedule is a process, in which every rank has its tracks next to each other: predicted, measured, microbatches in
flight, and the messages that come to it. All schedules begin at 0; iterations follow each other without a gap, each
beginning where the later of the predicted and the measured one before has ended. Times are whole nanoseconds.

On a real clock an action may hand its output over when the next one's slot has begun already: it is shown until there,
since slices of a track may not overlap, and its `end_s` says when it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from testbed.errors import BadInput
from testbed.results.event_marks import EventMark, event_marks
from testbed.results.load import load_run, load_traces
from testbed.results.run_tables import frame_of
from testbed.trace.predictions import prediction_of
from testbed.trace.tables import KINDS, MESSAGE_KINDS, MESSAGE_LETTERS, Trace

SOURCES = ("predicted", "measured")

_SEQUENCE = 1
"""Of packets: one writer has one."""


class Iteration(NamedTuple):
    """A measured iteration, and what was predicted of it."""

    number: int
    predicted: Trace
    measured: Trace


class TracedCase(NamedTuple):
    """A schedule: its label, and its measured iterations in their order."""

    label: str
    iterations: Sequence[Iteration]
    events: Sequence[EventMark] = ()
    """What became of links and ranks in it."""


def write_run(directory: Path, path: Path) -> None:
    """Write the trace of a run from its data files; of an incomplete run, of the schedules that are finished.

    Raises BadInput where there is none.
    """
    run, traces = load_run(directory), load_traces(directory)
    if not run.schedules:
        raise BadInput.of(str(directory), "schedules", 0, "at least one that is finished")
    rows = frame_of(directory / "iterations.parquet", ["schedule", "warmup", "iteration"])
    measured = rows[~rows["warmup"].astype(bool)]
    cases = []
    for label in run.schedules:
        numbers = sorted(set(measured[measured["schedule"] == label]["iteration"].tolist()))
        for source in SOURCES:
            if not numbers or (label, source) not in traces:
                expected = "rows of every schedule that is finished"
                raise BadInput.of(str(directory), "tables", f"no {source} {label}", expected)
        predicted, seen = traces[label, "predicted"], traces[label, "measured"]
        iterations = [Iteration(n, prediction_of(predicted, n), seen.of_iteration(n)) for n in numbers]
        cases.append(TracedCase(label, iterations, event_marks(run.comparison, label)))
    lanes = [f"rank {rank}: {node}" for rank, node in enumerate(run.manifest.get("nodes", []))]
    with path.open("wb") as file:
        write(cases, lanes, file)


def write(cases: Sequence[TracedCase], lanes: Sequence[str], file: IO[bytes]) -> None:
    """Write the trace of these cases; `lanes` is the name of every rank."""
    writer = _Writer(StreamingTraceProtoBuilder(file))
    for number, case in enumerate(cases, start=1):
        process = writer.process(number, case.label)
        overview = [writer.track(f"iterations, {source}", process, place) for place, source in enumerate(SOURCES)]
        marks = _event_tracks(writer, process) if case.events else {}
        ranks = [_RankTracks.declared(writer, process, rank, name) for rank, name in enumerate(lanes)]
        begin_ns = 0
        for iteration in case.iterations:
            name, ends = f"iteration {iteration.number}", [begin_ns]
            for source, track, trace in zip(SOURCES, overview, (iteration.predicted, iteration.measured), strict=True):
                end_ns = begin_ns + int(_ns(trace.makespans())[0])
                writer.slices([_Slice(begin_ns, end_ns, name)], track)
                ends += [end_ns, _write_trace(writer, trace, ranks, source, begin_ns)]
                mine = [mark for mark in case.events if mark.iteration == iteration.number]
                writer.instants(_event_slices(mine, source, begin_ns), marks.get(source, track))
            begin_ns = max(ends)


def _event_tracks(writer: _Writer, process: int) -> dict[str, int]:
    """By source, where events of links and ranks are."""
    return {source: writer.track(f"events, {source}", process, place) for place, source in enumerate(SOURCES)}


def _event_slices(marks: Sequence[EventMark], source: str, begin_ns: int) -> list[_Slice]:
    """By their time: as they were to be, or as they really were."""
    found = []
    for mark in marks:
        for seconds in mark.instants_s:
            at_ns = begin_ns + int(_ns(seconds + mark.late_s * (source == "measured")))
            facts: dict[str, int | float | str | bool] = {"iteration": mark.iteration, "at_s": seconds}
            found.append(_Slice(at_ns, at_ns, mark.said, facts | {"late_s": mark.late_s}))
    return sorted(found, key=lambda one: one.begin_ns)


def _write_trace(writer: _Writer, trace: Trace, ranks: Sequence[_RankTracks], source: str, begin_ns: int) -> int:
    """Write one iteration; returns when its last message ended."""
    flows, end_ns = _Flows(trace, writer), begin_ns
    for rank, tracks in enumerate(ranks):
        actions = trace.actions[trace.actions["rank"] == rank]
        actions = actions[np.argsort(actions["start_s"], kind="stable")]
        starts = begin_ns + _ns(actions["start_s"])
        ends = begin_ns + _ns(actions["end_s"])
        ends[:-1] = np.minimum(ends[:-1], starts[1:])
        shown = list(zip(actions, starts.tolist(), ends.tolist(), strict=True))
        writer.slices(_action_slices(shown, flows), tracks.actions[source])
        writer.counts(_in_flight(shown, begin_ns), tracks.in_flight[source])
        numbers = np.flatnonzero(trace.messages["target_rank"] == rank).tolist()
        found = (_message_slice(trace.messages[number], flows.of[number], begin_ns) for number in numbers)
        messages = sorted(filter(None, found), key=lambda one: (one.begin_ns, one.end_ns))
        _write_messages(writer, messages, tracks, source)
        end_ns = max([end_ns, *(one.end_ns for one in messages)])
    return end_ns


# --- slices --------------------------------------------------------------------------------------


class _Slice(NamedTuple):
    """What happened on a track from one time to another, nanoseconds."""

    begin_ns: int
    end_ns: int
    name: str
    facts: Mapping[str, int | float | str | bool] = {}
    flows: Sequence[int] = ()
    """Arrows that go on from it."""
    ending_flows: Sequence[int] = ()
    """Arrows that end at it."""


_Shown = tuple[Any, int, int]
"""A row of the actions, and from when to when it is shown, nanoseconds."""


def _action_slices(shown: Sequence[_Shown], flows: _Flows) -> Iterator[_Slice]:
    """Of one rank, by their start."""
    several = len({int(action["stage"]) for action, _, _ in shown}) > 1
    for action, start_ns, end_ns in shown:
        kind, stage, microbatch = str(KINDS[action["kind"]]), int(action["stage"]), int(action["microbatch"])
        name = f"{kind} {microbatch}" + (f" of stage {stage}" if several else "")
        facts: dict[str, int | float | str | bool] = {"stage": stage, "microbatch": microbatch}
        facts |= {column: int(action[column]) for column in ("job", "replica", "iteration")}
        if action["part_of"] > 1:
            facts["sub-blocks"] = f"[{action['part_begin']}, {action['part_end']}) of {action['part_of']}"
        for column in ("reached_s", "ready_s", "computed_s", "end_s"):
            if np.isfinite(action[column]):
                facts[column] = float(action[column])
        out, into = flows.at_action(action)
        yield _Slice(start_ns, end_ns, name, facts, out, into)


def _message_slice(message: Any, flow: int | None, begin_ns: int) -> _Slice | None:
    """From being handed to the network until its arrival, or, where that is not known, until it was taken."""
    arrived = np.isfinite(message["arrived_s"])
    until_s = message["arrived_s"] if arrived else message["taken_s"]
    if not (np.isfinite(until_s) and np.isfinite(message["sent_s"])):
        return None
    facts: dict[str, int | float | str | bool] = {
        "from rank": int(message["source_rank"]),
        "stage": int(message["stage"]),
        "iteration": int(message["iteration"]),
        "shown until it": "arrived" if arrived else "was taken",
        "awaited": bool(message["awaited"]),
    }
    for column in ("payload_bytes", "wire_bytes", "posted_s", "taken_s"):
        if np.isfinite(message[column]):
            facts[column] = float(message[column])
    name = f"{MESSAGE_KINDS[message['kind']]} {message['microbatch']}"
    begin, end = begin_ns + int(_ns(message["sent_s"])), begin_ns + int(_ns(until_s))
    return _Slice(begin, max(begin, end), name, facts, () if flow is None else (flow,))


def _write_messages(writer: _Writer, messages: Sequence[_Slice], tracks: _RankTracks, source: str) -> None:
    """Messages that are under way together lie on tracks of one name, which a viewer shows as one."""
    lanes: list[list[_Slice]] = []
    for one in messages:
        free = next((lane for lane in lanes if lane[-1].end_ns <= one.begin_ns), None)
        if free is None:
            lanes.append([one])
        else:
            free.append(one)
    known = tracks.messages[source]
    while len(known) < len(lanes):
        known.append(writer.track(f"messages to it, {source}", tracks.parent, _PLACES["messages", source]))
    for lane, track in zip(lanes, known, strict=False):
        writer.slices(lane, track)


def _in_flight(shown: Sequence[_Shown], begin_ns: int) -> Iterator[tuple[int, float]]:
    """Of one rank, (time, microbatches in flight from then on): forward begun, B or W not yet ended."""
    changes = []
    for action, start_ns, end_ns in shown:
        kind = str(KINDS[action["kind"]])
        if kind == "F" and action["part_begin"] == 0:
            changes.append((start_ns, 1))
        if kind in "BW" and action["part_end"] == action["part_of"]:
            changes.append((end_ns, -1))
    chunks, held = len({int(action["stage"]) for action, _, _ in shown}), 0
    yield begin_ns, 0.0
    for ns, change in sorted(changes):  # what ends at an instant before what begins at it
        held += change
        yield ns, held / chunks


def _ns(seconds: NDArray[np.float64] | float) -> NDArray[np.int64]:
    whole: NDArray[np.int64] = np.rint(np.asarray(seconds) * 1e9).astype(np.int64)
    return whole


class _Flows:
    """The arrows of one iteration: from the action that makes a message, over the message, to the one that takes it."""

    def __init__(self, trace: Trace, writer: _Writer) -> None:
        self.of: list[int | None] = []
        """Per message its arrow; None of one that is no action's: of collectives, and notices."""
        self._made: dict[tuple[object, ...], int] = {}
        self._taken: dict[tuple[object, ...], int] = {}
        for message in trace.messages:
            letter = MESSAGE_LETTERS.get(int(message["kind"]))
            if letter is None:
                self.of.append(None)
                continue
            flow, stage, microbatch = writer.new_flow(), int(message["stage"]), int(message["microbatch"])
            consumer = stage + (1 if letter == "F" else -1)
            self.of.append(flow)
            self._made[int(message["source_rank"]), letter, stage, microbatch] = flow
            self._taken[int(message["target_rank"]), letter, consumer, microbatch] = flow

    def at_action(self, action: Any) -> tuple[Sequence[int], Sequence[int]]:
        """(arrows that begin at an action, arrows that end there), by what pipeline/depend.py says of messages."""
        kind = str(KINDS[action["kind"]])
        letter = {"F": "F", "B": "G", "I": "G"}.get(kind)
        key = int(action["rank"]), letter, int(action["stage"]), int(action["microbatch"])
        out = self._made.get(key) if action["part_end"] == action["part_of"] else None
        into = self._taken.get(key) if action["part_begin"] == 0 else None
        return [] if out is None else [out], [] if into is None else [into]


# --- tracks and packets --------------------------------------------------------------------------

_PLACES = {
    (what, source): 2 * group + place
    for group, what in enumerate(("actions", "in flight", "messages"))
    for place, source in enumerate(SOURCES)
}
"""The order of a rank's tracks."""


@dataclass(frozen=True)
class _RankTracks:
    """The tracks of a rank, by source."""

    parent: int
    actions: Mapping[str, int]
    in_flight: Mapping[str, int]
    messages: Mapping[str, list[int]] = field(default_factory=lambda: {source: [] for source in SOURCES})
    """As many as messages are under way together."""

    @classmethod
    def declared(cls, writer: _Writer, process: int, rank: int, name: str) -> _RankTracks:
        parent = writer.track(name, process, len(SOURCES) + rank)
        actions = {source: writer.track(source, parent, _PLACES["actions", source]) for source in SOURCES}
        in_flight = {
            source: writer.track(f"in flight, {source}", parent, _PLACES["in flight", source], counter=True)
            for source in SOURCES
        }
        return cls(parent, actions, in_flight)


class _Writer:
    """Writes packets; numbers of tracks and arrows are given here."""

    def __init__(self, builder: StreamingTraceProtoBuilder) -> None:
        self._builder = builder
        self._uuids, self._flows = count(1), count(1)
        self._begun = False

    def new_flow(self) -> int:
        """The number of another arrow."""
        return next(self._flows)

    def process(self, pid: int, name: str) -> int:
        """Declare a process; returns its track."""
        packet, descriptor = self._descriptor()
        descriptor.process.pid, descriptor.process.process_name = pid, name
        self._write(packet)
        return int(descriptor.uuid)

    def track(self, name: str, parent: int, place: int, *, counter: bool = False) -> int:
        """Declare a track below another one, the `place`-th there; returns its number."""
        packet, descriptor = self._descriptor()
        descriptor.name, descriptor.parent_uuid, descriptor.sibling_order_rank = name, parent, place
        if counter:
            descriptor.counter.unit_name = "microbatches"
        self._write(packet)
        return int(descriptor.uuid)

    def slices(self, slices: Iterable[_Slice], track: int) -> None:
        """Write what happened on a track, in the order of time."""
        for one in slices:
            packet, event = self._event(one.begin_ns, track, TrackEvent.TYPE_SLICE_BEGIN)
            event.name = one.name
            event.flow_ids.extend(one.flows)
            event.terminating_flow_ids.extend(one.ending_flows)
            for name, value in one.facts.items():
                _annotate(event, name, value)
            self._write(packet)
            packet, _ = self._event(one.end_ns, track, TrackEvent.TYPE_SLICE_END)
            self._write(packet)

    def instants(self, instants: Iterable[_Slice], track: int) -> None:
        """Write what happened on a track at once, in the order of time."""
        for one in instants:
            packet, event = self._event(one.begin_ns, track, TrackEvent.TYPE_INSTANT)
            event.name = one.name
            for name, value in one.facts.items():
                _annotate(event, name, value)
            self._write(packet)

    def counts(self, values: Iterable[tuple[int, float]], track: int) -> None:
        """Write (time, value) of a counter, in the order of time."""
        for ns, value in values:
            packet, event = self._event(ns, track, TrackEvent.TYPE_COUNTER)
            event.double_counter_value = value
            self._write(packet)

    def _descriptor(self) -> tuple[TracePacket, TrackDescriptor]:
        packet = self._builder.create_packet()
        descriptor = packet.track_descriptor
        descriptor.uuid = next(self._uuids)
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        return packet, descriptor

    def _event(self, ns: int, track: int, kind: Any) -> tuple[TracePacket, TrackEvent]:
        packet = self._builder.create_packet()
        packet.timestamp = ns
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        return packet, packet.track_event

    def _write(self, packet: TracePacket) -> None:
        packet.trusted_packet_sequence_id = _SEQUENCE
        if not self._begun:  # a reader begins to believe a sequence here
            packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
            self._begun = True
        self._builder.write_packet(packet)


def _annotate(event: TrackEvent, name: str, value: float | str) -> None:
    annotation = event.debug_annotations.add()
    annotation.name = name
    match value:
        case bool():
            annotation.bool_value = value
        case int():
            annotation.int_value = value
        case float():
            annotation.double_value = value
        case str():
            annotation.string_value = value
