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
    seconds: Floats,
    history: Floats,
    moves: int,
    seed: int,
) -> None:
    """Make `moves` moves on `current`, and keep the best order met in `best`.

    Per action its stage, kind, microbatch, the memory it needs beside what is held, and what it adds to that; per rank
    the most that may be held. `seconds` are those of `current` and of `best`; `history` those of `current` after the
    last moves. All four go on from call to call.
    """
    np.random.seed(seed)
    row_start = program.row_start
    n = len(stage)
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
        if not fits(trial, needed, delta, row_start[rank], row_start[rank + 1], limit[rank]):
            continue
        trial_s = judge(program, trial)
        if trial_s <= seconds[0] or trial_s <= history[move % HISTORY]:
            current[:] = trial
            seconds[0] = trial_s
            if trial_s < seconds[1]:
                best[:] = trial
                seconds[1] = trial_s
        history[move % HISTORY] = seconds[0]
