"""Local search on finished schedules: actions move within their rank's row, the compiled event model judges.

Late acceptance hill climbing (Burke and Bykov, 2017): a move is kept when it is no worse than the schedule of some
moves ago, so plateaus and small hills are crossed without a temperature to tune. What is compared is the makespan and,
far less, when each rank is done; half of the moves are drawn from the critical path, where alone a change can make it
shorter (Balas, 1969). Works for any placement and for sub-blocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from testbed.model.compile import compiled_modules
from testbed.model.compiled import EVENT_MODEL
from testbed.model.lower import Load, lower
from testbed.model.program import NONE
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.search import climbing
from testbed.trace.tables import KINDS

MOVES = compiled_modules([climbing], using=EVENT_MODEL)
"""The moves, and what judges an order, compiled."""


MOVED_ACTIONS = 200_000
"""Moves between two looks at the clock are cut so that about this many actions are judged: a fraction of a second."""


def improve(
    problem: Problem,
    schedule: Schedule,
    moves: int | None = None,
    seed: int = 1,
    until: float = math.inf,
    good_enough_s: float = 0.0,
    interrupted: Callable[[Schedule], object] | None = None,
) -> Schedule:
    """The best schedule met in `moves` moves, or until then on the monotonic clock; valid when `schedule` is.

    Never worse than `schedule`, and repeatable by `seed` where moves end it. One as fast as `good_enough_s` ends it.
    Ctrl-C is passed on when the best so far has been given to `interrupted`.
    """
    search = _Climb(problem, schedule, seed)
    try:
        search.run(math.inf if moves is None else moves, until, good_enough_s)
    except KeyboardInterrupt:
        if interrupted is not None:
            interrupted(search.best())
        raise
    return search.best()


class _Climb:
    """The arrays that the compiled moves work on."""

    def __init__(self, problem: Problem, schedule: Schedule, seed: int) -> None:
        self.problem, self.schedule, self.seed = problem, schedule, seed
        self.program, _ = lower([Load(problem, schedule, 0.0, problem.receives)])
        self.actions = [action for _, action in schedule.actions()]
        codes = {kind: code for code, kind in enumerate(KINDS)}
        self.fixed = (
            np.array([action.stage for action in self.actions]),
            np.array([codes[action.kind] for action in self.actions]),
            np.array([action.microbatch for action in self.actions]),
            np.array([problem.memory_needed(action) for action in self.actions]),
            np.array([problem.memory_delta(action) for action in self.actions]),
            np.array(problem.memory_limit) + TOLERANCE,
        )
        makes = self.program.makes
        self.maker = np.full(len(self.program.release), NONE)
        self.maker[makes[makes != NONE]] = np.flatnonzero(makes != NONE)
        self.current = np.arange(len(self.actions))
        self.best_order = self.current.copy()
        times = MOVES.run(self.program, self.current)
        seconds, score = EVENT_MODEL.last_end(self.program, times), MOVES.score(self.program, self.current, times)
        self.compared = np.array([score, seconds])
        self.history = np.full(climbing.HISTORY, score)

    def run(self, moves: float, until: float, good_enough_s: float) -> None:
        each, turn = max(1, MOVED_ACTIONS // len(self.actions)), 0
        while moves > 0 and time.monotonic() < until and self.compared[1] > good_enough_s:
            now = int(min(each, moves))
            state = (self.current, self.best_order, self.compared, self.history)
            MOVES.climb(self.program, *self.fixed, self.maker, *state, now, self.seed + turn)
            moves, turn = moves - now, turn + 1

    def best(self) -> Schedule:
        old = self.schedule
        row_start = self.program.row_start[: self.problem.n_ranks + 1].tolist()  # all replicas have the same rows
        rows = tuple(
            tuple(self.actions[index] for index in self.best_order[begin:end]) for begin, end in pairwise(row_start)
        )
        return Schedule(old.name, rows, old.stage_to_rank, old.n_microbatches)
