"""Messages that ranks send each other at one time while nothing else is on the network, on the event model's links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from testbed.model.frames import NOWHERE, framed, in_parts, send_seconds
from testbed.model.program import NONE
from testbed.model.program_columns import Group, ProgramColumns
from testbed.model.simulate import run
from testbed.pipeline.problem import PipelineRoutes, Problem
from testbed.trace.tables import ALL_GATHER


class SentOnce(NamedTuple):
    """A message; its receive was posted long before."""

    source: int
    target: int
    parts: tuple[float, ...]
    """Wire bytes of what each connection carries of it, with what gloo adds."""
    leaves_s: float


def arrivals_s(problem: Problem, ranks: PipelineRoutes, messages: Sequence[SentOnce]) -> list[float]:
    """When each has come and can be used. `ranks` has the routes between all ranks by their numbers; `problem` has the
    links."""
    columns = ProgramColumns(len(problem.links), frozenset(change.link for change in problem.changes))
    nothing = np.zeros(0, np.int64)
    for rank in range(1 + max(max(message.source, message.target) for message in messages)):
        columns.row_lengths.append(0)
        columns.begin_s.append(0.0)
        columns.waits.append(False)
        columns.cards.append(NONE)
        columns.owner.append((0, 0, rank))
        columns.together.append([rank])
    for amounts in (columns.durations, columns.gathered, columns.gathered_acks, columns.summed, columns.summed_acks):
        amounts.append(np.zeros(0))
    for numbers in (columns.sums, columns.needs, columns.makes, columns.unshards, columns.completes):
        numbers.append(nothing)
    for number, message in enumerate(messages):
        _whole(columns, problem, ranks, message)
        columns.first.append(number)
    for number, message in enumerate(messages):
        if len(message.parts) > 1:
            _in_parts(columns, problem, ranks, message, number)
    times = run(columns.program(problem))
    return [float(times.arrived_s[number]) for number in range(len(messages))]


def _whole(columns: ProgramColumns, problem: Problem, ranks: PipelineRoutes, message: SentOnce) -> None:
    if len(message.parts) == 1:
        _carried(columns, problem, ranks, message, message.parts[0], 0, problem.handover_s)
    else:
        columns.group(Group(in_parts(len(message.parts)), False, 1, 0, problem.handover_s, 0.0, message.leaves_s))
        _named(columns, message)


def _in_parts(columns: ProgramColumns, problem: Problem, ranks: PipelineRoutes, message: SentOnce, number: int) -> None:
    for size in message.parts:
        columns.parts.append((number, columns.n_messages, 1))
        _carried(columns, problem, ranks, message, size, 1, 0.0)


def _carried(
    columns: ProgramColumns,
    problem: Problem,
    ranks: PipelineRoutes,
    message: SentOnce,
    size: float,
    release: int,
    handover_s: float,
) -> None:
    """What goes over one connection."""
    there_and_back = ranks.route(message.source, message.target), ranks.route(message.target, message.source)
    frame = framed(ranks, message.source, size, there_and_back, problem.notice_bytes) if there_and_back[0] else NOWHERE
    send_s = send_seconds(problem, frame, size)
    columns.group(Group(frame, False, 1, release, handover_s, send_s, message.leaves_s))
    _named(columns, message)


def _named(columns: ProgramColumns, message: SentOnce) -> None:
    """A row for its ends; no trace has these messages."""
    columns.name(0, 0, ALL_GATHER, 0, range(1), (message.source, message.target), (0.0, sum(message.parts)))
