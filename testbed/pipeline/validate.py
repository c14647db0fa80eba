"""Is this a schedule for this problem? Every block once, no rank waits for ever, memory limits kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from testbed.errors import BadInput, DoesNotFit
from testbed.pipeline.action_columns import NONE, ActionColumns, Bools, columns
from testbed.pipeline.depend import consumed, local_predecessor
from testbed.pipeline.ir import KINDS, Action, Kind, Schedule
from testbed.pipeline.memory import TOLERANCE, usage
from testbed.pipeline.problem import Problem


class InvalidSchedule(BadInput):
    """A schedule that cannot run; says which action of which rank breaks which rule."""

    def __init__(self, schedule: Schedule, rank: int, position: int | None, rule: str) -> None:
        row = schedule.rows[rank] if rank < len(schedule.rows) else ()
        where, found = ("", "its row") if position is None else (f", action {position}", str(row[position]))
        at = f"schedule {schedule.name}: rank {rank}{where}"
        super().__init__(f"{at}: got {found}, expected an order that can run: {rule}")
        self.name, self.rank, self.position, self.rule = schedule.name, rank, position, rule

    def within(self, source: str) -> BadInput:
        """The same error, naming the file that the schedule stands in."""
        return BadInput(f"{source}: {self}")


class OverMemory(InvalidSchedule, DoesNotFit):
    """A schedule that could run where there is more memory; every other invalid schedule is its maker's mistake."""


def validate(schedule: Schedule, problem: Problem) -> None:
    """Raises InvalidSchedule at the first broken rule; OverMemory where it is the memory limit.

    Rules: one row per rank; each stage on the rank the problem gives it; for every stage and microbatch one F and
    either one B or one I and one W, sub-blocks in order; no circular wait; memory within the limits.
    """
    _check_shape(schedule, problem)
    table = columns(schedule.rows)
    _check_blocks(schedule, problem, table)
    _check_parts(schedule, table)
    _check_complete(schedule, table)
    _check_order(schedule, table)
    _check_progress(schedule, table)
    _check_memory(schedule, problem)


def require_room(problem: Problem, name: str) -> None:
    """Raises DoesNotFit where a rank cannot hold the one microbatch without which there is no schedule."""
    rows = []
    for rank in range(problem.n_ranks):
        stages = [stage for stage, holder in enumerate(problem.stage_to_rank) if holder == rank]
        forwards = tuple(Action(stage, Kind.F, 0) for stage in stages)
        rows.append(forwards + tuple(Action(stage, Kind.B, 0) for stage in reversed(stages)))
    for rank, (levels, limit) in enumerate(zip(usage(rows, problem), problem.memory_limit, strict=True)):
        needed = levels.max(initial=0.0)
        if needed > limit + TOLERANCE:
            expected = f"at least {needed:g}, what one microbatch needs"
            raise DoesNotFit.of(f"schedule {name}", f"memory limit of rank {rank}", limit, expected)


def _check_shape(schedule: Schedule, problem: Problem) -> None:
    if schedule.n_ranks != problem.n_ranks:
        raise InvalidSchedule(schedule, 0, None, f"{schedule.n_ranks} rows for {problem.n_ranks} ranks")
    if schedule.stage_to_rank != problem.stage_to_rank:
        raise InvalidSchedule(
            schedule, 0, None, f"stages on ranks {schedule.stage_to_rank}, expected {problem.stage_to_rank}"
        )
    if schedule.n_microbatches != problem.n_microbatches:
        rule = f"made for {schedule.n_microbatches} microbatches, expected {problem.n_microbatches}"
        raise InvalidSchedule(schedule, 0, None, rule)


Rule = tuple[Bools, Callable[[int], str]]
"""Which actions break a rule, and which rule one of them breaks."""


def _refuse_first(schedule: Schedule, table: ActionColumns, rules: Sequence[Rule]) -> None:
    """Raises InvalidSchedule at the first action that breaks any of these rules."""
    broken = np.flatnonzero(np.logical_or.reduce([mask for mask, _ in rules]))
    if len(broken):
        first = int(broken[0])
        rule = next(says(first) for mask, says in rules if mask[first])
        rank = int(table.rank[first])
        raise InvalidSchedule(schedule, rank, first - int(table.row_start[rank]), rule)


def _check_blocks(schedule: Schedule, problem: Problem, table: ActionColumns) -> None:
    stages, microbatches = problem.n_stages, problem.n_microbatches
    no_stage = (table.stage < 0) | (table.stage >= stages)
    holder = np.array(problem.stage_to_rank)[np.where(no_stage, 0, table.stage)]
    rules: list[Rule] = [
        (table.kind == NONE, lambda _: "only F, B, I and W belong in a schedule"),
        (no_stage, lambda _: f"stage outside 0..{stages - 1}"),
        (holder != table.rank, lambda index: f"stage is on rank {holder[index]}"),
        (
            (table.microbatch < 0) | (table.microbatch >= microbatches),
            lambda _: f"microbatch outside 0..{microbatches - 1}",
        ),
    ]
    _refuse_first(schedule, table, rules)


def _check_parts(schedule: Schedule, table: ActionColumns) -> None:
    """Every block's parts follow each other from its beginning to its end."""
    block = (table.stage * len(KINDS) + table.kind) * schedule.n_microbatches + table.microbatch
    order = block.argsort(kind="stable")
    follows = np.zeros(len(block), np.bool_)
    follows[order[1:]] = block[order[1:]] == block[order[:-1]]
    before = np.empty(len(block), np.int64)
    before[order] = np.roll(order, 1)
    begun, of = np.where(follows, table.end[before], 0), np.where(follows, table.of[before], table.of)
    wrong = (table.begin != begun) | (table.of != of) | (table.end <= table.begin) | (table.end > table.of)
    rules: list[Rule] = [
        (follows & (begun == of), lambda _: "this block has been run already"),
        (wrong, lambda index: f"expected the part that begins at {begun[index]}/{of[index]}"),
    ]
    _refuse_first(schedule, table, rules)


def _check_complete(schedule: Schedule, table: ActionColumns) -> None:
    """Every stage has F and B, or F, I and W of every microbatch, to their end."""
    shape = (schedule.n_stages, len(KINDS), schedule.n_microbatches)
    most, of = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    at = (table.stage, table.kind, table.microbatch)
    np.maximum.at(most, at, table.end)
    of[at] = table.of
    forward, both, gradient, weight = ((of > 0)[:, KINDS.index(kind)] for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
    for stage, microbatch in np.argwhere(~forward | (gradient == both) | (weight == both)).tolist():
        have = ", ".join(sorted(kind for kind, found in zip(KINDS, of[stage, :, microbatch], strict=True) if found))
        rule = f"stage {stage}, microbatch {microbatch}: has {have or 'nothing'}; expected F and B, or F, I and W"
        raise InvalidSchedule(schedule, schedule.stage_to_rank[stage], None, rule)
    for stage, kind, microbatch in np.argwhere(most < of).tolist():
        part = f"part {most[stage, kind, microbatch]} of {of[stage, kind, microbatch]}"
        rule = f"stage {stage}, microbatch {microbatch}: {KINDS[kind]} ends at {part}"
        raise InvalidSchedule(schedule, schedule.stage_to_rank[stage], None, rule)


def _check_order(schedule: Schedule, table: ActionColumns) -> None:
    """No action comes before the block of its own stage and microbatch that it needs."""
    places, microbatches = np.arange(len(table.stage)), schedule.n_microbatches
    last = np.full((schedule.n_stages, len(KINDS), microbatches), NONE)
    last[table.stage, table.kind, table.microbatch] = places  # of several parts that of the last one stays
    rules: list[Rule] = []
    for kind in KINDS:
        for needed in local_predecessor(kind):
            ended = last[table.stage, KINDS.index(needed), table.microbatch]
            early = table.is_kind(kind) & (places < ended)
            rules.append((early, lambda _, needed=needed: f"comes before its {needed}"))  # type: ignore[misc]
    _refuse_first(schedule, table, rules)


def _check_progress(schedule: Schedule, table: ActionColumns) -> None:
    """Run every rank as far as it gets; what is left waits for itself."""
    stages, microbatches = schedule.n_stages, schedule.n_microbatches
    needs = table.consumed(stages, microbatches).tolist()
    makes = table.produced(stages, microbatches).tolist()
    start = table.row_start.tolist()
    taker = [  # the rank that takes a stage's outputs, and its gradients
        schedule.stage_to_rank[stage + step] if 0 <= stage + step < stages else NONE
        for stage in range(stages)
        for step in (1, -1)
    ]
    there = bytearray(2 * stages * microbatches)
    position, active = start[:-1], set(range(schedule.n_ranks))
    while active:
        rank = active.pop()
        at, end = position[rank], start[rank + 1]
        while at < end and (needs[at] == NONE or there[needs[at]]):
            made = makes[at]
            if made != NONE:
                there[made] = 1
                active.add(taker[made // microbatches])
            at += 1
        position[rank] = at
    for rank, at in enumerate(position):
        if at < start[rank + 1]:
            place = at - start[rank]
            message = consumed(schedule.rows[rank][place], stages)
            assert message is not None
            producer = f"{message.stage}{'F' if message.kind == 'F' else 'I'}{message.microbatch}"
            raise InvalidSchedule(schedule, rank, place, f"waits for ever for {producer}")


def _check_memory(schedule: Schedule, problem: Problem) -> None:
    for rank, levels in enumerate(usage(schedule.rows, problem)):
        limit = problem.memory_limit[rank]
        over = np.flatnonzero(levels > limit + TOLERANCE)
        if len(over):
            held, most = levels[over[0]], levels.max()
            later = f", {most:g} later on" if most > held else ""
            rule = f"needs memory for {held:g} microbatches in flight{later}, the limit is {limit:g}"
            raise OverMemory(schedule, rank, int(over[0]), rule)
