"""A schedule of one's own: 1F1B in which every rank runs `lead` more forwards before its first backward."""

from typing import Annotated

from pydantic import Field

from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.problem import Problem


def eager(problem: Problem, lead: Annotated[int, Field(ge=0, le=64)] = 1) -> Schedule:
    """One stage per rank; holds `lead` more microbatches than 1F1B does."""
    rows = []
    for rank in range(problem.n_ranks):
        warmup = min(problem.n_microbatches, problem.n_ranks - rank + lead)
        forwards = [Action(rank, Kind.F, m) for m in range(problem.n_microbatches)]
        backwards = [Action(rank, Kind.B, m) for m in range(problem.n_microbatches)]
        row = forwards[:warmup]
        for done, backward in enumerate(backwards):
            row += [backward, *forwards[warmup + done : warmup + done + 1]]
        rows.append(tuple(row))
    return Schedule("eager", tuple(rows), problem.stage_to_rank, problem.n_microbatches)
