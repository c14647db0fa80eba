"""The moves of the local search, as plain functions on arrays that compile.py compiles (local_search.py)."""

from __future__ import annotations

import numpy as np

from testbed.model.execute import execute, last_end
from testbed.model.network import Floats, Ints
from testbed.model.program import Program

COMPILED = ("judge", "fits", "climb")
"""What compile.py compiles of this module."""

HISTORY = 10
"""How many moves ago a new schedule is compared with."""

FARTHEST = 8
"""Places an action may move at once, earlier or later."""

WEIGHT_OF_RANKS = 0.1
"""What the mean of the ranks' own ends counts beside the makespan.

Most moves leave the makespan as it is, but some of them let a rank be done earlier: these lead somewhere.
"""


def judge(program: Program, order: Ints) -> tuple[float, float]:
    """(seconds it takes when every replica runs its actions in this order, what the climb compares).

    Both are infinite when actions wait for each other.
    """
    n = len(order)
    every = np.empty(len(program.duration_s), np.int64)
    for replica in range(len(every) // n):
        every[replica * n : (replica + 1) * n] = order + replica * n
    times = execute(program, every)
    last = last_end(program, times)
    if np.isnan(last):
        return np.inf, np.inf
    ranks, ends = len(program.row_start) - 1, 0.0
    for rank in range(ranks):
        if program.row_start[rank + 1] > program.row_start[rank]:
            ends += times.end_s[every[program.row_start[rank + 1] - 1]]
    return last, last + WEIGHT_OF_RANKS * ends / ranks


def fits(order: Ints, needed: Floats, delta: Floats, begin: int, end: int, limit: float) -> bool:
    """Whether a row, the places from `begin` to `end`, keeps within its memory."""
    held = 0.0
    for place in range(begin, end):
        action = order[place]
        if needed[action] > 0 and held + needed[action] > limit:
            return False
        held += delta[action]
    return True


def climb(
    program: Program,
    stage: Ints,
    kind: Ints,
    microbatch: Ints,
    needed: Floats,
    delta: Floats,
    limit: Floats,
    current: Ints,
    best: Ints,
    compared: Floats,
    history: Floats,
    moves: int,
    seed: int,
) -> None:
    """Make `moves` moves on `current`, and keep the best order met in `best`.

    Per action its stage, kind, microbatch, the memory it needs beside what is held, and what it adds to that; per rank
    the most that may be held. `compared`: the score of `current`, the seconds of `best`; `history`: the scores of
    `current` after the last moves. All four go on from call to call.
    """
    np.random.seed(seed)
    row_start = program.row_start
    n = len(stage)
    for move in range(moves):
        source = np.random.randint(n)
        rank = 0
        while row_start[rank + 1] <= source:
            rank += 1
        step = 1 - 2 * np.random.randint(2)
        target = source + step * (1 + np.random.randint(FARTHEST))
        if target < row_start[rank] or target >= row_start[rank + 1]:
            continue
        action = current[source]
        allowed = True
        for place in range(source + step, target + step, step):
            other = current[place]
            if stage[other] == stage[action] and (
                microbatch[other] == microbatch[action] or kind[other] == kind[action]
            ):
                allowed = False
                break
        if not allowed:
            continue
        trial = current.copy()
        for place in range(source, target, step):
            trial[place] = trial[place + step]
        trial[target] = action
        if not fits(trial, needed, delta, row_start[rank], row_start[rank + 1], limit[rank]):
            continue
        trial_s, score = judge(program, trial)
        if trial_s < compared[1]:
            best[:] = trial
            compared[1] = trial_s
        if score <= compared[0] or score <= history[move % HISTORY]:
            current[:] = trial
            compared[0] = score
        history[move % HISTORY] = compared[0]
