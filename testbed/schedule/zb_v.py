"""ZB-V: zero bubble with two chunks per rank in a V, at 1F1B's memory (Qi et al., Pipeline Parallelism with
Controllable Memory, 2024).
"""

from __future__ import annotations

from testbed.pipeline.ir import Kind, Row, Schedule
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family
from testbed.schedule.in_order import InOrderRow

F, I, W = Kind.F, Kind.I, Kind.W  # noqa: E741


def zb_v(problem: Problem) -> Schedule:
    """Peak P in flight on every rank (2P chunks); without delay and with f = i = w no rank idles in between.

    The order is torch's (ScheduleZBVZeroBubble). Made for M >= 2P - 1; for fewer, microbatches are left out of that.
    """
    rows = tuple(_row(rank, problem.n_ranks, problem.n_microbatches) for rank in range(problem.n_ranks))
    return Schedule("zb-v", rows, problem.stage_to_rank, problem.n_microbatches)


def _row(rank: int, n_ranks: int, n_microbatches: int) -> Row:
    down, up = rank, 2 * n_ranks - 1 - rank
    count = max(2 * n_ranks - 1, n_microbatches)
    result = InOrderRow(n_microbatches)

    def add(*blocks: tuple[Kind, int]) -> None:
        for kind, stage in blocks:
            result.add(kind, stage)

    first = 2 * (n_ranks - rank) - 1
    for _ in range(first):
        add((F, down))
    for _ in range(rank):
        add((F, up), (F, down))
    for _ in range(n_ranks - rank):
        add((F, up), (I, up), (W, up))
    # as many forwards as the warm-up has run on the way down, and of those on the way up
    for m in range(n_ranks, count):
        if m + first + rank - n_ranks < count:
            add((F, down))
        add((I, down), (W, down), (F, up), (I, up), (W, up))
    for _ in range(rank):
        add((I, down), (I, up))
    for _ in range(n_ranks - rank):
        add((I, down), (W, down))
    for _ in range(rank):
        add((W, up))
    for _ in range(rank):
        add((W, down))
    return result.row()


FAMILY = Family(zb_v, "zero bubble in a V of two chunks per rank, at 1F1B's memory", Placement.WAVE)
