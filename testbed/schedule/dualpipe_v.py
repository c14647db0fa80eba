"""DualPipeV: DualPipe's order cut in half, two chunks per rank in a V (DeepSeek-AI, DualPipe, 2025)."""

from __future__ import annotations

from collections import deque

from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family
from testbed.schedule.in_order import InOrderRow

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741


def dualpipe_v(problem: Problem) -> Schedule:
    """Peak 2P + 1 chunks, P + 1/2 microbatches, in flight on every rank.

    The order is torch's (ScheduleDualPipeV). A forward and a backward that DualPipe computes at once run one after
    the other here, the forward first: a rank has one compute resource. Made for M >= 2P; for fewer, microbatches are
    left out of that.
    """
    rows = tuple(_row(rank, problem.n_ranks, problem.n_microbatches) for rank in range(problem.n_ranks))
    return Schedule("dualpipe-v", rows, problem.stage_to_rank, problem.n_microbatches)


def _row(rank: int, n_ranks: int, n_microbatches: int) -> Row:
    down, up = rank, 2 * n_ranks - 1 - rank
    after = n_ranks - 1 - rank
    count = max(2 * n_ranks, n_microbatches)
    result = InOrderRow(n_microbatches)
    held_back: deque[Action] = deque()

    def backward(stage: int, kind: Kind) -> None:
        microbatch = result.add(kind, stage)
        if kind is I:
            held_back.append(Action(stage, W, microbatch))

    def weight() -> None:
        if held_back:
            result.append(held_back.popleft())

    for _ in range(2 * after):
        result.add(F, down)
    for _ in range(rank + 1):
        result.add(F, down)
        result.add(F, up)
    for _ in range(after):
        backward(up, I)
        weight()
        result.add(F, up)
    for _ in range(count - 2 * n_ranks + rank + 1):
        result.add(F, down)
        backward(up, B)
        result.add(F, up)
        backward(down, B)
    for _ in range(after):
        backward(up, B)
        result.add(F, up)
        backward(down, B)
    # the backwards of the second half are split, so that weight gradients fill the drain
    for index in range(2 * (rank + 1)):
        backward(down if index % 2 else up, I if index > rank else B)
    for _ in range(after):
        weight()
        backward(down, I)
    while held_back:
        weight()
    return result.row()


FAMILY = Family(dualpipe_v, "DualPipe in a V of two chunks per rank", Placement.WAVE)
