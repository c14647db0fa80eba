"""Optimal schedules by constraint programming (CP-SAT): CrossPipe's CrossUD, CrossWave and CrossLoop.

Optimal means: among schedules of whole blocks, backward split, microbatches in order per stage and kind. What the
model (cp_model.py) finds, starting from a hint (hints.py), is reduced to an order per rank and judged by the event
model, so the solver's rounding never matters.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from pydantic import Field

from testbed.errors import BadInput
from testbed.model.bounds import lower_bound
from testbed.model.simulate import simulate
from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import InvalidSchedule, validate
from testbed.schedule.cp_model import Model
from testbed.schedule.family import Family
from testbed.schedule.hints import best_hint, check_order, whole_blocks
from testbed.schedule.proof import Progress, Proof, Standing

TimeLimit = Annotated[float, Field(gt=0, le=3600)]
"""Wall seconds."""

HINT_SHARE = 0.2
"""Share of a family's time limit that its hint may take."""


class Solution(NamedTuple):
    """What the solver found, and how good it is known to be."""

    schedule: Schedule
    proof: Proof
    history: tuple[tuple[float, float], ...]
    """(wall seconds, makespan in seconds) of the hint, at 0, and of every better schedule."""


def solve(
    problem: Problem,
    hint: Schedule,
    *,
    time_limit_s: float = 30.0,
    relative_gap: float = 0.01,
    workers: int = 4,
    seed: int = 0,
    progress: Progress | None = None,
    begin: float | None = None,
) -> Solution:
    """The best schedule found within `time_limit_s` wall seconds, or as soon as it is within `relative_gap` of optimal.

    `begin`, on the monotonic clock, is when the time limit began to run; default: now.
    `hint` is a valid schedule in the problem's placement; the result is never worse. With one worker the same seed
    gives the same result, unless the time limit ends the search. `bound_s` stays a true bound: all durations are
    rounded *down* to integer time, so rounding down the starts of any real schedule solves the rounded problem.
    Raises InvalidSchedule when the hint, made of whole blocks, is not a schedule for the problem, and BadInput when
    its microbatches are not in order.
    """
    begin = time.monotonic() if begin is None else begin
    hint = whole_blocks(hint)
    validate(hint, problem)
    check_order(hint)
    search = _Search(problem, hint, begin, time_limit_s, progress)
    search.bound_s = min(lower_bound(problem).seconds, search.best_s)
    search.report()
    if search.gap() > relative_gap:
        search.run(relative_gap, workers, seed)
    if search.gap() <= 1e-6 or (search.proven and search.gap() <= 1e-3):
        status = "optimal"
    else:
        status = "gap" if search.gap() <= relative_gap else "time limit"
    wall = time.monotonic() - begin
    proof = Proof(search.best_s, search.bound_s, search.gap(), status, time_limit_s, wall)
    return Solution(search.best, proof, tuple(search.history))


@dataclass
class _Search:
    """The best schedule so far, kept while the solver runs."""

    problem: Problem
    best: Schedule
    begin: float
    time_limit_s: float
    progress: Progress | None
    bound_s: float = 0.0
    proven: bool = False
    history: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hint_timeline = simulate(self.problem, self.best)
        self.best_s = float(self.hint_timeline.makespans()[0])
        self.history.append((0.0, self.best_s))

    def gap(self) -> float:
        return self.standing().gap

    def standing(self) -> Standing:
        return Standing(time.monotonic() - self.begin, self.time_limit_s, self.best_s, self.bound_s)

    def report(self) -> None:
        if self.progress is not None:
            self.progress(self.standing())

    def offer(self, schedule: Schedule) -> None:
        """Take a schedule if the event model finds it better."""
        try:
            validate(schedule, self.problem)
        except InvalidSchedule:  # memory was rounded; the solver's next solution may do
            return
        makespan = float(simulate(self.problem, schedule).makespans()[0])
        if makespan < self.best_s:
            self.best, self.best_s = schedule, makespan
            self.bound_s = min(self.bound_s, makespan)  # they may meet but for rounding
            self.history.append((time.monotonic() - self.begin, makespan))
            self.report()

    def raise_bound(self, bound_s: float) -> None:
        bound_s = min(bound_s, self.best_s)
        if bound_s > self.bound_s:
            self.bound_s = bound_s
            self.report()

    def run(self, relative_gap: float, workers: int, seed: int) -> None:
        """Solve the rounded problem; `best`, `bound_s` and `proven` hold what came of it."""
        from ortools.sat.python import cp_model

        model = Model(self.problem, self.best, self.best_s, self.bound_s)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        solver.parameters.relative_gap_limit = relative_gap
        remaining = self.time_limit_s - (time.monotonic() - self.begin)
        if remaining <= 0:
            return
        solver.parameters.max_time_in_seconds = remaining
        search = self

        class Callback(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                search.offer(model.schedule(self.value))

        solver.best_bound_callback = lambda ticks: search.raise_bound(model.seconds(ticks))
        status = solver.solve(model.model, Callback())
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.offer(model.schedule(solver.value))
            self.proven = status == cp_model.OPTIMAL and solver.objective_value <= solver.best_objective_bound + 0.5
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            self.raise_bound(model.seconds(solver.best_objective_bound))


def _crosspipe(
    name: str, placement: Placement, problem: Problem, time_limit_s: float, progress: Progress | None
) -> Solution:
    expected = stage_to_rank(placement, problem.n_ranks)
    if problem.stage_to_rank != expected:
        raise BadInput.of(name, "stages on ranks", problem.stage_to_rank, str(expected))
    begin = time.monotonic()
    if progress is not None:
        progress(Standing(0.0, time_limit_s, math.inf, lower_bound(problem).seconds))
    hint = best_hint(problem, time_limit_s=HINT_SHARE * time_limit_s).renamed(name)
    return solve(problem, hint, time_limit_s=time_limit_s, progress=progress, begin=begin)


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
