"""Small problems as a CP-SAT model of its own, which shares nothing with the solver's but what a problem says.

Time is counted in whole microseconds, so nothing is rounded. Every pair of actions of a rank and every pair of messages
of a link have a literal that says which goes first; memory is summed over these literals, so it follows the order, not
the clock; a wait that goes unnoticed is a literal as well. A link serves whoever is there first. Actions may begin late
here, which the event model never does: what is found is a lower bound of every order of whole blocks with microbatches
in order, and if the event model needs no longer for the order found, that is their optimum.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

from ortools.sat.python import cp_model

from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.problem import Problem

TICKS = 1_000_000
"""Per second."""
MEMORY = 1_000_000
"""Units of memory per microbatch of a rank."""


_Key = tuple[int, str, int]
"""Stage, kind, microbatch of an action."""


class Found(NamedTuple):
    """What the model says."""

    schedule: Schedule | None
    """The best order; None where time was up first."""
    seconds: float
    """How long the model believes that it takes."""
    bound_s: float
    closed: bool
    """Whether it is proven that there is none better."""


class _Message(NamedTuple):
    ready: cp_model.LinearExprT
    begin: cp_model.IntVar
    length: int


def solve(problem: Problem, horizon_s: float, time_limit_s: float) -> Found:
    """The best order of whole blocks; `horizon_s` is a time that some order needs. Deterministic but for its limit."""
    return _Own(problem, round(horizon_s * TICKS)).solved(time_limit_s)


class _Own:
    def __init__(self, problem: Problem, horizon: int) -> None:
        self.problem, self.horizon, self.model = problem, horizon, cp_model.CpModel()
        m, stages = range(problem.n_microbatches), range(problem.n_stages)
        self.start = {(s, kind, n): self.model.new_int_var(0, horizon, "") for s in stages for kind in "FIW" for n in m}
        times = {"F": problem.forward_s, "I": problem.input_s, "W": problem.weight_s}
        self.length = {(s, kind, n): round(times[kind][s] * TICKS) for s, kind, n in self.start}
        self.end = {key: start + self.length[key] for key, start in self.start.items()}
        # actions of no length could go in a circle at one instant: places cannot
        self.place = {key: self.model.new_int_var(0, len(self.start), "") for key in self.start}
        self.before: dict[tuple[_Key, _Key], cp_model.LiteralT] = {}
        self.messages: dict[int, list[_Message]] = {}
        self.makespan = self.model.new_int_var(0, horizon, "")
        self.model.add_max_equality(self.makespan, self.end.values())
        for rank in range(problem.n_ranks):
            self._rank([key for key in self.start if problem.stage_to_rank[key[0]] == rank], rank)
        for waiting in self.messages.values():
            for one, other in combinations(waiting, 2):
                self._first_come(one, other)
        self.model.minimize(self.makespan)

    def _rank(self, mine: list[_Key], rank: int) -> None:
        """One action at a time, within memory; each behind what it needs."""
        before = self.before
        for one, other in combinations(mine, 2):
            literal = self.model.new_bool_var("")
            before[one, other], before[other, one] = literal, literal.negated()
            self.model.add(self.end[one] <= self.start[other]).only_enforce_if(literal)
            self.model.add(self.end[other] <= self.start[one]).only_enforce_if(literal.negated())
            self.model.add(self.place[one] < self.place[other]).only_enforce_if(literal)
            self.model.add(self.place[other] < self.place[one]).only_enforce_if(literal.negated())
        limit = round(self.problem.memory_limit[rank] * MEMORY)
        for here in mine:
            stage, kind, number = here
            if number:
                self.model.add(before[(stage, kind, number - 1), here] == 1)
            if kind != "F":
                self.model.add(before[(stage, "F" if kind == "I" else "I", number), here] == 1)
            held = sum(self._added(other) * before[other, here] for other in mine if other != here)
            self.model.add(held + max(0, self._added(here)) <= limit)
            self._input(here, mine)

    def _added(self, key: _Key) -> int:
        stage, kind, _ = key
        forward = self.problem.activation[stage]
        gradient = self.problem.input_memory[stage] if self.problem.input_memory else 0.0
        return round({"F": forward, "I": gradient, "W": -forward - gradient}[kind] * MEMORY)

    def _input(self, here: _Key, mine: list[_Key]) -> None:
        """What it needs has come, or comes so soon behind the action before it that nobody notices."""
        stage, kind, number = here
        source = {"F": stage - 1, "I": stage + 1, "W": -1}[kind]
        if not 0 <= source < self.problem.n_stages:
            return
        came = self._sent((source, kind, number), stage)
        self.model.add(self.place[source, kind, number] < self.place[here])
        if self.problem.stage_to_rank[source] == self.problem.stage_to_rank[stage]:
            self.model.add(self.start[here] >= came)
            return
        unnoticed = round(self.problem.unnoticed_wait_s * TICKS)
        if not unnoticed:
            self.model.add(self.start[here] >= came)
            return
        waits, ways = self.model.new_bool_var(""), []
        self.model.add(self.start[here] >= came).only_enforce_if(waits)
        for other in [None, *(key for key in mine if key != here)]:
            at_once = self.model.new_bool_var("")
            free = 0 if other is None else self.end[other]
            self.model.add(self.start[here] == free).only_enforce_if(at_once)
            if other is not None:
                self.model.add_implication(at_once, self.before[other, here])
            ways.append(at_once)
        self.model.add(came <= self.start[here] + unnoticed).only_enforce_if(waits.negated())
        self.model.add_bool_or([waits, *ways])

    def _sent(self, source: _Key, stage: int) -> cp_model.LinearExprT:
        """When its result is there."""
        problem = self.problem
        here, there = problem.stage_to_rank[source[0]], problem.stage_to_rank[stage]
        if here == there:
            return self.end[source]
        ready: cp_model.LinearExprT = self.end[source]
        for link in problem.route(here, there):
            cost = problem.links[link]
            length = round(cost.seconds_per_byte * problem.message_bytes[min(source[0], stage)] * TICKS)
            if length:
                begin = self.model.new_int_var(0, self.horizon, "")
                self.model.add(begin >= ready)
                self.messages.setdefault(link, []).append(_Message(ready, begin, length))
                ready = begin + length
            ready = ready + round(cost.delay_s * TICKS)
        return ready + round(problem.handover_s * TICKS)

    def _first_come(self, one: _Message, other: _Message) -> None:
        literal = self.model.new_bool_var("")
        for first, second, chosen in ((one, other, literal), (other, one, literal.negated())):
            self.model.add(first.begin + first.length <= second.begin).only_enforce_if(chosen)
            self.model.add(first.ready <= second.ready).only_enforce_if(chosen)

    def solved(self, time_limit_s: float) -> Found:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = time_limit_s
        status = solver.solve(self.model)
        assert status != cp_model.INFEASIBLE, "a time that some order needs was said to be too short"
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Found(None, float("inf"), solver.best_objective_bound / TICKS, closed=False)
        return Found(
            self._schedule(solver),
            solver.objective_value / TICKS,
            solver.best_objective_bound / TICKS,
            status == cp_model.OPTIMAL,
        )

    def _schedule(self, solver: cp_model.CpSolver) -> Schedule:
        """The order of its literals."""
        rows: list[Row] = []
        for rank in range(self.problem.n_ranks):
            mine = [key for key in self.start if self.problem.stage_to_rank[key[0]] == rank]
            mine.sort(key=lambda key: solver.value(self.place[key]))
            rows.append(tuple(Action(stage, Kind(kind), number) for stage, kind, number in mine))
        return Schedule("own model", tuple(rows), self.problem.stage_to_rank, self.problem.n_microbatches)
