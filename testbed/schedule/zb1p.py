"""ZB1P: interleaved 1F1B with the backward split, weight gradients fill the drain (Qi et al., Zero Bubble, 2023)."""

from __future__ import annotations

from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family
from testbed.schedule.interleaved import local_order, warmup_forwards


def zb1p(problem: Problem) -> Schedule:
    """Interleaved 1F1B with half its warm-up per hop; rank r keeps r weight gradients back (of chunks, not of ranks).

    The order is torch's (ScheduleInterleavedZeroBubble), for any M as interleaved 1F1B is.
    """
    rows = tuple(_row(problem, rank) for rank in range(problem.n_ranks))
    return Schedule("zb1p", rows, problem.stage_to_rank, problem.n_microbatches)


def _row(problem: Problem, rank: int) -> Row:
    forwards, backwards = local_order(problem, rank)
    warmup = warmup_forwards(problem, rank, per_hop=1)
    actions = [Action(stage, Kind.F, m) for stage, m in forwards[:warmup]]
    for index, (stage, m) in enumerate(backwards):
        if warmup + index < len(forwards):
            next_stage, next_m = forwards[warmup + index]
            actions.append(Action(next_stage, Kind.F, next_m))
        actions.append(Action(stage, Kind.I, m))
        if index >= rank:
            held_stage, held_m = backwards[index - rank]
            actions.append(Action(held_stage, Kind.W, held_m))
    actions += [Action(stage, Kind.W, m) for stage, m in backwards[max(0, len(backwards) - rank) :]]
    return tuple(actions)


FAMILY = Family(zb1p, "interleaved 1F1B with split backward", Placement.LOOP)
