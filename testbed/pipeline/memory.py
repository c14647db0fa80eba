"""Memory along a rank's program, in microbatches and in bytes: it depends on the order alone, not on time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from testbed.pipeline.action_columns import Floats, columns
from testbed.pipeline.ir import KINDS, Action, Kind, Row, Schedule
from testbed.pipeline.problem import Problem

TOLERANCE = 1e-9
"""Sums of sub-block fractions such as 3 x 1/3 may pass a limit by rounding; this much is not memory."""


def usage(rows: Sequence[Row], problem: Problem) -> list[Floats]:
    """Per row, the memory held while each of its actions runs, in microbatches of a whole rank.

    What an action adds is held from its start, what it frees until its end (CrossPipe's cumulative function).
    """
    table = columns(rows)
    every = [[Action(stage, kind, 0) for kind in KINDS] for stage in range(problem.n_stages)]
    added, needed = (
        np.array([[of(action) for action in of_stage] for of_stage in every])[table.stage, table.kind] * table.fraction
        for of in (problem.memory_delta, problem.memory_needed)
    )
    result = []
    for begin, end in pairwise(table.row_start.tolist()):
        held = np.concatenate((np.zeros(1), np.cumsum(added[begin:end])))
        result.append(held[:-1] + needed[begin:end])
    return result


def peaks(schedule: Schedule, problem: Problem) -> tuple[float, ...]:
    """Per rank, the most memory held at once, in microbatches of a whole rank."""
    return tuple(float(levels.max(initial=0.0)) for levels in usage(schedule.rows, problem))


def peak_in_flight(schedule: Schedule) -> tuple[float, ...]:
    """Per rank, the most microbatches in flight: forward begun, B or W not yet ended; 1/v each with v chunks."""
    chunks = schedule.n_stages / schedule.n_ranks
    result = []
    for row in schedule.rows:
        held = most = 0
        for action in row:
            if action.kind is Kind.F and action.part.is_first:
                held += 1
                most = max(most, held)
            elif action.kind in (Kind.B, Kind.W) and action.part.is_last:
                held -= 1
        result.append(most / chunks)
    return tuple(result)


class RankBytes(NamedTuple):
    """What a rank holds, each at the most it comes to; bytes."""

    activations: float
    """Of microbatches in flight, at the end of a forward."""
    parameters: float
    gradients: float
    optimizer: float
    """Its states."""
    buffers: float
    """Of messages to and from other ranks."""


def peak_bytes(row: Row, kept: Mapping[int, tuple[float, float]]) -> float:
    """The most bytes of activations that a rank holds as one of its forwards ends.

    `kept`: per stage, bytes of a microbatch after F and after I. Parts take their share.
    """
    held = most = 0.0
    for action in row:
        forward, products = kept[action.stage]
        match action.kind:
            case Kind.F:
                held += forward * action.part.fraction
                most = max(most, held) if action.part.is_last else most
            case Kind.I:
                held += (products - forward) * action.part.fraction
            case Kind.W:
                held -= products * action.part.fraction
            case Kind.B:
                held -= forward * action.part.fraction
    return most
