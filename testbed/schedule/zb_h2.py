"""ZB-H2: ZB-H1 with twice the warm-up, so that no rank idles in between (Qi et al., Zero Bubble, 2023, section 2.2)."""

from __future__ import annotations

from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family


def zb_h2(problem: Problem) -> Schedule:
    """Rank r runs 2(P - r) - 1 forwards before its first I and keeps 2r weight gradients back; peak 2P - 1 in flight.

    That is nearly twice the memory of 1F1B's first rank, on every rank.
    """
    rows = tuple(_row(rank, problem.n_ranks, problem.n_microbatches) for rank in range(problem.n_ranks))
    return Schedule("zb-h2", rows, problem.stage_to_rank, problem.n_microbatches)


def _row(rank: int, n_ranks: int, n_microbatches: int) -> Row:
    warmup = min(2 * (n_ranks - rank) - 1, n_microbatches)
    held_back = 2 * rank
    actions = [Action(rank, Kind.F, m) for m in range(warmup)]
    for m in range(n_microbatches):
        actions.append(Action(rank, Kind.I, m))
        if m >= held_back:
            actions.append(Action(rank, Kind.W, m - held_back))
        if m + warmup < n_microbatches:
            actions.append(Action(rank, Kind.F, m + warmup))
    actions += [Action(rank, Kind.W, m) for m in range(max(0, n_microbatches - held_back), n_microbatches)]
    return tuple(actions)


FAMILY = Family(zb_h2, "ZB-H1 with twice the warm-up and nearly twice the memory")
