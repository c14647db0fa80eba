"""Memory along a rank's program, in microbatches and in bytes: it depends on the order alone, not on time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from testbed.pipeline.ir import Kind, Row, Schedule
from testbed.pipeline.problem import Problem

TOLERANCE = 1e-9
"""Sums of sub-block fractions such as 3 x 1/3 may pass a limit by rounding; this much is not memory."""


def usage(row: Row, problem: Problem) -> list[float]:
    """Memory held while each action of a row runs, in microbatches of a whole rank.

    What an action adds is held from its start, what it frees until its end (CrossPipe's cumulative function).
    """
    held, result = 0.0, []
    for action in row:
        result.append(held + problem.memory_needed(action))
        held += problem.memory_delta(action)
    return result


def peaks(schedule: Schedule, problem: Problem) -> tuple[float, ...]:
    """Per rank, the most memory held at once, in microbatches of a whole rank."""
    return tuple(max(usage(row, problem), default=0.0) for row in schedule.rows)


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
