"""Looped BFS: like GPipe, but with several chunks per rank, each run for all microbatches (Lamy-Poirier, 2022)."""

from __future__ import annotations

from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family


def looped_bfs(problem: Problem) -> Schedule:
    """All forwards chunk by chunk, then all backwards from the last chunk; M microbatches of every chunk in flight.

    Within a chunk the backwards run from the last microbatch to the first, as torch's ScheduleLoopedBFS does.
    """
    microbatches = range(problem.n_microbatches)
    rows = []
    for rank in range(problem.n_ranks):
        stages = [stage for stage, holder in enumerate(problem.stage_to_rank) if holder == rank]
        forwards = [Action(stage, Kind.F, m) for stage in stages for m in microbatches]
        backwards = [Action(stage, Kind.B, m) for stage in reversed(stages) for m in reversed(microbatches)]
        rows.append(tuple(forwards + backwards))
    return Schedule("looped-bfs", tuple(rows), problem.stage_to_rank, problem.n_microbatches)


FAMILY = Family(looped_bfs, "GPipe with two chunks per rank", Placement.LOOP)
