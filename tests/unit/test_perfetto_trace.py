"""A run as a Perfetto trace: read back with the library that writes it, and held against the tables it was made of."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import run_testbed
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as PerfettoTrace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

from testbed.model.simulate import simulate
from testbed.pipeline.algorithms import Members, exchange
from testbed.pipeline.collectives import Collective
from testbed.pipeline.problem import uniform
from testbed.results.load import load_traces
from testbed.results.perfetto_trace import Iteration, TracedCase, write
from testbed.schedule.registry import FAMILIES, generate
from testbed.trace.summary import peaks_in_flight
from testbed.trace.tables import KINDS, MESSAGE_KINDS, Trace

RUN = Path(__file__).parents[1] / "recorded/format-3-run"
RANKS = 4
LANES = [f"rank {rank}: a/{rank}" for rank in range(RANKS)]


@dataclass
class Slice:
    """A slice as the library reads it."""

    begin_ns: int
    name: str
    facts: dict[str, Any]
    flows: list[int]
    ending: list[int]
    end_ns: int = -1


@dataclass
class Track:
    """A track with all that is on it; `path` is the names from its process on."""

    path: tuple[str, ...] = ()
    place: int = 0
    slices: list[Slice] = field(default_factory=list)
    counts: list[tuple[int, float]] = field(default_factory=list)


def read(content: bytes) -> list[Track]:
    """The tracks of a trace. A slice that ends before it begins, or never, and two packets out of order fail here."""
    trace = PerfettoTrace()
    trace.ParseFromString(content)
    assert trace.packet[0].sequence_flags == 1
    assert {packet.trusted_packet_sequence_id for packet in trace.packet} == {1}
    tracks: dict[int, Track] = {}
    open_slices: dict[int, Slice] = {}
    last_ns: dict[int, int] = {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            told = packet.track_descriptor
            assert told.uuid not in tracks
            parent = tracks[told.parent_uuid].path if told.parent_uuid else ()
            tracks[told.uuid] = Track((*parent, told.name or told.process.process_name), told.sibling_order_rank)
            continue
        event, ns = packet.track_event, packet.timestamp
        track = tracks[event.track_uuid]
        assert ns >= last_ns.get(event.track_uuid, 0)
        last_ns[event.track_uuid] = ns
        if event.type == TrackEvent.TYPE_INSTANT:
            track.slices.append(Slice(ns, event.name, {}, [], [], ns))
        elif event.type == TrackEvent.TYPE_COUNTER:
            track.counts.append((ns, event.double_counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_slices, "no slice within another"
            facts = {one.name: getattr(one, str(one.WhichOneof("value"))) for one in event.debug_annotations}
            begun = Slice(ns, event.name, facts, list(event.flow_ids), list(event.terminating_flow_ids))
            open_slices[event.track_uuid] = begun
            track.slices.append(begun)
        else:
            assert event.type == TrackEvent.TYPE_SLICE_END
            open_slices.pop(event.track_uuid).end_ns = ns
    assert not open_slices
    return list(tracks.values())


def simulated(family: str, microbatches: int = 8) -> Trace:
    placement = FAMILIES[family].stage_to_rank(RANKS)
    problem = uniform(
        RANKS, microbatches, stage_to_rank=placement, memory=float(2 * microbatches), delay_s=2, cuts=(1,)
    )
    return simulate(problem, generate(family, problem))


def later(trace: Trace, iteration: int, by: float) -> Trace:
    """As if it had been measured: every time a little longer."""
    actions, messages = trace.actions.copy(), trace.messages.copy()
    for table in (actions, messages):
        table["iteration"] = iteration
        for name in (column for column in table.dtype.names or () if column.endswith("_s")):
            table[name] *= by
    return replace(trace, actions=actions, messages=messages)


def written(*cases: TracedCase, lanes: Sequence[str] = LANES) -> list[Track]:
    file = io.BytesIO()
    write(cases, lanes, file)
    return read(file.getvalue())


def case_of(family: str) -> TracedCase:
    trace = simulated(family)
    return TracedCase(family, [Iteration(n, trace, later(trace, n, 1 + n / 1000)) for n in (2, 3)])


def ns(seconds: float) -> int:
    return round(float(seconds) * 1e9)


def begins(case: TracedCase) -> Iterator[int]:
    """When every iteration of a case begins in the trace."""
    begin = 0
    for one in case.iterations:
        yield begin
        ends = [begin]
        for trace in (one.predicted, one.measured):
            messages = trace.messages
            until = np.where(np.isnan(messages["arrived_s"]), messages["taken_s"], messages["arrived_s"])
            ends += [begin + ns(trace.makespans()[0]), *(begin + ns(second) for second in until)]
        begin = max(ends)


def require_true_to(tracks: Sequence[Track], case: TracedCase, lanes: Sequence[str] = LANES) -> None:
    """Every action and message of the case is there, at its nanoseconds, with the arrows that it has."""
    for source in ("predicted", "measured"):
        arrows: dict[int, dict[str, Any]] = {}
        for rank, lane in enumerate(lanes):
            (mine,) = [track for track in tracks if track.path == (case.label, lane, source)]
            incoming = [
                one for t in tracks if t.path == (case.label, lane, f"messages to it, {source}") for one in t.slices
            ]
            (held,) = [track for track in tracks if track.path == (case.label, lane, f"in flight, {source}")]
            expected, on_the_way, peak = [], [], 0.0
            for begin, iteration in zip(begins(case), case.iterations, strict=True):
                trace = iteration.predicted if source == "predicted" else iteration.measured
                actions = np.sort(trace.actions[trace.actions["rank"] == rank], order="start_s")
                following = [*actions["start_s"][1:], np.inf]
                for action, next_s in zip(actions, following, strict=True):
                    times = begin + ns(action["start_s"]), begin + ns(min(action["end_s"], next_s))
                    expected.append((*times, f"{KINDS[action['kind']]} {action['microbatch']}", int(action["stage"])))
                for message in trace.messages[trace.messages["target_rank"] == rank]:
                    until = message["taken_s"] if np.isnan(message["arrived_s"]) else message["arrived_s"]
                    sender, step = int(message["source_rank"]), int(message["microbatch"])
                    on_the_way.append((begin + ns(message["sent_s"]), begin + ns(until), sender, step))
                peak = max(peak, peaks_in_flight(trace)[rank])
            found = [(o.begin_ns, o.end_ns, o.name.partition(" of stage")[0], o.facts["stage"]) for o in mine.slices]
            assert found == sorted(expected)
            taken = [(o.begin_ns, o.end_ns, o.facts["from rank"], int(o.name.rpartition(" ")[2])) for o in incoming]
            assert sorted(taken) == sorted(on_the_way)
            assert max(count for _, count in held.counts) == peak
            assert held.counts[-1][1] == 0, "nothing is left in flight"
            for one in mine.slices:
                for flow in one.flows:
                    arrows.setdefault(flow, {})["from"] = (rank, one)
                for flow in one.ending:
                    arrows.setdefault(flow, {})["to"] = (rank, one)
            for one in incoming:
                for flow in one.flows:
                    arrows.setdefault(flow, {})["over"] = (rank, one)
        require_arrows(arrows, case, source)


def require_arrows(arrows: dict[int, dict[str, Any]], case: TracedCase, source: str) -> None:
    """From the action that makes a message over it to the one that takes it, as many as there are such messages."""
    for arrow in arrows.values():
        (sender, made), (receiver, on_its_way), (taker, taken) = arrow["from"], arrow["over"], arrow["to"]
        assert receiver == taker != sender
        assert on_its_way.facts["from rank"] == sender
        assert made.facts["microbatch"] == taken.facts["microbatch"]
        assert abs(made.facts["stage"] - taken.facts["stage"]) == 1
        forward = on_its_way.name.startswith("activation")
        assert (taken.facts["stage"] > made.facts["stage"]) == forward
        assert made.name[0] in ("F" if forward else "BI")
        assert made.begin_ns <= on_its_way.begin_ns
    traces = [one.predicted if source == "predicted" else one.measured for one in case.iterations]
    assert len(arrows) == sum(int((trace.messages["kind"] <= 1).sum()) for trace in traces) > 0


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "crosspipe-greedy"])
def test_every_action_and_message_is_there_to_the_nanosecond(family: str) -> None:
    case = case_of(family)
    require_true_to(written(case), case)


def test_predicted_and_measured_stand_beside_each_other_in_every_rank() -> None:
    tracks = written(case_of("1f1b"), case_of("gpipe"))
    assert [track.path for track in tracks if len(track.path) == 1] == [("1f1b",), ("gpipe",)]
    for label in ("1f1b", "gpipe"):
        below = sorted((t.place, t.path[1]) for t in tracks if t.path[0] == label and len(t.path) == 2)
        assert [name for _, name in below] == ["iterations, predicted", "iterations, measured", *LANES]
        for lane in LANES:
            of_rank = {(t.place, t.path[2]) for t in tracks if t.path[:2] == (label, lane) and len(t.path) == 3}
            shown = [name for _, name in sorted(of_rank)]
            assert shown[:4] == ["predicted", "measured", "in flight, predicted", "in flight, measured"]
    (overview,) = [track for track in tracks if track.path == ("gpipe", "iterations, measured")]
    assert [one.name for one in overview.slices] == ["iteration 2", "iteration 3"]
    assert overview.slices[0].begin_ns == 0, "every schedule begins at 0"


def test_messages_between_replicas_are_there_without_arrows() -> None:
    problem = uniform(2, 3, delay_s=2, wire_s=1)
    steps = exchange("ring", Members(("a", "b"), sharded=True)).gather
    ring = Collective(steps, {1: 1.0}, {(0, 1): (0,), (1, 0): (1,)}, kind="all-gather")
    two = replace(problem, pipelines=problem.pipelines * 2, all_gather=(ring, ring))
    trace = simulate(two, generate("1f1b", problem))
    case = TracedCase("1f1b", [Iteration(0, trace, later(trace, 0, 1.01))])
    tracks = written(case)
    require_true_to(tracks, case)
    gathered = [one for track in tracks for one in track.slices if one.name.startswith("all-gather")]
    assert len(gathered) == 2 * int((trace.messages["kind"] == MESSAGE_KINDS.index("all-gather")).sum()) > 0
    assert not any(one.flows for one in gathered)


def test_an_output_handed_over_late_is_shown_until_the_next_slot() -> None:
    """As on a real clock; slices of a track may not overlap, so where it ended is among its facts."""
    trace = simulated("1f1b")
    late = later(trace, 1, 1.0)
    first, second = np.flatnonzero(late.actions["rank"] == 0)[:2]
    late.actions["end_s"][first] = late.actions["start_s"][second] + 0.25
    tracks = written(TracedCase("1f1b", [Iteration(1, trace, late)]))
    (mine,) = [track for track in tracks if track.path == ("1f1b", LANES[0], "measured")]
    assert mine.slices[0].end_ns == mine.slices[1].begin_ns
    assert mine.slices[0].facts["end_s"] == late.actions["end_s"][first]


def test_what_became_of_links_is_marked_when_it_was(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "run.pftrace"
    shutil.copytree(RUN, run)
    comparison = json.loads((run / "comparison.json").read_text())
    entry = {
        "label": "1f1b",
        "event": "link a--b down for 30 ms at 2",
        "iteration": 2,
        "late_s": 1e-3,
        "iterations": [],
    }
    comparison["link_events"] = [entry | {"at_s": 0.1, "until_s": 0.13}]
    (run / "comparison.json").write_text(json.dumps(comparison))
    assert run_testbed("report", run, "--trace", file, "--json").returncode == 0
    tracks = {track.path: track for track in read(file.read_bytes())}
    planned, seen = (tracks["1f1b", f"events, {source}"].slices for source in ("predicted", "measured"))
    second = tracks["1f1b", "iterations, measured"].slices[1].begin_ns
    assert [(one.name, one.begin_ns - second) for one in planned] == [
        (entry["event"], ns) for ns in (10**8, 13 * 10**7)
    ]
    assert [one.begin_ns - second for one in seen] == [101 * 10**6, 131 * 10**6]


def test_a_run_is_written_from_its_files(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "run.pftrace"
    shutil.copytree(RUN, run)
    done = run_testbed("report", run, "--trace", file, "--json")
    assert done.returncode == 0, done.stderr
    tracks = read(file.read_bytes())
    traces = load_traces(run)
    measured = traces["1f1b", "measured"]
    case = TracedCase("1f1b", [Iteration(n, traces["1f1b", "predicted"], measured.of_iteration(n)) for n in (1, 2, 3)])
    lanes = [track.path[1] for track in tracks if len(track.path) == 2 and track.path[1].startswith("rank ")]
    assert len(lanes) == 4
    require_true_to(tracks, case, lanes)
    known = {one.facts["shown until it"] for t in tracks if "messages" in t.path[-1] for one in t.slices}
    assert known == {"arrived", "was taken"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "messages.parquet").unlink(), "messages.parquet: got 'no such file'"),
        (lambda run: (run / "iterations.parquet").write_bytes(b"no"), "iterations.parquet: file: got "),
    ],
)
def test_a_damaged_run_is_one_clear_line(tmp_path: Path, damage: Any, message: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    (run / "timeline.svg").write_text("there")
    damage(run)
    done = run_testbed("report", run, "--trace", tmp_path / "run.pftrace")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run.pftrace").exists()


def test_a_place_that_cannot_be_written_is_named_before_anything_is_drawn(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    done = run_testbed("report", run, "--trace", "/proc/nowhere/x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--trace: file: got '/proc/nowhere/x', expected a file that can be written" in done.stderr
    assert not (run / "timeline.svg").exists()


def test_the_viewers_own_reader_finds_the_same(tmp_path: Path) -> None:
    """Where its program is: the library would download it."""
    program = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if program is None:
        pytest.skip("no trace_processor_shell on the PATH, and a test downloads nothing")
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    case, file = case_of("1f1b"), tmp_path / "case.pftrace"
    with file.open("wb") as stream:
        write([case], LANES, stream)
    with TraceProcessor(trace=str(file), config=TraceProcessorConfig(bin_path=program)) as reader:
        (slices,) = reader.query("select count(*) as found from slice where dur >= 0")
        (flows,) = reader.query("select count(*) as found from flow")
    actions = sum(len(one.predicted.actions) + len(one.measured.actions) for one in case.iterations)
    messages = sum(len(one.predicted.messages) + len(one.measured.messages) for one in case.iterations)
    assert slices.found == actions + messages + 2 * len(case.iterations)
    assert flows.found == 2 * messages
