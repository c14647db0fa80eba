"""Jobs on one network -> the program that the event model runs, and what its actions and messages are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from testbed.model.frames import NOWHERE, Edge, edges_of, framed, send_seconds
from testbed.model.network import Bools
from testbed.model.program import FREE, NONE, Program
from testbed.model.program_columns import Group, ProgramColumns, RowNames
from testbed.model.rows import Rows
from testbed.pipeline.collectives import Collective
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import NO_CARD, PipelineRoutes, Problem
from testbed.trace.tables import ALL_GATHER, MESSAGE_KINDS, NOTICE

Receives = Literal["early", "late", "late-free-notice"]
"""When a receive is posted: a step ahead, or when its rank reaches the action.

Gloo's notice of that crosses the network like any message; a free notice takes no time, as where delay is injected into
the data alone (CrossPipe, appendix F.1)."""


class Load(NamedTuple):
    """A job on the network: all its replicas, and their tensor ranks, run the same schedule."""

    problem: Problem
    schedule: Schedule
    start_s: float = 0.0
    receives: Receives = "early"


def _begin_s(load: Load, place: int, rank: int) -> float:
    """When a rank may begin: one turn after the other, counted over all replicas; tensor ranks together."""
    begins_s = load.problem.begins_s
    return load.start_s + (begins_s[place // load.problem.tensor * load.problem.n_ranks + rank] if begins_s else 0.0)


def lower(loads: Sequence[Load]) -> tuple[Program, RowNames]:
    """The arrays of jobs that share a network. Raises ValueError when they do not have the same links."""
    links = loads[0].problem.links
    if any(load.problem.links != links for load in loads):
        raise ValueError("jobs of one program share one network")
    columns = ProgramColumns(len(links))
    for number, load in enumerate(loads):
        _add(columns, number, load)
    return columns.program(loads[0].problem), columns.names()


def _add(columns: ProgramColumns, job: int, load: Load) -> None:
    """A job: a pipeline per replica and tensor rank, then what the replicas exchange."""
    problem, schedule = load.problem, load.schedule
    rows, ranks = Rows(problem, schedule), range(schedule.n_ranks)
    first_rank, first_stage = len(columns.row_lengths), len(columns.shards)
    for place, pipeline in enumerate(problem.pipelines):
        stages, tensor_rank = len(columns.shards), place % problem.tensor
        base, here = columns.n_messages, len(columns.row_lengths)
        _messages(columns, job, place // problem.tensor, load, pipeline, here)
        columns.durations.append(rows.durations)
        columns.gathered.append(rows.gathered)
        columns.gathered_acks.append(rows.gathered_acks)
        columns.summed.append(rows.summed)
        columns.summed_acks.append(rows.summed_acks)
        columns.sums.append(rows.sums)
        columns.cards += [NONE if card == NO_CARD else card for card in pipeline.rank_cards] or [NONE for _ in ranks]
        columns.needs.append(np.where(rows.needs == NONE, NONE, rows.needs + base))
        columns.makes.append(np.where(rows.makes == NONE, NONE, rows.makes + base))
        columns.unshards.append(np.where(rows.unshards == NONE, NONE, rows.unshards + stages))
        columns.completes.append(np.where(rows.completes == NONE, NONE, rows.completes + stages))
        columns.row_lengths += [len(row) for row in schedule.rows]
        columns.begin_s += [_begin_s(load, place, rank) for rank in ranks]
        columns.owner += [(job, place // problem.tensor, first_rank + problem.number(place, rank)) for rank in ranks]
        if tensor_rank == 0:
            columns.together += [[here + rank + n * len(ranks) for n in range(problem.tensor)] for rank in ranks]
        columns.shards += [0] * problem.n_stages
        columns.gradients += [schedule.n_microbatches] * problem.n_stages
        columns.reduces += [[] for _ in range(problem.n_stages)]
    for stage in range(problem.n_stages):
        _collective(columns, job, load, stage, problem.gather(stage), first_rank, first_stage)
    for stage in range(problem.n_stages):
        _collective(columns, job, load, stage, problem.reduction(stage), first_rank, first_stage)


def _messages(
    columns: ProgramColumns, job: int, replica: int, load: Load, pipeline: PipelineRoutes, first_rank: int
) -> None:
    """The messages between the stages of one pipeline; with late receives also gloo's notices."""
    problem, m = load.problem, load.schedule.n_microbatches
    base, edges = columns.n_messages, edges_of(problem)
    notices = problem.notice_bytes if load.receives == "late" else 0.0
    for edge in edges:
        ends, local = (edge.source, edge.target), edge.source == edge.target
        there_and_back = pipeline.route(*ends), pipeline.route(*ends[::-1])
        ahead = 0.0 if notices else problem.notice_bytes
        frame = NOWHERE if local else framed(pipeline, edge.source, edge.wire_bytes - notices, there_and_back, ahead)
        release = 1 if load.receives == "early" or local else 2
        columns.group(
            Group(frame, local, m, release, problem.handover_s, send_seconds(problem, frame, edge.wire_bytes), 0.0)
        )
        ranks = (first_rank + ends[0], first_rank + ends[1])
        columns.name(job, replica, edge.kind, edge.stage, range(m), ranks, (edge.payload_bytes, edge.wire_bytes))
    if load.receives == "early":
        return
    between = np.array([edge.source != edge.target for edge in edges]).repeat(m)
    if load.receives == "late-free-notice":
        columns.notice.append((base, np.where(between, FREE, NONE)))
        return
    _notices(columns, job, replica, load, pipeline, first_rank, edges, between)


def _notices(
    columns: ProgramColumns,
    job: int,
    replica: int,
    load: Load,
    pipeline: PipelineRoutes,
    first_rank: int,
    edges: Sequence[Edge],
    between: Bools,
) -> None:
    """Per message, gloo's notice of the receive (back to the sender) and of the send (ahead of the message)."""
    problem, m = load.problem, load.schedule.n_microbatches
    size, count = problem.notice_bytes, len(edges) * m
    base = columns.n_messages - count
    for back in (True, False):
        for edge in edges:
            ends = (edge.target, edge.source) if back else (edge.source, edge.target)
            frame = framed(pipeline, ends[0], size, (pipeline.route(*ends), pipeline.route(*ends[::-1])))
            # no handover: gloo's own thread answers a notice, no rank has to be woken
            columns.group(Group(frame, edge.source == edge.target, m, 1, 0.0, 0.0, 0.0))
            ranks = (first_rank + ends[0], first_rank + ends[1])
            columns.name(job, replica, NOTICE, edge.stage, range(m), ranks, (0.0, size))
    numbers = np.arange(base, base + count)
    columns.notice.append((base, np.where(between, numbers + count, NONE)))
    columns.announcement.append((base, np.where(between, numbers + 2 * count, NONE)))
    columns.then += [(int(number + count), int(number)) for number in numbers[between]]


def _collective(
    columns: ProgramColumns, job: int, load: Load, stage: int, what: Collective, first_rank: int, first_stage: int
) -> None:
    """The messages of one collective over the replicas of a stage."""
    problem, base = load.problem, columns.n_messages
    rank, kind = problem.stage_to_rank[stage], MESSAGE_KINDS.index(what.kind)
    for index, step in enumerate(what.steps):
        ends = (step.source, step.target)
        there_and_back = what.route(step), what.routes.get(ends[::-1], ())
        size = what.size(step)
        frame = framed(problem.pipelines[step.source], rank, size, there_and_back, problem.notice_bytes)
        release = len(step.after) + step.own
        send_s = send_seconds(problem, frame, size)
        start_s = _begin_s(load, step.source, rank)
        columns.group(Group(frame, False, 1, release, problem.handover_s, send_s, start_s))
        members = tuple(first_rank + member * problem.n_ranks + rank for member in ends)
        sizes = (what.payload(step), size)
        of_replica = step.source // problem.tensor
        columns.name(job, of_replica, kind, stage, range(step.number, step.number + 1), members, sizes)
        columns.then += [(base + before, base + index) for before in step.after]
        of = [first_stage + member * problem.n_stages + stage for member in ends]
        if kind == ALL_GATHER:
            columns.gathers[base + index] = of[1]
            columns.shards[of[1]] += 1
        else:
            columns.last.append(base + index)
        if step.own:
            columns.reduces[of[0]].append(base + index)
        if release == 0:
            columns.first.append(base + index)
