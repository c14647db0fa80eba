"""Interleaved 1F1B: every rank holds several chunks of the model and runs them in rounds (Narayanan et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family

StageMicrobatch = tuple[int, int]
"""(stage, microbatch)"""


def interleaved_1f1b(problem: Problem) -> Schedule:
    """(v - 1)n + 2(P - 1 - r) warm-up forwards on rank r, n the microbatches of a round; then F and B in turn.

    The order is torch's (ScheduleInterleaved1F1B), which takes only M that its rounds divide; here any M (`rounds`).
    """
    rows = tuple(tuple(alternating(problem, rank, per_hop=2, backward=Kind.B)) for rank in range(problem.n_ranks))
    return Schedule("interleaved-1f1b", rows, problem.stage_to_rank, problem.n_microbatches)


def rounds(n_ranks: int, n_microbatches: int) -> list[range]:
    """The microbatches of each round: M // P rounds of at least P (one round if M < P), larger ones first.

    Larger first is what keeps the schedule free of deadlock: a round's backwards on the last rank come one round of
    forwards after their own, which must be long enough for them.
    """
    count = max(1, n_microbatches // n_ranks)
    size, larger = divmod(n_microbatches, count)
    begins = [index * size + min(index, larger) for index in range(count + 1)]
    return [range(begin, end) for begin, end in pairwise(begins)]


def local_order(problem: Problem, rank: int) -> tuple[list[StageMicrobatch], list[StageMicrobatch]]:
    """A rank's forwards and backwards in order: round by round, chunk by chunk (backwards from the last chunk)."""
    stages = [stage for stage, holder in enumerate(problem.stage_to_rank) if holder == rank]
    in_rounds = rounds(problem.n_ranks, problem.n_microbatches)

    def order(chunks: list[int]) -> Iterator[StageMicrobatch]:
        for microbatches in in_rounds:
            for stage in chunks:
                for m in microbatches:
                    yield stage, m

    return list(order(stages)), list(order(stages[::-1]))


def warmup_forwards(problem: Problem, rank: int, per_hop: int) -> int:
    """Forwards a rank runs before it alternates: all but the last chunk's first round, and `per_hop` per later rank."""
    chunks = problem.n_stages // problem.n_ranks
    first_round = len(rounds(problem.n_ranks, problem.n_microbatches)[0])
    wanted = (chunks - 1) * first_round + per_hop * (problem.n_ranks - 1 - rank)
    return min(wanted, chunks * problem.n_microbatches)


def alternating(problem: Problem, rank: int, *, per_hop: int, backward: Kind) -> list[Action]:
    """The forwards of the warm-up, then one forward for every `backward`, whatever that kind is."""
    forwards, backwards = local_order(problem, rank)
    warmup = warmup_forwards(problem, rank, per_hop=per_hop)
    actions = [Action(stage, Kind.F, m) for stage, m in forwards[:warmup]]
    for index, (stage, m) in enumerate(backwards):
        actions += [
            Action(next_stage, Kind.F, next_m) for next_stage, next_m in forwards[warmup + index : warmup + index + 1]
        ]
        actions.append(Action(stage, backward, m))
    return actions


FAMILY = Family(interleaved_1f1b, "1F1B with two chunks per rank", Placement.LOOP)
