"""Jobs on one network -> the program that the event model runs, and what its actions and messages are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.model.frames import NOWHERE, Edge, Way, edges_of, in_parts, send_seconds
from testbed.model.program import FREE, NONE, Program
from testbed.model.program_columns import Group, ProgramColumns, RowNames
from testbed.model.rows import Rows
from testbed.pipeline import action_columns
from testbed.pipeline.collectives import CollectiveMessage
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import NO_CARD, Problem, Receives
from testbed.trace.tables import ALL_GATHER, MESSAGE_KINDS, NOTICE

Floats = NDArray[np.float64]


class Load(NamedTuple):
    """A job on the network: all its replicas, and their tensor ranks, run the same schedule."""

    problem: Problem
    schedule: Schedule
    start_s: float = 0.0
    receives: Receives = "early"
    slots_s: Floats | None = None
    """What actions take in this very iteration, in place of the problem's durations: (replicas, stages, KINDS,
    microbatches); None: as the problem has it."""


def begin_s(load: Load, place: int, rank: int) -> float:
    """When a rank may begin: one turn after the other, counted over all replicas; tensor ranks together."""
    begins_s = load.problem.begins_s
    return load.start_s + (begins_s[place // load.problem.tensor * load.problem.n_ranks + rank] if begins_s else 0.0)


def shared_by(problem: Problem) -> tuple[object, ...]:
    """What problems have in common whose jobs share one network."""
    return problem.links, problem.changes, problem.stamped, problem.streams


def lower(loads: Sequence[Load]) -> tuple[Program, RowNames]:
    """The arrays of jobs that share a network. Raises ValueError when they do not have the same links."""
    columns = columns_of(loads)
    return columns.program(loads[0].problem), columns.names()


def columns_of(loads: Sequence[Load]) -> ProgramColumns:
    """The columns of jobs that share a network. Raises as `lower`."""
    shared = loads[0].problem
    if any(shared_by(load.problem) != shared_by(shared) for load in loads):
        raise ValueError("jobs of one program share one network")
    columns = ProgramColumns(len(shared.links), frozenset(change.link for change in shared.changes))
    for number, load in enumerate(loads):
        add_job(columns, number, load)
    return columns


def add_job(columns: ProgramColumns, job: int, load: Load, starts: Sequence[int] = ()) -> None:
    """A job: a pipeline per replica and tensor rank, then what the replicas exchange.

    `starts` has of each of its ranks the message that begins it; empty: ranks begin when the job does.
    """
    problem, schedule = load.problem, load.schedule
    rows, ranks = Rows(problem, action_columns.columns(schedule.rows), schedule.n_microbatches), range(schedule.n_ranks)
    first_rank, first_stage = len(columns.row_lengths), len(columns.shards)
    for place, pipeline in enumerate(problem.pipelines):
        stages, tensor_rank = len(columns.shards), place % problem.tensor
        base, here = columns.n_messages, len(columns.row_lengths)
        _messages(columns, job, place, load, here)
        columns.actions(rows, rows.durations_in(load.slots_s, place // problem.tensor), base, stages)
        columns.cards += [NONE if card == NO_CARD else card for card in pipeline.rank_cards] or [NONE for _ in ranks]
        columns.begin_s += [0.0 if starts else begin_s(load, place, rank) for rank in ranks]
        columns.waits += [bool(starts)] * len(ranks)
        columns.owner += [(job, place // problem.tensor, first_rank + problem.number(place, rank)) for rank in ranks]
        if tensor_rank == 0:
            columns.together += [[here + rank + n * len(ranks) for n in range(problem.tensor)] for rank in ranks]
        columns.shards += [0] * problem.n_stages
        columns.gradients += [schedule.n_microbatches] * problem.n_stages
        columns.reduces += [[] for _ in range(problem.n_stages)]
    for stage in range(problem.n_stages):
        _collective(columns, job, load, stage, False, first_rank, first_stage, starts)
    for stage in range(problem.n_stages):
        _collective(columns, job, load, stage, True, first_rank, first_stage)


class _Carried(NamedTuple):
    """Messages of one kind, or one part of each, as they travel: their numbers begin with `first`."""

    edge: Edge
    first: int


def _messages(columns: ProgramColumns, job: int, place: int, load: Load, first_rank: int) -> None:
    """The messages between the stages of one pipeline; with late receives also gloo's notices."""
    problem, m, edges, carried = load.problem, load.schedule.n_microbatches, edges_of(load.problem), list[_Carried]()
    replica = place // problem.tensor
    notices = problem.notice_bytes if load.receives == "late" else 0.0
    ahead = 0.0 if notices else problem.notice_bytes
    base = columns.n_messages

    def named(edge: Edge) -> None:
        ranks = (first_rank + edge.source, first_rank + edge.target)
        columns.name(job, replica, edge.kind, edge.stage, range(m), ranks, (edge.payload_bytes, edge.wire_bytes))

    def way(edge: Edge, size: float) -> Way:
        return Way(place, edge.source, (edge.source, edge.target), size - notices, ahead)

    for edge in edges:
        local = edge.source == edge.target
        release = 1 if load.receives == "early" or local else 2
        whole = Group(in_parts(len(edge.parts)), False, m, release, problem.handover_s, 0.0, 0.0)
        if len(edge.parts) == 1:
            carried.append(_Carried(edge, columns.n_messages))
            taken = None if local else way(edge, edge.wire_bytes)
            shape = NOWHERE if taken is None else taken.frame(problem)
            send_s = send_seconds(problem, shape, edge.wire_bytes)
            whole = whole._replace(frame=shape, local=local, send_s=send_s, job=job, way=taken)
        columns.group(whole)
        named(edge)
    for number, edge in enumerate(edges):
        if len(edge.parts) == 1:
            continue
        release = 1 if load.receives == "early" else 2
        ways = [way(edge, size) for size in edge.parts]
        for first in _parts(columns, job, problem, base + number * m, m, ways, edge.parts, release, 0.0):
            carried.append(_Carried(edge, first))
            named(edge)
    if load.receives == "late-free-notice":
        for edge, first in carried:
            columns.notice.append((first, np.full(m, NONE if edge.source == edge.target else FREE)))
    elif load.receives == "late":
        _notices(columns, job, place, load, first_rank, carried)


def _parts(
    columns: ProgramColumns,
    job: int,
    problem: Problem,
    whole: int,
    count: int,
    ways: Sequence[Way],
    sizes: Sequence[float],
    release: int,
    start_s: float,
) -> Iterator[int]:
    """The parts of `count` messages that begin with number `whole`; yields the first number of each part, which is then
    to be named. They are sent in one call after the other."""
    called_s = 0.0
    for way, size in zip(ways, sizes, strict=True):
        first, frame = columns.n_messages, way.frame(problem)
        send_s = send_seconds(problem, frame, size)
        columns.group(Group(frame, False, count, release, called_s, send_s, start_s, job, way))
        columns.parts.append((whole, first, count))
        called_s += send_s
        yield first


def _notices(
    columns: ProgramColumns,
    job: int,
    place: int,
    load: Load,
    first_rank: int,
    carried: Sequence[_Carried],
) -> None:
    """Per message, or part of one, gloo's notice of the receive (back to the sender) and of the send (ahead of it)."""
    problem, m = load.problem, load.schedule.n_microbatches
    size, count = problem.notice_bytes, len(carried) * m
    base = columns.n_messages
    for back in (True, False):
        for edge, _ in carried:
            ends = (edge.target, edge.source) if back else (edge.source, edge.target)
            way = Way(place, ends[0], ends, size, 0.0)
            # no handover: gloo's own thread answers a notice, no rank has to be woken
            columns.group(Group(way.frame(problem), edge.source == edge.target, m, 1, 0.0, 0.0, 0.0, job, way))
            ranks = (first_rank + ends[0], first_rank + ends[1])
            columns.name(job, place // problem.tensor, NOTICE, edge.stage, range(m), ranks, (0.0, size))
    for number, (edge, first) in enumerate(carried):
        if edge.source == edge.target:
            continue
        numbers = np.arange(base + number * m, base + (number + 1) * m)
        columns.notice.append((first, numbers))
        columns.announcement.append((first, numbers + count))
        columns.then += [(int(notice), first + index) for index, notice in enumerate(numbers)]


def _collective(
    columns: ProgramColumns,
    job: int,
    load: Load,
    stage: int,
    reduces: bool,
    first_rank: int,
    first_stage: int,
    starts: Sequence[int] = (),
) -> None:
    """The messages of one collective over the replicas of a stage, its reduction or its gather; a member sends none
    before its own of `starts`."""
    problem, base = load.problem, columns.n_messages
    what = problem.reduction(stage) if reduces else problem.gather(stage)
    rank, kind = problem.stage_to_rank[stage], MESSAGE_KINDS.index(what.kind)

    def named(step: CollectiveMessage) -> None:
        members = tuple(first_rank + member * problem.n_ranks + rank for member in (step.source, step.target))
        sizes, of_replica = (what.payload(step), what.size(step)), step.source // problem.tensor
        columns.name(job, of_replica, kind, stage, range(step.number, step.number + 1), members, sizes)

    def way(step: CollectiveMessage, size: float) -> Way:
        return Way(step.source, rank, (step.source, step.target), size, problem.notice_bytes, stage, reduces)

    for index, step in enumerate(what.steps):
        size, parts, start_s = what.size(step), what.parts(step), begin_s(load, step.source, rank)
        release = len(step.after) + step.own + bool(starts)
        whole = Group(in_parts(len(parts)), False, 1, release, problem.handover_s, 0.0, start_s)
        if len(parts) == 1:
            taken = way(step, size)
            shape = taken.frame(problem)
            whole = whole._replace(frame=shape, send_s=send_seconds(problem, shape, size), job=job, way=taken)
        columns.group(whole)
        named(step)
        columns.then += [(base + before, base + index) for before in step.after]
        if starts:
            columns.then.append((starts[step.source * problem.n_ranks + rank], base + index))
        of = [first_stage + member * problem.n_stages + stage for member in (step.source, step.target)]
        if kind == ALL_GATHER:
            columns.gathers[base + index] = of[1]
            columns.shards[of[1]] += 1
        else:
            columns.last.append(base + index)
        if step.own:
            columns.reduces[of[0]].append(base + index)
        if release == 0:
            columns.first.append(base + index)
    for index, step in enumerate(what.steps):
        sizes = what.parts(step)
        if len(sizes) == 1:
            continue
        ways, start_s = [way(step, size) for size in sizes], begin_s(load, step.source, rank)
        for _ in _parts(columns, job, problem, base + index, 1, ways, sizes, 1, start_s):
            named(step)
