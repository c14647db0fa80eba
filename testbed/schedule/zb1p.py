"""ZB1P: interleaved 1F1B with the backward split, weight gradients fill the drain (Qi et al., Zero Bubble, 2023)."""

from __future__ import annotations

from collections import deque

from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family
from testbed.schedule.interleaved import alternating


def zb1p(problem: Problem) -> Schedule:
    """Interleaved 1F1B with half its warm-up per hop; rank r keeps r weight gradients back (of chunks, not of ranks).

    The order is torch's (ScheduleInterleavedZeroBubble), for any M as interleaved 1F1B is.
    """
    rows = tuple(_row(problem, rank) for rank in range(problem.n_ranks))
    return Schedule("zb1p", rows, problem.stage_to_rank, problem.n_microbatches)


def _row(problem: Problem, rank: int) -> Row:
    actions: list[Action] = []
    kept_back: deque[Action] = deque()
    for action in alternating(problem, rank, per_hop=1, backward=Kind.I):
        actions.append(action)
        if action.kind is Kind.I:
            kept_back.append(action._replace(kind=Kind.W))
            if len(kept_back) > rank:
                actions.append(kept_back.popleft())
    actions += kept_back
    return tuple(actions)


FAMILY = Family(zb1p, "interleaved 1F1B with split backward", Placement.LOOP)
