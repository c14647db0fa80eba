"""GPipe: all forwards, then all backwards (Huang et al., 2019)."""

from __future__ import annotations

from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family


def gpipe(problem: Problem) -> Schedule:
    """Every rank runs M forwards, then M full backwards in the same order; peak M microbatches in flight."""
    microbatches = range(problem.n_microbatches)
    rows = tuple(
        tuple(Action(rank, kind, m) for kind in (Kind.F, Kind.B) for m in microbatches)
        for rank in range(problem.n_ranks)
    )
    return Schedule("gpipe", rows, problem.stage_to_rank, problem.n_microbatches)


FAMILY = Family(gpipe, "all forwards, then all backwards")
