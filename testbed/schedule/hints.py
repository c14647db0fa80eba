"""What the solver can begin from: schedules of whole blocks, microbatches in order, and the best of the quick ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from testbed.errors import BadInput
from testbed.model.simulate import simulate
from testbed.pipeline.ir import WHOLE, Action, Kind, Row, Schedule
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import validate
from testbed.schedule.greedy import crosspipe_greedy
from testbed.schedule.list_scheduler import forward_first, input_first, list_schedule, oldest_first
from testbed.schedule.one_f_one_b import one_f_one_b
from testbed.schedule.zb_h1 import zb_h1


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


def best_hint(problem: Problem) -> Schedule:
    """The fastest of the quick schedules that fit, as whole blocks: the list scheduler's, for UD also the known ones.

    Raises BadInput when a rank cannot hold a single microbatch.
    """
    found: list[tuple[float, Schedule]] = []

    def consider(make: Callable[[], Schedule]) -> None:
        try:
            schedule = whole_blocks(make())
            validate(schedule, problem)
        except BadInput:  # does not fit into memory
            return
        found.append((float(simulate(problem, schedule).makespans()[0]), schedule))

    if problem.n_stages == problem.n_ranks:
        for generator in (crosspipe_greedy, zb_h1, one_f_one_b):
            consider(lambda generator=generator: generator(problem))  # type: ignore[misc]
    for priority in (input_first, oldest_first, forward_first):
        for alternate in (False, True):
            for patience_s in (0.0, max(problem.weight_s) / 2):
                consider(
                    lambda p=priority, a=alternate, s=patience_s: list_schedule(  # type: ignore[misc]
                        problem, priority=p, alternate=a, patience_s=s
                    )
                )
    if not found:
        list_schedule(problem)  # raises what is wrong
    return min(found, key=lambda pair: pair[0])[1]
