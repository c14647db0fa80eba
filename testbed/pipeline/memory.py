"""Activation memory along a rank's program: it depends on the order alone, not on time."""

from __future__ import annotations

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
