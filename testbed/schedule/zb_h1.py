"""ZB-H1: 1F1B with the backward split, weight gradients fill the drain (Qi et al., Zero Bubble, 2023)."""

from __future__ import annotations

from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family


def zb_h1(problem: Problem) -> Schedule:
    """1F1B's order with I for B; rank r keeps r weight gradients back, so every rank peaks at P in flight."""
    rows = tuple(_row(rank, problem.n_ranks, problem.n_microbatches) for rank in range(problem.n_ranks))
    return Schedule("zb-h1", rows, problem.stage_to_rank, problem.n_microbatches)


def _row(rank: int, n_ranks: int, n_microbatches: int) -> Row:
    warmup = min(n_ranks - 1 - rank, n_microbatches)
    actions = [Action(rank, Kind.F, m) for m in range(warmup)]
    for m in range(n_microbatches):
        if m + warmup < n_microbatches:
            actions.append(Action(rank, Kind.F, m + warmup))
        actions.append(Action(rank, Kind.I, m))
        if m >= rank:
            actions.append(Action(rank, Kind.W, m - rank))
    actions += [Action(rank, Kind.W, m) for m in range(max(0, n_microbatches - rank), n_microbatches)]
    return tuple(actions)


FAMILY = Family(zb_h1, "1F1B with split backward, weight gradients fill the drain")
