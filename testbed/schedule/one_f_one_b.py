"""1F1B: after a short warm-up every rank alternates one forward and one backward (PipeDream-Flush)."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family


def one_f_one_b(problem: Problem) -> Schedule:
    """Rank r runs P - 1 - r forwards, then F and B in turn, then the remaining B; peak P - r in flight."""
    rows = tuple(row(rank, problem.n_ranks - 1 - rank, problem.n_microbatches) for rank in range(problem.n_ranks))
    return Schedule("1f1b", rows, problem.stage_to_rank, problem.n_microbatches)


def row(stage: int, warmup: int, n_microbatches: int) -> Row:
    """One stage's row: `warmup` forwards (at most M), then one forward and one backward in turn, then the rest."""
    warmup = min(warmup, n_microbatches)
    forwards, backwards = _blocks(stage, n_microbatches)
    in_turn = chain.from_iterable(zip(forwards[warmup:], backwards, strict=False))
    return (*forwards[:warmup], *in_turn, *backwards[n_microbatches - warmup :])


@lru_cache(maxsize=512)
def _blocks(stage: int, n_microbatches: int) -> tuple[Row, Row]:
    """A stage's forwards and its backwards: kept, as GeoPipe makes rows of them for one warm-up after the other."""
    forwards, backwards = (tuple(Action(stage, kind, m) for m in range(n_microbatches)) for kind in (Kind.F, Kind.B))
    return forwards, backwards


FAMILY = Family(one_f_one_b, "one forward, one backward")
