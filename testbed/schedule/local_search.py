"""Local search on finished schedules: actions move within their rank's row, the compiled event model judges.

Late acceptance hill climbing (Burke and Bykov, 2017): a move is kept when it is no worse than the schedule of some
moves ago, so plateaus and small hills are crossed without a temperature to tune. Works for any placement and for
sub-blocks.
"""

from __future__ import annotations

import numba
import numpy as np

from testbed.model.compiled import ARRIVED, _execute, last_end
from testbed.model.lower import lower
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.trace.tables import KINDS

HISTORY = 60
"""How many moves ago a new schedule is compared with."""

FARTHEST = 8
"""Places an action may move at once."""


def improve(problem: Problem, schedule: Schedule, moves: int, seed: int = 1) -> Schedule:
    """The best schedule met in `moves` moves; never worse than `schedule`, valid when it is; repeatable by `seed`."""
    program = lower(problem, schedule)
    actions = [action for _, action in schedule.actions()]
    codes = {kind: code for code, kind in enumerate(KINDS)}
    order = _climb(
        program,
        np.array([action.stage for action in actions]),
        np.array([codes[action.kind] for action in actions]),
        np.array([action.microbatch for action in actions]),
        np.array([problem.memory_delta(action) for action in actions]),
        np.array(problem.memory_limit) + TOLERANCE,
        moves,
        seed,
    )
    rows = tuple(
        tuple(actions[index] for index in order[begin:end])
        for begin, end in zip(program.row_start[:-1], program.row_start[1:], strict=True)
    )
    return Schedule(schedule.name, rows, schedule.stage_to_rank, schedule.n_microbatches)


@numba.njit(cache=True)
def _makespan(program, order):
    _, _, _, end, messages = _execute(
        program.row_start,
        program.duration[order],
        program.needs[order],
        program.makes[order],
        program.not_before_s[order],
        program.completes[order],
        program.target_rank,
        program.wire_bytes,
        program.piece_bytes,
        program.pieces,
        program.acks,
        program.ack_start,
        program.ack_bytes,
        program.route_of,
        program.edge_start,
        program.route_start,
        program.route_links,
        program.extra_s,
        program.unnoticed_wait_s,
        program.taken_s,
        program.delay_s,
        program.seconds_per_byte,
        program.notice_s,
        False,
    )
    last = last_end(end, messages[ARRIVED], program.edge_start[0])
    return np.inf if np.isnan(last) else last


@numba.njit(cache=True)
def _fits(order, delta, begin, end, limit):
    held = 0.0
    for place in range(begin, end):
        change = delta[order[place]]
        if change > 0 and held + change > limit:
            return False
        held += change
    return True


@numba.njit(cache=True)
def _climb(program, stage, kind, microbatch, delta, limit, moves, seed):
    np.random.seed(seed)
    row_start = program.row_start
    n = len(stage)
    current = np.arange(n)
    best = current.copy()
    now_s = _makespan(program, current)
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
        if not _fits(trial, delta, row_start[rank], row_start[rank + 1], limit[rank]):
            continue
        seconds = _makespan(program, trial)
        if seconds <= now_s or seconds <= history[move % HISTORY]:
            current, now_s = trial, seconds
            if seconds < best_s:
                best, best_s = trial.copy(), seconds
        history[move % HISTORY] = now_s
    return best
