"""The moves of the local search, as plain functions on arrays that compile.py compiles (local_search.py)."""

from __future__ import annotations

import numpy as np

from testbed.model.execute import execute, last_end
from testbed.model.network import Floats, Ints
from testbed.model.program import Program

COMPILED = ("judge", "fits", "climb")
"""What compile.py compiles of this module."""

HISTORY = 60
"""How many moves ago a new schedule is compared with."""

FARTHEST = 8
"""Places an action may move at once."""


def judge(program: Program, order: Ints) -> float:
    """Seconds it takes when every replica runs its actions in this order; infinite when they wait for each other."""
    n = len(order)
    every = np.empty(len(program.duration_s), np.int64)
    for replica in range(len(every) // n):
        every[replica * n : (replica + 1) * n] = order + replica * n
    last = last_end(program, execute(program, every))
    return np.inf if np.isnan(last) else last


def fits(order: Ints, delta: Floats, begin: int, end: int, limit: float) -> bool:
    """Whether a row, the places from `begin` to `end`, keeps within its memory."""
    held = 0.0
    for place in range(begin, end):
        change = delta[order[place]]
        if change > 0 and held + change > limit:
            return False
        held += change
    return True


def climb(
    program: Program,
    stage: Ints,
    kind: Ints,
    microbatch: Ints,
    delta: Floats,
    limit: Floats,
    moves: int,
    seed: int,
) -> Ints:
    """The best order met in `moves` moves.

    Per action its stage, kind, microbatch and what it adds to its rank's memory; per rank the most that may be held.
    """
    np.random.seed(seed)
    row_start = program.row_start
    n = len(stage)
    current = np.arange(n)
    best = current.copy()
    now_s = judge(program, current)
    best_s = now_s
    history = np.full(HISTORY, now_s)
    for move in range(moves):
        source = np.random.randint(n)
        rank = 0
        while row_start[rank + 1] <= source:
            rank += 1
        target = source - 1 - np.random.randint(FARTHEST)
        if target < row_start[rank]:
            continue
        action = current[source]
        allowed = True
        for place in range(target, source):
            other = current[place]
            if stage[other] == stage[action] and (
                microbatch[other] == microbatch[action] or kind[other] == kind[action]
            ):
                allowed = False
                break
        if not allowed:
            continue
        trial = current.copy()
        for place in range(source, target, -1):
            trial[place] = trial[place - 1]
        trial[target] = action
        if not fits(trial, delta, row_start[rank], row_start[rank + 1], limit[rank]):
            continue
        seconds = judge(program, trial)
        if seconds <= now_s or seconds <= history[move % HISTORY]:
            current, now_s = trial, seconds
            if seconds < best_s:
                best, best_s = trial.copy(), seconds
        history[move % HISTORY] = now_s
    return best
