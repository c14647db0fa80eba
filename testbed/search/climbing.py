"""The moves of the local search, as plain functions on arrays that compile.py compiles (local_search.py)."""

from __future__ import annotations

import numpy as np

from testbed.model.execute import execute, last_end
from testbed.model.network import Floats, Ints
from testbed.model.program import NONE, Program
from testbed.model.state import Times

COMPILED = ("run", "judge", "score", "critical_path", "fits", "may_move", "moved", "climb")
"""What compile.py compiles of this module."""

HISTORY = 10
"""How many moves ago a new schedule is compared with."""

FARTHEST = 8
"""Places an action may move at once, earlier or later."""

SHARE_ON_CRITICAL_PATH = 0.5
"""Share of the moves that are drawn from the actions on which the makespan hangs; the others from all."""

WEIGHT_OF_RANKS = 0.1
"""What the mean of the ranks' own ends counts beside the makespan.

Most moves leave the makespan as it is, but some of them let a rank be done earlier: these lead somewhere.
"""


def run(program: Program, order: Ints) -> Times:
    """What happens when every replica runs its actions in this order, that of the first one's."""
    n = len(order)
    every = np.empty(len(program.duration_s), np.int64)
    for replica in range(len(every) // n):
        every[replica * n : (replica + 1) * n] = order + replica * n
    return execute(program, every)


def judge(program: Program, order: Ints) -> float:
    """Seconds it takes when every replica runs its actions in this order; infinite when they wait for each other."""
    last = last_end(program, run(program, order))
    return np.inf if np.isnan(last) else last


def score(program: Program, order: Ints, times: Times) -> float:
    """What the climb compares: the makespan and, far less, when each rank is done. Of orders that come to an end."""
    n, ranks, ends = len(order), len(program.row_start) - 1, 0.0
    for rank in range(ranks):
        if program.row_start[rank + 1] > program.row_start[rank]:
            last = program.row_start[rank + 1] - 1  # rows of a replica are those of the first, n places on
            ends += times.end_s[order[last % n] + last // n * n]
    return last_end(program, times) + WEIGHT_OF_RANKS * ends / ranks


def critical_path(program: Program, order: Ints, times: Times, maker: Ints) -> Ints:
    """Places in `order` of actions none of which can be later without the last one being later, that one first.

    `maker`: per message, the action that makes it, or NONE. Every action waits for the one before it in its row or for
    the one whose message it needs, whichever comes later. Of other replicas, the places of the same actions.
    """
    n, found, count = len(order), np.empty(len(times.end_s), np.int64), 0
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    action = int(np.argmax(times.end_s))
    while action != NONE:
        here = place[action % n]
        found[count], count = here, count + 1
        rank = 0
        while program.row_start[rank + 1] <= here:
            rank += 1
        before = order[here - 1] + action // n * n if here > program.row_start[rank] else NONE
        message = program.needs[action]
        source = maker[message] if message != NONE else NONE
        in_row = before != NONE and (source == NONE or times.end_s[before] >= times.arrived_s[message])
        action = before if in_row else source
    return found[:count]


def fits(order: Ints, needed: Floats, delta: Floats, begin: int, end: int, limit: float) -> bool:
    """Whether a row, the places from `begin` to `end`, keeps within its memory."""
    held = 0.0
    for place in range(begin, end):
        action = order[place]
        if needed[action] > 0 and held + needed[action] > limit:
            return False
        held += delta[action]
    return True


def may_move(current: Ints, stage: Ints, kind: Ints, microbatch: Ints, source: int, target: int, step: int) -> bool:
    """Whether an action may move so far, `step` by step (1 or -1): past none of its stage that is of its microbatch, or
    of its kind."""
    action = current[source]
    for place in range(source + step, target + step, step):
        other = current[place]
        if stage[other] == stage[action] and (microbatch[other] == microbatch[action] or kind[other] == kind[action]):
            return False
    return True


def moved(current: Ints, source: int, target: int, step: int) -> Ints:
    """The order with the action at `source` at `target`."""
    trial = current.copy()
    for place in range(source, target, step):
        trial[place] = trial[place + step]
    trial[target] = current[source]
    return trial


def climb(
    program: Program,
    stage: Ints,
    kind: Ints,
    microbatch: Ints,
    needed: Floats,
    delta: Floats,
    limit: Floats,
    maker: Ints,
    current: Ints,
    best: Ints,
    compared: Floats,
    history: Floats,
    moves: int,
    seed: int,
) -> None:
    """Make `moves` moves on `current`, and keep the best order met in `best`.

    Per action its stage, kind, microbatch, the memory it needs beside what is held, and what it adds to that; per rank
    the most that may be held; per message what makes it (critical_path). `compared`: the score of `current`, the
    seconds of `best`; `history`: the scores of `current` after the last moves. All four go on from call to call.
    """
    np.random.seed(seed)
    row_start = program.row_start
    n = len(stage)
    critical = critical_path(program, current, run(program, current), maker)
    for move in range(moves):
        source = np.random.randint(n)
        if np.random.random() < SHARE_ON_CRITICAL_PATH:
            source = critical[np.random.randint(len(critical))]
        rank = 0
        while row_start[rank + 1] <= source:
            rank += 1
        step = 1 - 2 * np.random.randint(2)
        target = source + step * (1 + np.random.randint(FARTHEST))
        if target < row_start[rank] or target >= row_start[rank + 1]:
            continue
        if not may_move(current, stage, kind, microbatch, source, target, step):
            continue
        trial = moved(current, source, target, step)
        if not fits(trial, needed, delta, row_start[rank], row_start[rank + 1], limit[rank]):
            continue
        times = run(program, trial)
        trial_s = last_end(program, times)
        if not np.isnan(trial_s):
            if trial_s < compared[1]:
                best[:] = trial
                compared[1] = trial_s
            trial_score = score(program, trial, times)
            if trial_score <= compared[0] or trial_score <= history[move % HISTORY]:
                current[:] = trial
                compared[0] = trial_score
                critical = critical_path(program, current, times, maker)
        history[move % HISTORY] = compared[0]
