"""Local search on finished schedules: actions move within their rank's row, the compiled event model judges.

Late acceptance hill climbing (Burke and Bykov, 2017): a move is kept when it is no worse than the schedule of some
moves ago, so plateaus and small hills are crossed without a temperature to tune. Works for any placement and for
sub-blocks.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from testbed.model.compile import compiled_modules
from testbed.model.compiled import EVENT_MODEL
from testbed.model.lower import Load, lower
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.schedule import climbing
from testbed.trace.tables import KINDS

_CLIMB = compiled_modules([climbing], using=EVENT_MODEL).climb


def improve(problem: Problem, schedule: Schedule, moves: int, seed: int = 1) -> Schedule:
    """The best schedule met in `moves` moves; never worse than `schedule`, valid when it is; repeatable by `seed`."""
    program, _ = lower([Load(problem, schedule)])
    actions = [action for _, action in schedule.actions()]
    codes = {kind: code for code, kind in enumerate(KINDS)}
    order = _CLIMB(
        program,
        np.array([action.stage for action in actions]),
        np.array([codes[action.kind] for action in actions]),
        np.array([action.microbatch for action in actions]),
        np.array([problem.memory_delta(action) for action in actions]),
        np.array(problem.memory_limit) + TOLERANCE,
        moves,
        seed,
    )
    row_start = program.row_start[: problem.n_ranks + 1].tolist()  # the first replica's; all have the same rows
    rows = tuple(tuple(actions[index] for index in order[begin:end]) for begin, end in pairwise(row_start))
    return Schedule(schedule.name, rows, schedule.stage_to_rank, schedule.n_microbatches)
