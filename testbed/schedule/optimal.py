"""Optimal schedules by constraint programming (CP-SAT): CrossPipe's CrossUD, CrossWave and CrossLoop.

Optimal means: among schedules of whole blocks, backward split, microbatches in order per stage and kind. What the
model (cp_model.py) finds, starting from a hint (hints.py) that moves of single actions have improved (anneal.py,
local_search.py), is reduced to an order per rank and judged by the event model, so the solver's rounding never matters.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.errors import BadInput
from testbed.interrupts import heard_interrupts
from testbed.model.bounds import lower_bound
from testbed.model.simulate import simulate
from testbed.pipeline.ir import Row, Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import InvalidSchedule, validate
from testbed.schedule.family import Family
from testbed.schedule.hints import best_hint, check_order, whole_blocks
from testbed.search.cp_model import CpModel
from testbed.search.incumbent import Incumbent, Progress, TimeLimit
from testbed.search.proof import Covers, Proof, Status
from testbed.search.rank_bound import RankBound, equal_share

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

HINT_SHARE = 0.2
"""Share of a family's time limit that its hint may take."""

SHARE_OF_ANNEALING = 0.7
"""Share of the time limit that annealing may take before the solver begins; with eight ranks it takes all of that.

It finds in seconds what takes the solver minutes or hours; that is needed to prove how good it is.
"""

RANK_BOUND_ACTIONS = 250
"""From so many actions on the solver seldom proves more than a rank alone does (rank_bound.py)."""

CLIMBS = 2
"""Local searches from what they have found, by the event model; others go on from the best until one gains nothing."""

CLIMBED_ACTIONS = 30_000_000
"""Actions that each of them judges at most: a second or two at any size."""

MOVES_PER_ACTION = 500
"""Of small problems they make so many moves, for the solver proves those at once."""

SHARE_OF_CLIMBS = 0.3
"""Share of the time left that they may take in all."""

SHARE_OF_MOVES = 0.1
"""Share of the time left that local search may take when the event model has judged otherwise than the solver."""

MOST_EXCLUDED = 20
"""Orders excluded before the solver begins anew; each makes its model larger."""

POLL_S = 0.2
"""How often the main thread looks up while the solver works."""


class Solution(NamedTuple):
    """What the solver found, and how good it is known to be."""

    schedule: Schedule
    proof: Proof
    history: tuple[tuple[float, float], ...]
    """(wall seconds, makespan in seconds) of the hint, at 0, and of every better schedule."""


def solve(
    problem: Problem,
    hint: Schedule | Callable[[], Schedule],
    *,
    time_limit_s: float = 30.0,
    relative_gap: float = 0.01,
    workers: int = 4,
    seed: int = 0,
    progress: Progress | None = None,
) -> Solution:
    """The best schedule found within `time_limit_s` wall seconds, or as soon as it is within `relative_gap` of optimal.

    `hint` is a valid schedule in the problem's placement, or makes one in that time; the result is never worse. With
    one worker the same seed gives the same result, unless the time limit ends the search. `bound_s` stays a true bound:
    all durations are rounded *down* to integer time, so rounding down the starts of any real schedule solves the
    rounded problem. Raises InvalidSchedule when the hint, made of whole blocks, is not a schedule for the problem, and
    BadInput when its microbatches are not in order.
    """
    incumbent: Incumbent[Schedule] = Incumbent(time_limit_s, lower_bound(problem).seconds, progress)
    if not isinstance(hint, Schedule):
        incumbent.report()
        hint = hint()
    hint = whole_blocks(hint)
    validate(hint, problem)
    check_order(hint)
    search = _SolverSearch(problem, incumbent, hint)
    if search.gap() > relative_gap:
        search.raise_bound(lower_bound(_held_whole(problem)).seconds)
    if search.gap() > relative_gap:
        search.run(relative_gap, workers, seed)
    proof = Proof(
        makespan_s=incumbent.best_s,
        bound_s=incumbent.bound_s,
        gap=search.gap(),
        status=search.status(relative_gap),
        time_limit_s=incumbent.time_limit_s,
        wall_s=incumbent.wall_s,
        covers=search.covers,
    )
    return Solution(incumbent.best, proof, tuple(search.history))


def _held_whole(problem: Problem) -> Problem:
    """The problem with the limits that whole blocks can reach: equal shares fill no part of one that is left over."""
    limits = list(problem.memory_limit)
    for rank, limit in enumerate(limits):
        share = equal_share(problem, rank)
        if share > TOLERANCE:
            limits[rank] = math.floor((limit + TOLERANCE) / share) * share
    return replace(problem, memory_limit=tuple(limits))


class _SolverSearch:
    """The incumbent, and what the solver has come to and proven while it runs."""

    def __init__(self, problem: Problem, incumbent: Incumbent[Schedule], hint: Schedule) -> None:
        self.problem, self.incumbent = problem, incumbent
        self.covers: Covers = "every schedule"
        self.closed = False
        """Whether the solver has proven that its last solution is its best."""
        self.proven = False
        """Whether the event model finds the best no worse than that, but for the rounding of time."""
        hint_s = float(simulate(problem, hint).makespans()[0])
        self.judged: dict[tuple[Row, ...], float] = {hint.rows: hint_s}
        """Seconds of every order that the solver has come to; infinite for one that cannot run."""
        self.history = [(0.0, hint_s)]
        incumbent.offer(hint, hint_s)

    def gap(self) -> float:
        return self.incumbent.standing().gap

    def status(self, relative_gap: float) -> Status:
        if self.proven or self.gap() <= 1e-6:
            return "optimal"
        if self.gap() <= relative_gap:
            return "gap"
        return "interrupted" if self.incumbent.interrupted else "time limit"

    def offer(self, schedule: Schedule) -> float:
        """Take a schedule if the event model finds it better; returns its seconds."""
        if schedule.rows in self.judged:
            return self.judged[schedule.rows]
        try:
            validate(schedule, self.problem)
        except (
            InvalidSchedule
        ):  # memory was rounded, or a wait that goes unnoticed was taken for one that may be longer
            self.judged[schedule.rows] = math.inf
            return math.inf
        makespan = self.judged[schedule.rows] = float(simulate(self.problem, schedule).makespans()[0])
        if self.incumbent.offer(schedule, makespan):
            self.history.append((self.incumbent.wall_s, makespan))
        return makespan

    def raise_bound(self, bound_s: float) -> None:
        if self.incumbent.raise_bound(bound_s):
            self.covers = "whole blocks"

    def run(self, relative_gap: float, workers: int, seed: int) -> None:
        """Solve the rounded problem until the event model agrees with it, or time is up.

        The solver plans with links that serve messages in any order, without acknowledgements and other replicas, and
        with ranks that never notice short waits. Where its best order takes longer than it believes, orders that have
        been judged are excluded, and it solves again: what it proves then holds for all others.
        """
        incumbent = self.incumbent
        self._anneal(relative_gap, workers, seed)
        self._climb_first(relative_gap, seed)
        if self.gap() <= relative_gap or self.incumbent.interrupted:
            return
        model = CpModel(self.problem, incumbent.best, incumbent.best_s, incumbent.bound_s)
        excluded: set[tuple[Row, ...]] = set()
        while incumbent.left_s() > 0 and not incumbent.interrupted:
            finished = self._run_solver(model, relative_gap, workers, seed + len(excluded))
            self.proven = self.closed and self.gap() <= (1e-6 if model.exact else 1e-3)
            if self.proven or self.gap() <= relative_gap or self.incumbent.interrupted:
                return
            if not finished:  # its clock and ours may differ by a little
                continue
            fresh = [rows for rows in self.judged if rows not in excluded]
            for rows in fresh[-MOST_EXCLUDED:]:
                model.exclude(rows)
                excluded.add(rows)
            limit_s = (SHARE_OF_MOVES if fresh else 1.0) * max(0.0, incumbent.left_s())
            self._climb(incumbent.best, seed + len(excluded), limit_s, good_enough_s=incumbent.bound_s)

    def _run_solver(self, model: CpModel, relative_gap: float, workers: int, seed: int) -> bool:
        """One run of the solver; whether it came to its end, rather than to that of the time limit."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        solver.parameters.relative_gap_limit = relative_gap
        solver.parameters.max_time_in_seconds = max(0.0, self.incumbent.left_s())
        solver.parameters.catch_sigint_signal = False
        search = self

        class Callback(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                search.offer(model.schedule(self.value))

        solver.best_bound_callback = lambda ticks: search.raise_bound(model.seconds(ticks))
        status = self._until_interrupted(solver, lambda: solver.solve(model.model, Callback()))
        if status == cp_model.INFEASIBLE:  # everything that could be better has been judged
            self.raise_bound(self.incumbent.best_s)
            self.closed = True
            return True
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.offer(model.schedule(solver.value))
            self.closed = solver.objective_value <= solver.best_objective_bound + 0.5
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            self.raise_bound(model.seconds(solver.best_objective_bound))
        return bool(status == cp_model.OPTIMAL)

    def _until_interrupted(self, solver: cp_model.CpSolver, solve: Callable[[], Any]) -> Any:
        """What `solve` returns; at Ctrl-C the solver is stopped, and it returns the best so far.

        In a thread, since Python hears of a signal in the main thread only, and between two of its own instructions.
        """
        with heard_interrupts() as interrupt, ThreadPoolExecutor(1) as pool:
            solving = pool.submit(solve)
            while not solving.done():
                wait([solving], timeout=POLL_S)
                if interrupt.is_set() and not self.incumbent.interrupted:
                    self.incumbent.interrupt()
                    solver.stop_search()
            self.incumbent.interrupted |= interrupt.is_set()
            return solving.result()

    def _anneal(self, relative_gap: float, workers: int, seed: int) -> None:
        """Improve an order action by action, judged by what the list scheduler plans with; and raise the bound.

        Every worker for which there is a core anneals from its own seed, but for one that looks for the bound: of
        loops of eight ranks, results of two seeds are 2 to 5 % apart.
        """
        from testbed.search.anneal import LONG_ROUNDS, MOST_ACTIONS, anneal_in_rounds  # compiled code, slow to import

        incumbent, good_enough_s = self.incumbent, self._good_enough_s(relative_gap)
        until = time.monotonic() + SHARE_OF_ANNEALING * incumbent.left_s()
        if incumbent.best_s <= good_enough_s or sum(map(len, incumbent.best.rows)) > MOST_ACTIONS:
            return
        with ThreadPoolExecutor(1) as pool:
            bound = self._rank_bound(seed)
            found = pool.submit(bound.find, until) if bound else None
            with incumbent.until_interrupted():
                at_once = min(workers, len(os.sched_getaffinity(0))) - (found is not None)
                limits = seed, until, good_enough_s, max(1, at_once)
                anneal_in_rounds(self.problem, incumbent.best, self.offer, LONG_ROUNDS, *limits)
                if found and incumbent.best_s > good_enough_s:
                    self.raise_bound(found.result())
            while found and bound and not found.done():  # interrupted, or nothing is left to prove
                bound.stop()  # does nothing before it has begun
                wait([found], timeout=POLL_S)
        if found:
            self.raise_bound(found.result())

    def _rank_bound(self, seed: int) -> RankBound | None:
        """None where the solver soon knows more by itself."""
        if sum(map(len, self.incumbent.best.rows)) < RANK_BOUND_ACTIONS or self.incumbent.bound_s <= 0:
            return None
        return RankBound(self.problem, self.incumbent.bound_s, self.incumbent.best_s, seed)

    def _good_enough_s(self, relative_gap: float) -> float:
        return max(self.incumbent.good_enough_s, self.incumbent.bound_s / (1 - relative_gap))

    def _climb_first(self, relative_gap: float, seed: int) -> None:
        incumbent = self.incumbent
        hint, until = incumbent.best, time.monotonic() + SHARE_OF_CLIMBS * incumbent.left_s()
        actions = sum(map(len, hint.rows))
        moves = min(MOVES_PER_ACTION * actions, CLIMBED_ACTIONS // actions)
        good_enough_s = self._good_enough_s(relative_gap)
        for climb in count():
            if incumbent.interrupted or incumbent.best_s <= good_enough_s or time.monotonic() > until:
                return
            start = hint if climb < CLIMBS else incumbent.best
            self._climb(start, seed + climb, until - time.monotonic(), moves, good_enough_s)
            if climb + 1 >= CLIMBS and incumbent.best is start:
                return

    def _climb(
        self, start: Schedule, seed: int, limit_s: float, moves: int | None = None, good_enough_s: float = 0.0
    ) -> None:
        """Improve an order action by action, judged by the event model."""
        from testbed.search.local_search import improve  # compiled code, slow to import

        until = time.monotonic() + limit_s
        with self.incumbent.until_interrupted():
            self.offer(improve(self.problem, start, moves, seed, until, good_enough_s, interrupted=self.offer))


def _crosspipe(
    name: str, placement: Placement, problem: Problem, time_limit_s: float, progress: Progress | None
) -> Solution:
    expected = stage_to_rank(placement, problem.n_ranks)
    if problem.stage_to_rank != expected:
        raise BadInput.of(name, "stages on ranks", problem.stage_to_rank, str(expected))
    hint = partial(best_hint, problem, time_limit_s=HINT_SHARE * time_limit_s)
    return solve(problem, lambda: hint().renamed(name), time_limit_s=time_limit_s, progress=progress)


def crosspipe_ud(problem: Problem, time_limit_s: TimeLimit = 30.0, progress: Progress | None = None) -> Solution:
    """CrossUD: one stage per rank, the best found in `time_limit_s` seconds or within 1 % of optimal.

    Raises BadInput for another placement, or when a rank cannot hold a single microbatch.
    """
    return _crosspipe("crosspipe-ud", Placement.UD, problem, time_limit_s, progress)


def crosspipe_wave(problem: Problem, time_limit_s: TimeLimit = 30.0, progress: Progress | None = None) -> Solution:
    """CrossWave: two stages per rank in a V; otherwise as `crosspipe_ud`."""
    return _crosspipe("crosspipe-wave", Placement.WAVE, problem, time_limit_s, progress)


def crosspipe_loop(problem: Problem, time_limit_s: TimeLimit = 30.0, progress: Progress | None = None) -> Solution:
    """CrossLoop: two stages per rank, the second pass from rank 0 again; otherwise as `crosspipe_ud`."""
    return _crosspipe("crosspipe-loop", Placement.LOOP, problem, time_limit_s, progress)


UD_FAMILY = Family(crosspipe_ud, "the solver's optimum, one stage per rank", solver=True, uses_spare_memory=True)
WAVE_FAMILY = Family(crosspipe_wave, "the solver's optimum in a V", Placement.WAVE, solver=True, uses_spare_memory=True)
LOOP_FAMILY = Family(
    crosspipe_loop, "the solver's optimum in a loop", Placement.LOOP, solver=True, uses_spare_memory=True
)
