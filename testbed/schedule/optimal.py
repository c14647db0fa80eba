"""Optimal schedules by constraint programming (CP-SAT): CrossPipe's CrossUD, CrossWave and CrossLoop.

Source: reading/crosspipe.md, "Optimal schedule by constraint optimisation", with OR-Tools' CP-SAT in place of CP
Optimizer. Optimal means: among schedules of whole blocks, backward split, microbatches in order per stage and kind.
What is found is reduced to an order per rank and judged by the event model, so the solver's rounding never matters.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.errors import BadInput
from testbed.model.bounds import lower_bound
from testbed.model.simulate import simulate
from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import WHOLE, Action, Kind, Row, Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import InvalidSchedule, validate
from testbed.schedule.greedy import crosspipe_greedy
from testbed.schedule.list_scheduler import forward_first, input_first, list_schedule, oldest_first
from testbed.schedule.one_f_one_b import one_f_one_b
from testbed.schedule.zb_h1 import zb_h1
from testbed.timeline import KINDS

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Progress = Callable[[float, float, float], None]
"""(wall seconds since the call, best makespan in seconds, proven lower bound in seconds)"""

_SPLIT = (Kind.F, Kind.I, Kind.W)
_TICKS = 100_000
"""Units of integer time that the hint's makespan is cut into, at most (CrossPipe's largest value)."""


class Solution(NamedTuple):
    """What the solver found, and how good it is known to be."""

    schedule: Schedule
    makespan_s: float
    """By the event model; never above the hint's."""
    bound_s: float
    """No schedule of whole blocks, backward split, microbatches in order, has a smaller makespan."""
    gap: float
    """(makespan - bound) / makespan"""
    status: str
    """optimal: proven up to the rounding of time; gap: within the relative gap; time limit: neither"""
    wall_s: float
    history: tuple[tuple[float, float], ...]
    """(wall seconds, makespan in seconds) of the hint, at 0, and of every better schedule."""


def whole_blocks(schedule: Schedule) -> Schedule:
    """The same order with whole F, I and W blocks: sub-blocks joined, a full backward split into I and then W.

    F and I run where their last part was, when their memory is taken and their message leaves; W where its first part
    was, which is behind its I and frees memory early. So no rank needs more memory than before, save where
    `input_memory` makes I and W need more than B.
    """
    return Schedule(
        schedule.name,
        tuple(tuple(_join(row)) for row in schedule.rows),
        schedule.stage_to_rank,
        schedule.n_microbatches,
    )


def _join(row: Row) -> Iterator[Action]:
    for action in row:
        whole = action._replace(part=WHOLE)
        if action.kind is Kind.W:
            if action.part.is_first:
                yield whole
        elif action.part.is_last:
            if action.kind is Kind.B:
                yield whole._replace(kind=Kind.I)
                yield whole._replace(kind=Kind.W)
            else:
                yield whole


def solve(
    problem: Problem,
    hint: Schedule,
    *,
    time_limit_s: float = 30.0,
    relative_gap: float = 0.01,
    workers: int = 2,
    seed: int = 0,
    progress: Progress | None = None,
) -> Solution:
    """The best schedule found within `time_limit_s` wall seconds, or as soon as it is within `relative_gap` of optimal.

    `hint` is a valid schedule in the problem's placement; the result is never worse. With one worker the same seed
    gives the same result, unless the time limit ends the search. `bound_s` stays a true bound: all durations are
    rounded *down* to integer time, so rounding down the starts of any real schedule solves the rounded problem.
    Raises InvalidSchedule when the hint, made of whole blocks, is not a schedule for the problem, and BadInput when
    its microbatches are not in order.
    """
    begin = time.monotonic()
    hint = whole_blocks(hint)
    validate(hint, problem)
    _check_order(hint)
    search = _Search(problem, hint, begin, progress)
    search.bound_s = min(lower_bound(problem).seconds, search.best_s)
    if search.gap() > relative_gap:
        search.run(time_limit_s, relative_gap, workers, seed)
    if search.gap() <= 1e-6 or (search.proven and search.gap() <= 1e-3):
        status = "optimal"
    else:
        status = "gap" if search.gap() <= relative_gap else "time limit"
    wall = time.monotonic() - begin
    return Solution(search.best, search.best_s, search.bound_s, search.gap(), status, wall, tuple(search.history))


def _check_order(schedule: Schedule) -> None:
    following: dict[tuple[int, Kind], int] = {}
    for _, action in schedule.actions():
        wanted = following.get(action[:2], 0)
        if action.microbatch != wanted:
            raise BadInput.of(
                f"hint {schedule.name}", "next of its stage and kind", str(action), f"microbatch {wanted}"
            )
        following[action[:2]] = wanted + 1


@dataclass
class _Search:
    """The best schedule so far, kept while the solver runs."""

    problem: Problem
    best: Schedule
    begin: float
    progress: Progress | None
    bound_s: float = 0.0
    proven: bool = False
    history: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hint_timeline = simulate(self.problem, self.best)
        self.best_s = float(self.hint_timeline.makespans()[0])
        self.history.append((0.0, self.best_s))

    def gap(self) -> float:
        return (self.best_s - self.bound_s) / self.best_s if self.best_s > 0 else 0.0

    def report(self) -> None:
        if self.progress is not None:
            self.progress(time.monotonic() - self.begin, self.best_s, self.bound_s)

    def offer(self, schedule: Schedule) -> None:
        """Take a schedule if the event model finds it better."""
        try:
            validate(schedule, self.problem)
        except InvalidSchedule:  # memory was rounded; the solver's next solution may do
            return
        makespan = float(simulate(self.problem, schedule).makespans()[0])
        if makespan < self.best_s:
            self.best, self.best_s = schedule, makespan
            self.history.append((time.monotonic() - self.begin, makespan))
            self.report()

    def raise_bound(self, bound_s: float) -> None:
        bound_s = min(bound_s, self.best_s)
        if bound_s > self.bound_s:
            self.bound_s = bound_s
            self.report()

    def run(self, time_limit_s: float, relative_gap: float, workers: int, seed: int) -> None:
        """Solve the rounded problem; `best`, `bound_s` and `proven` hold what came of it."""
        from ortools.sat.python import cp_model

        model = _Model(self.problem, self.best, self.best_s, self.bound_s)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        solver.parameters.relative_gap_limit = relative_gap
        remaining = time_limit_s - (time.monotonic() - self.begin)
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


class _Model:
    """The CP-SAT model of a problem, in integer ticks."""

    def __init__(self, problem: Problem, hint: Schedule, hint_s: float, bound_s: float) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.hint = problem, hint
        self.tick_s = _tick(problem, hint_s)
        self.horizon = math.ceil(hint_s / self.tick_s - 1e-9)
        self.model = cp_model.CpModel()
        self.start: dict[Action, cp_model.IntVar] = {}
        self.end: dict[Action, Any] = {}
        at = _starts(problem, hint)
        self._actions(at)
        self._messages(at)
        for rank in range(problem.n_ranks):
            self._memory(rank)
        # The event model's own bound, rounded down, saves the solver from proving it again.
        makespan = self.model.new_int_var(self.ticks(bound_s), self.horizon, "makespan")
        for stage in range(problem.n_stages):
            self.model.add(makespan >= self.end[Action(stage, Kind.W, problem.n_microbatches - 1)])
        self.model.add_hint(makespan, self.horizon)
        self.model.minimize(makespan)

    def ticks(self, seconds: float) -> int:
        """Seconds in ticks, rounded down (a float's own error aside)."""
        return math.floor(seconds / self.tick_s + 1e-6)

    def seconds(self, ticks: float) -> float:
        """A bound in ticks (an integer, whatever its type) as seconds."""
        return ticks * self.tick_s * (1.0 - 1e-9)

    def schedule(self, value: Callable[[Any], int]) -> Schedule:
        """The order per rank of a solution; an action of no length goes where its predecessors let it."""
        place = {action: n for row in self.hint.rows for n, action in enumerate(row)}
        step = {Kind.F: 0, Kind.I: 1, Kind.W: 2}
        rows: list[list[tuple[tuple[int, ...], Action]]] = [[] for _ in range(self.problem.n_ranks)]
        for action, start in self.start.items():
            begin, end = value(start), value(self.end[action])
            key = (begin, end, step[action.kind], place[action])
            rows[self.problem.stage_to_rank[action.stage]].append((key, action))
        ordered = tuple(tuple(action for _, action in sorted(row)) for row in rows)
        return Schedule(self.hint.name, ordered, self.problem.stage_to_rank, self.problem.n_microbatches)

    def _variable(self, name: str, hint_s: float) -> cp_model.IntVar:
        variable = self.model.new_int_var(0, self.horizon, name)
        self.model.add_hint(variable, min(self.ticks(hint_s), self.horizon))
        return variable

    def _actions(self, at: dict[Any, float]) -> None:
        problem, model = self.problem, self.model
        per_rank: list[list[cp_model.IntervalVar]] = [[] for _ in range(problem.n_ranks)]
        for stage in range(problem.n_stages):
            for kind in _SPLIT:
                for m in range(problem.n_microbatches):
                    action = Action(stage, kind, m)
                    length = self.ticks(problem.duration(action))
                    start = self._variable(str(action), at[action])
                    self.start[action], self.end[action] = start, start + length
                    per_rank[problem.stage_to_rank[stage]].append(
                        model.new_fixed_size_interval_var(start, length, str(action))
                    )
                    if m:
                        model.add(start >= self.end[Action(stage, kind, m - 1)])
            for m in range(problem.n_microbatches):
                for before, after in pairwise(_SPLIT):
                    model.add(self.start[Action(stage, after, m)] >= self.end[Action(stage, before, m)])
        for intervals in per_rank:
            model.add_no_overlap(intervals)
        model.add(self.start[Action(0, Kind.F, 0)] == 0)

    def _messages(self, at: dict[Any, float]) -> None:
        problem, model = self.problem, self.model
        on_link: list[list[cp_model.IntervalVar]] = [[] for _ in problem.links]
        producer = {made: action for action in self.start if (made := produced(action, problem.n_stages)) is not None}
        for action, start in self.start.items():
            message = consumed(action, problem.n_stages)
            if message is None:
                continue
            ready, base_s = self.end[producer[message]], 0.0  # the first bit leaves at ready + base_s
            route, wires = _wires(problem, message)
            for hop, (index, wire_s) in enumerate(zip(route, wires, strict=True)):
                rest_s = sum(problem.links[other].delay_s for other in route[hop:])
                if length := self.ticks(wire_s):
                    name = f"{message.kind}{message.stage},{message.microbatch}/{hop}"
                    wire = self._variable(name, at[message, hop])
                    on_link[index].append(model.new_fixed_size_interval_var(wire, length, name))
                    model.add(wire >= ready + self.ticks(base_s))
                    model.add(start >= wire + self.ticks(wire_s + rest_s))
                    ready, base_s = wire, 0.0
                base_s += problem.links[index].delay_s  # cut through: the first bit goes on at once
            model.add(start >= ready + self.ticks(base_s))
        for intervals in on_link:
            if intervals:
                model.add_no_overlap(intervals)

    def _memory(self, rank: int) -> None:
        """Memory is held from the start of the action that takes it to the end of its W.

        One stage per rank with equal shares is a precedence: F of m + limit behind W of m. Otherwise a cumulative
        (found better schedules sooner than a reservoir, which is left for an I that frees memory) of integers:
        shares and limit are rounded down, so that rounding never makes a possible schedule impossible.
        """
        problem, model = self.problem, self.model
        stages = [s for s, r in enumerate(problem.stage_to_rank) if r == rank]
        extra = problem.input_memory or (0.0,) * problem.n_stages
        limit = problem.memory_limit[rank] + TOLERANCE
        if len(stages) == 1 and extra[stages[0]] == 0:
            share = problem.activation[stages[0]]
            room = int(limit / share) if share > 0 else problem.n_microbatches
            for m in range(problem.n_microbatches - room):
                model.add(self.start[Action(stages[0], Kind.F, m + room)] >= self.end[Action(stages[0], Kind.W, m)])
            return
        shares = {s: (problem.activation[s], extra[s]) for s in stages}
        scale = _memory_scale([limit - TOLERANCE, *(value for pair in shares.values() for value in pair)])
        capacity = math.floor(limit * scale + 1e-6)
        if all(more >= 0 for _, more in shares.values()):
            held: list[cp_model.IntervalVar] = []
            needs: list[int] = []
            for s in stages:
                for kind, share in zip((Kind.F, Kind.I), shares[s], strict=True):
                    if need := math.floor(share * scale + 1e-6):
                        for m in range(problem.n_microbatches):
                            first, last = self.start[Action(s, kind, m)], self.end[Action(s, Kind.W, m)]
                            length = model.new_int_var(0, self.horizon, f"held {s}{kind}{m}")
                            held.append(model.new_interval_var(first, length, last, f"{s}{kind}{m} held"))
                            needs.append(need)
            model.add_cumulative(held, needs, capacity)
            return
        times: list[Any] = []
        demands: list[int] = []
        for s in stages:
            taken, more = (math.floor(value * scale + 1e-6) for value in shares[s])
            for m in range(problem.n_microbatches):
                events = [(self.start[Action(s, Kind.F, m)], taken), (self.end[Action(s, Kind.W, m)], -taken - more)]
                # What an I frees, it frees at its end.
                events.append(((self.start if more > 0 else self.end)[Action(s, Kind.I, m)], more))
                for when, demand in events:
                    if demand:
                        times.append(when)
                        demands.append(demand)
        total = sum(demand for demand in demands if demand > 0)
        if total > capacity:
            model.add_reservoir_constraint(times, demands, -total, capacity)


def _tick(problem: Problem, horizon_s: float) -> float:
    """Seconds per tick: a common divisor of all times if that needs few enough ticks, else the horizon's share."""
    values = {*problem.forward_s, *problem.input_s, *problem.weight_s, *(link.delay_s for link in problem.links)}
    values |= {link.seconds_per_byte * size for link in problem.links for size in problem.message_bytes}
    smallest = horizon_s / _TICKS
    divisor = 0.0
    for value in values:
        rest = value
        while rest > smallest / 2:  # Euclid's algorithm, blind to what a float cannot tell
            divisor, rest = rest, math.fmod(divisor, rest) if divisor else 0.0
            if rest and divisor - rest < 1e-9 * divisor:
                rest = 0.0
    exact = divisor >= smallest and all(abs(v / divisor - round(v / divisor)) < 1e-7 for v in values)
    return divisor if exact else smallest


def _memory_scale(values: Iterable[float]) -> float:
    """Integers per unit of memory: the common denominator if it is small, else a large number."""
    fractions = [Fraction(value).limit_denominator(1000) for value in values]
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    exact = all(abs(float(f) - v) < 1e-12 for f, v in zip(fractions, values, strict=True))
    return scale if exact and scale <= 1_000_000 else 1_000_000


def _wires(problem: Problem, message: Message) -> tuple[tuple[int, ...], list[float]]:
    """The links of a message's route and its time on each."""
    source, target = (problem.stage_to_rank[s] for s in (message.stage, message.consumer))
    route = problem.route(source, target) if source != target else ()
    size = problem.message_bytes[min(message.stage, message.consumer)]
    return route, [problem.links[index].seconds_per_byte * size for index in route]


def _starts(problem: Problem, schedule: Schedule) -> dict[Any, float]:
    """When the event model starts every action, and under (message, hop) every message on every link; seconds."""
    timeline = simulate(problem, schedule)
    at: dict[Any, float] = {}
    for row in timeline.actions:
        kind = KINDS[row["kind"]]
        at[Action(int(row["stage"]), kind, int(row["microbatch"]))] = float(row["start_s"])
    queue: list[tuple[float, int, Message, int, float]] = []
    for number, row in enumerate(sorted(timeline.messages, key=lambda m: float(m["sent_s"]))):
        message = Message("FG"[int(row["kind"])], int(row["stage"]), int(row["microbatch"]))  # type: ignore[arg-type]
        queue.append((float(row["sent_s"]), number, message, 0, float(row["sent_s"])))
    heapq.heapify(queue)
    free = [0.0] * len(problem.links)
    while queue:
        now, number, message, hop, last_bit = heapq.heappop(queue)
        route, wires = _wires(problem, message)
        if hop < len(route):
            start = at[message, hop] = max(now, free[route[hop]])
            free[route[hop]] = max(start + wires[hop], last_bit)
            delay = problem.links[route[hop]].delay_s
            heapq.heappush(queue, (start + delay, number, message, hop + 1, free[route[hop]] + delay))
    return at


def best_hint(problem: Problem) -> Schedule:
    """The fastest of the quick schedules that fit, as whole blocks: the list scheduler's, for UD also the known ones.

    Raises BadInput when a rank cannot hold a single microbatch.
    """
    found: list[tuple[float, Schedule]] = []

    def consider(make: Callable[[], Schedule]) -> None:
        try:
            schedule = whole_blocks(make())
            validate(schedule, problem)
        except BadInput:  # does not fit into memory
            return
        found.append((float(simulate(problem, schedule).makespans()[0]), schedule))

    if problem.n_stages == problem.n_ranks:
        for generator in (crosspipe_greedy, zb_h1, one_f_one_b):
            consider(lambda generator=generator: generator(problem))  # type: ignore[misc]
    for priority in (input_first, oldest_first, forward_first):
        for alternate in (False, True):
            for patience_s in (0.0, max(problem.weight_s) / 2):
                consider(
                    lambda p=priority, a=alternate, s=patience_s: list_schedule(  # type: ignore[misc]
                        problem, priority=p, alternate=a, patience_s=s
                    )
                )
    if not found:
        list_schedule(problem)  # raises what is wrong
    return min(found, key=lambda pair: pair[0])[1]


def _crosspipe(name: str, placement: Placement, problem: Problem, time_limit_s: float) -> Schedule:
    expected = stage_to_rank(placement, problem.n_ranks)
    if problem.stage_to_rank != expected:
        raise BadInput.of(name, "stages on ranks", problem.stage_to_rank, str(expected))
    return solve(problem, best_hint(problem), time_limit_s=time_limit_s).schedule.renamed(name)


def crosspipe_ud(problem: Problem, time_limit_s: float = 30.0) -> Schedule:
    """CrossUD: one stage per rank, the best found in `time_limit_s` seconds or within 1 % of optimal.

    Raises BadInput for another placement, or when a rank cannot hold a single microbatch.
    """
    return _crosspipe("crosspipe-ud", Placement.UD, problem, time_limit_s)


def crosspipe_wave(problem: Problem, time_limit_s: float = 30.0) -> Schedule:
    """CrossWave: two stages per rank in a V; otherwise as `crosspipe_ud`."""
    return _crosspipe("crosspipe-wave", Placement.WAVE, problem, time_limit_s)


def crosspipe_loop(problem: Problem, time_limit_s: float = 30.0) -> Schedule:
    """CrossLoop: two stages per rank, the second pass from rank 0 again; otherwise as `crosspipe_ud`."""
    return _crosspipe("crosspipe-loop", Placement.LOOP, problem, time_limit_s)
