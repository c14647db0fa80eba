"""Is this a schedule for this problem? Every block once, no rank waits for ever, memory limits kept."""

from __future__ import annotations

from collections import defaultdict

from testbed.errors import BadInput, DoesNotFit
from testbed.pipeline.depend import Message, consumed, local_predecessor, produced
from testbed.pipeline.ir import COMPUTE, Action, Kind, Schedule
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
    _check_once(schedule, problem)
    _check_progress(schedule)
    _check_memory(schedule, problem)


def require_room(problem: Problem, name: str) -> None:
    """Raises DoesNotFit where a rank cannot hold the one microbatch without which there is no schedule."""
    for rank, limit in enumerate(problem.memory_limit):
        stages = [stage for stage, holder in enumerate(problem.stage_to_rank) if holder == rank]
        forwards = tuple(Action(stage, Kind.F, 0) for stage in stages)
        backwards = tuple(Action(stage, Kind.B, 0) for stage in reversed(stages))
        needed = max(usage(forwards + backwards, problem))
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


def _check_once(schedule: Schedule, problem: Problem) -> None:
    done: dict[tuple[int, Kind, int], tuple[int, int]] = {}
    kinds: dict[tuple[int, int], set[Kind]] = defaultdict(set)
    for rank, row in enumerate(schedule.rows):
        for position, action in enumerate(row):
            stage, kind, microbatch, part = action
            if kind not in COMPUTE or microbatch is None:
                raise InvalidSchedule(schedule, rank, position, "only F, B, I and W belong in a schedule")
            if not 0 <= stage < problem.n_stages:
                raise InvalidSchedule(schedule, rank, position, f"stage outside 0..{problem.n_stages - 1}")
            if problem.stage_to_rank[stage] != rank:
                raise InvalidSchedule(schedule, rank, position, f"stage is on rank {problem.stage_to_rank[stage]}")
            if not 0 <= microbatch < problem.n_microbatches:
                raise InvalidSchedule(schedule, rank, position, f"microbatch outside 0..{problem.n_microbatches - 1}")
            begun, of = done.get((stage, kind, microbatch), (0, part.of))
            if begun == of:
                raise InvalidSchedule(schedule, rank, position, "this block has been run already")
            if (part.begin, part.of) != (begun, of):
                raise InvalidSchedule(schedule, rank, position, f"expected the part that begins at {begun}/{of}")
            done[stage, kind, microbatch] = (part.end, of)
            kinds[stage, microbatch].add(kind)
    for stage, rank in enumerate(problem.stage_to_rank):
        for microbatch in range(problem.n_microbatches):
            found = kinds[stage, microbatch]
            if found not in ({Kind.F, Kind.B}, {Kind.F, Kind.I, Kind.W}):
                have = ", ".join(sorted(found)) or "nothing"
                rule = f"stage {stage}, microbatch {microbatch}: has {have}; expected F and B, or F, I and W"
                raise InvalidSchedule(schedule, rank, None, rule)
            for kind in found:
                end, of = done[stage, kind, microbatch]
                if end != of:
                    rule = f"stage {stage}, microbatch {microbatch}: {kind} ends at part {end} of {of}"
                    raise InvalidSchedule(schedule, rank, None, rule)


def _check_progress(schedule: Schedule) -> None:
    """Run every rank as far as it gets; what is left waits for itself."""
    n_stages = schedule.n_stages
    position = [0] * schedule.n_ranks
    messages: set[Message] = set()
    ended: set[tuple[int, Kind, int]] = set()

    def may_run(action: Action) -> bool:
        needs = consumed(action, n_stages)
        if needs is not None and needs not in messages:
            return False
        before = local_predecessor(action.kind)
        return not before or any((action.stage, kind, action.microbatch) in ended for kind in before)

    active = set(range(schedule.n_ranks))
    while active:
        rank = active.pop()
        row = schedule.rows[rank]
        while position[rank] < len(row) and may_run(row[position[rank]]):
            action = row[position[rank]]
            position[rank] += 1
            if action.part.is_last and action.microbatch is not None:
                ended.add((action.stage, action.kind, action.microbatch))
            made = produced(action, n_stages)
            if made is not None:
                messages.add(made)
                active.add(schedule.stage_to_rank[made.consumer])
    stuck = [(rank, row[position[rank]]) for rank, row in enumerate(schedule.rows) if position[rank] < len(row)]
    for rank, action in stuck:  # a rank in its own way is the cause; those that wait for others may only suffer from it
        before = local_predecessor(action.kind)
        if before and not any((action.stage, kind, action.microbatch) in ended for kind in before):
            kinds = " or ".join(sorted(before))
            raise InvalidSchedule(schedule, rank, position[rank], f"comes before its {kinds}")
    for rank, action in stuck:
        needs = consumed(action, n_stages)
        assert needs is not None
        producer = f"{needs.stage}{'F' if needs.kind == 'F' else 'I'}{needs.microbatch}"
        raise InvalidSchedule(schedule, rank, position[rank], f"waits for ever for {producer}")


def _check_memory(schedule: Schedule, problem: Problem) -> None:
    for rank, row in enumerate(schedule.rows):
        limit = problem.memory_limit[rank]
        levels = usage(row, problem)
        for position, held in enumerate(levels):
            if held > limit + TOLERANCE:
                most = f", {max(levels):g} later on" if max(levels) > held else ""
                rule = f"needs memory for {held:g} microbatches in flight{most}, the limit is {limit:g}"
                raise OverMemory(schedule, rank, position, rule)
