"""A lower bound from one rank alone: its own actions and memory, the others as the least time between two of its own.

A relaxation of the problem, as a machine's sequence is in the shifting bottleneck (Adams, Balas and Zawack, 1988),
solved by CP-SAT. A rank whose memory is given back only when a microbatch has been all the way there and back may be
idle in the middle too, where the other bounds (model/bounds.py) count idle times at both ends alone. It holds for
whole blocks with microbatches in order.
"""

from __future__ import annotations

import math
import time
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from testbed.model.grid import time_step_s
from testbed.model.microbatch_path import EarliestStarts
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

TICKS = 20_000
"""Units of integer time that the known bound is cut into, at most."""


EFFORTS = (False, 3.0), (True, 30.0)
"""The solver's deterministic time for all ranks, about as many seconds: the same bound every time, unless the wall
clock ends it.

First as it searches by itself, then for the objective's lower bound alone (`use_objective_lb_search`): of drawn loops
with little memory each of the two proves up to a tenth where the other one proves nothing; the second one goes on for
20 s, up to 18 % above what is known without.
"""


def equal_share(problem: Problem, rank: int) -> float:
    """What a microbatch takes of the rank's memory on each of its stages, if it is as much on all and an input gradient
    takes none; else 0."""
    stages = _stages(problem, rank)
    share = problem.activation[stages[0]] if stages else 0.0
    equal = all(abs(problem.activation[stage] - share) <= TOLERANCE for stage in stages)
    return share if equal and not any(problem.input_memory) else 0.0


def by_fullness(problem: Problem) -> list[int]:
    """The ranks, those first whose memory is held for the longest time, of what they have."""
    away_s = EarliestStarts(problem).away_s

    def held(rank: int) -> float:
        shares = sum(problem.activation[stage] * away_s[stage] for stage in _stages(problem, rank))
        return shares / (problem.memory_limit[rank] + TOLERANCE)

    return sorted(range(problem.n_ranks), key=held, reverse=True)


class RankBound:
    """The bound of the fullest rank, and of the next one where that is proven to be all; to be found in a thread."""

    def __init__(self, problem: Problem, known_s: float, longest_s: float, seed: int) -> None:
        """`known_s` is a bound that is known already, above 0; some schedule takes `longest_s`."""

        self.problem, self.known_s, self.longest_s, self.seed = problem, known_s, longest_s, seed
        self.tick_s, self.left = time_step_s(problem, known_s / TICKS), dict(EFFORTS)
        self.solver: cp_model.CpSolver | None = None
        """While it works."""
        self.stopped = False

    def find(self, until: float) -> float:
        """Seconds that no schedule is faster than, at least what is known; found until then on the monotonic clock."""
        bound_s = self.known_s
        for rank in by_fullness(self.problem):
            # of a rank whose memory is not shared equally nothing is known
            if equal_share(self.problem, rank) > TOLERANCE:
                rank_s, is_all = self._of_rank(rank, bound_s, until)
                bound_s = max(bound_s, rank_s)
                if not is_all:
                    break
        return bound_s

    def _of_rank(self, rank: int, known_s: float, until: float) -> tuple[float, bool]:
        """What a rank proves, and whether it can prove no more."""
        from ortools.sat.python import cp_model

        for for_the_bound, effort in self.left.items():
            if self.stopped or effort <= 0 or time.monotonic() > until:
                break
            solver = self.solver = cp_model.CpSolver()
            solver.parameters.num_workers, solver.parameters.random_seed = 1, self.seed
            solver.parameters.max_deterministic_time = effort
            solver.parameters.max_time_in_seconds = max(0.0, until - time.monotonic())
            solver.parameters.use_objective_lb_search = for_the_bound
            solver.parameters.catch_sigint_signal = False
            status = solver.solve(_model(self.problem, rank, self.tick_s, known_s, self.longest_s))
            self.left[for_the_bound] -= solver.deterministic_time
            if status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
                known_s = max(known_s, solver.best_objective_bound * self.tick_s * (1 - 1e-9))
            if status in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
                return known_s, True
        return known_s, False

    def stop(self) -> None:
        """End it with what is proven so far."""
        self.stopped = True
        if self.solver is not None:
            self.solver.stop_search()


def _stages(problem: Problem, rank: int) -> list[int]:
    return [stage for stage, holder in enumerate(problem.stage_to_rank) if holder == rank]


def _model(problem: Problem, rank: int, tick_s: float, known_s: float, longest_s: float) -> cp_model.CpModel:
    """The rank's makespan is to be least; all times are rounded down to ticks, so that real orders solve it."""
    from ortools.sat.python import cp_model

    def ticks(seconds: float) -> int:
        return math.floor(seconds / tick_s + 1e-6)

    model, earliest, stages = cp_model.CpModel(), EarliestStarts(problem), _stages(problem, rank)
    f, i, w = problem.forward_s, problem.least_input_s, problem.least_weight_s
    horizon, microbatches = ticks(longest_s) + 1, range(problem.n_microbatches)
    makespan = model.new_int_var(ticks(known_s * (1 - 1e-9)), horizon, "makespan")
    start: dict[tuple[int, int, int], cp_model.IntVar] = {}
    busy = []
    for stage in stages:
        kinds = (
            (f[stage], earliest.forward_s[stage], earliest.after_forward_s[stage]),
            (i[stage], earliest.input_s[stage], earliest.after_input_s[stage]),
            (w[stage], earliest.input_s[stage] + i[stage], earliest.reduced_s[stage]),
        )
        for kind, (length_s, head_s, tail_s) in enumerate(kinds):
            length = ticks(length_s)
            for m in microbatches:
                begin = start[stage, kind, m] = model.new_int_var(ticks(head_s), horizon, f"{stage}.{kind}.{m}")
                busy.append(model.new_fixed_size_interval_var(begin, length, f"{stage}.{kind}.{m}"))
                model.add(makespan >= begin + length + ticks(tail_s))
                if m:
                    model.add(begin >= start[stage, kind, m - 1] + length)
    model.add_no_overlap(busy)
    for early, late in pairwise(stages):
        down_s = sum(f[s] + earliest.down_s[s] for s in range(early, late))
        up_s = sum(i[s + 1] + earliest.up_s[s] for s in range(early, late))
        for m in microbatches:
            model.add(start[late, 0, m] >= start[early, 0, m] + ticks(down_s))
            model.add(start[early, 1, m] >= start[late, 1, m] + ticks(up_s))
    room = math.floor((problem.memory_limit[rank] + TOLERANCE) / equal_share(problem, rank))
    # what that implies for single actions: see CpModel._in_flight
    for m in range(problem.n_microbatches - room):
        for stage in stages:
            model.add(start[stage, 0, m + room] >= start[stage, 2, m] + ticks(w[stage]))
    for early, late in combinations(stages, 2):
        least = min(ticks(w[early]), ticks(w[late]))
        for m in range(problem.n_microbatches - room + 1):
            model.add(start[early, 0, m + room - 1] >= start[late, 1, m] + ticks(i[late]) + least)
    held = []
    for stage in stages:
        for m in microbatches:
            first, over = start[stage, 0, m], start[stage, 2, m] + ticks(w[stage])
            model.add(start[stage, 1, m] >= first + ticks(f[stage] + earliest.away_s[stage]))
            model.add(start[stage, 2, m] >= start[stage, 1, m] + ticks(i[stage]))
            held.append(model.new_interval_var(first, model.new_int_var(0, horizon, ""), over, f"{stage}.{m} held"))
    model.add_cumulative(held, [1] * len(held), room)
    model.minimize(makespan)
    return model
