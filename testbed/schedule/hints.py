"""What the solver can begin from: schedules of whole blocks, microbatches in order, and the best of the quick ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product

from testbed.errors import BadInput, DoesNotFit
from testbed.pipeline.ir import WHOLE, Action, Kind, Row, Schedule
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import require_room, validate
from testbed.schedule.dualpipe_v import dualpipe_v
from testbed.schedule.greedy import crosspipe_greedy
from testbed.schedule.interleaved import interleaved_1f1b
from testbed.schedule.one_f_one_b import one_f_one_b
from testbed.schedule.zb1p import zb1p
from testbed.schedule.zb_h1 import zb_h1
from testbed.schedule.zb_h2 import zb_h2
from testbed.schedule.zb_v import zb_v
from testbed.search.list_scheduler import forward_first, input_first, list_schedule, oldest_first
from testbed.search.steered_list import steered_list


def whole_blocks(schedule: Schedule) -> Schedule:
    """The same order with whole F, I and W blocks: sub-blocks joined, a full backward split into I and then W.

    F and I run where their last part was, when their memory is taken and their message leaves; W where its first part
    was, which is behind its I and frees memory early. So no rank needs more memory than before, save where
    `input_memory` makes I and W need more than B.
    """
    return Schedule(
        schedule.name,
        tuple(tuple(_join(row)) for row in schedule.rows),
        schedule.stage_to_rank,
        schedule.n_microbatches,
    )


def _join(row: Row) -> Iterator[Action]:
    for action in row:
        whole = action._replace(part=WHOLE)
        if action.kind is Kind.W:
            if action.part.is_first:
                yield whole
        elif action.part.is_last:
            if action.kind is Kind.B:
                yield whole._replace(kind=Kind.I)
                yield whole._replace(kind=Kind.W)
            else:
                yield whole


def check_order(schedule: Schedule) -> None:
    """Raises BadInput when a stage's actions of one kind do not come in the order of their microbatches."""
    following: dict[tuple[int, Kind], int] = {}
    for _, action in schedule.actions():
        wanted = following.get(action[:2], 0)
        if action.microbatch != wanted:
            raise BadInput.of(
                f"hint {schedule.name}", "next of its stage and kind", str(action), f"microbatch {wanted}"
            )
        following[action[:2]] = wanted + 1


def best_hint(problem: Problem, time_limit_s: float = math.inf) -> Schedule:
    """The fastest of the quick schedules that fit, as whole blocks with their microbatches in order.

    The placement's known ones, the list scheduler's by several rules, and the steered list scheduler's, which may take
    `time_limit_s`. Raises DoesNotFit when a rank cannot hold a single microbatch.
    """
    from testbed.model.compiled import makespan  # slow to import: only where it is used

    require_room(problem, "to begin from")
    found: list[Schedule] = []

    def consider(schedule: Schedule) -> None:
        try:
            whole = whole_blocks(schedule)
            validate(whole, problem)
        except DoesNotFit:
            return
        check_order(whole)
        found.append(whole)

    for generator in _known(problem):
        consider(generator(problem))
    forward_s = sum(problem.forward_s) / problem.n_ranks
    for priority, alternate, patience in product((input_first, oldest_first, forward_first), (False, True), (0.0, 0.5)):
        consider(list_schedule(problem, priority=priority, alternate=alternate, patience_s=patience * forward_s))
    consider(steered_list(problem, time_limit_s=time_limit_s))
    return min(found, key=lambda schedule: makespan(problem, schedule))


def _known(problem: Problem) -> tuple[Callable[[Problem], Schedule], ...]:
    """Generators for the problem's placement, save those of other orders (Looped BFS's backwards)."""
    if problem.stage_to_rank == stage_to_rank(Placement.UD, problem.n_ranks):
        return (crosspipe_greedy, zb_h1, zb_h2, one_f_one_b)
    if problem.stage_to_rank == stage_to_rank(Placement.WAVE, problem.n_ranks):
        return (zb_v, dualpipe_v)
    if problem.stage_to_rank == stage_to_rank(Placement.LOOP, problem.n_ranks):
        return (zb1p, interleaved_1f1b)
    return ()
