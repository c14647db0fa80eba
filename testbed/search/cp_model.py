"""A pipeline scheduling problem as a CP-SAT model in integer ticks, and its solutions as schedules.

Source: CrossPipe, section 4.1, with OR-Tools' CP-SAT in place of CP
Optimizer. All durations are rounded *down*, so rounding down the starts of any real schedule solves the model.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from testbed.model.gather import gathered, idle_gather_s, idle_reduction_s
from testbed.model.grid import time_step_s
from testbed.model.microbatch_path import hand_over_s
from testbed.model.network import idle_links, occupy
from testbed.model.simulate import simulate
from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.search.blocks import SPLIT_KINDS
from testbed.trace.tables import KINDS, MESSAGE_LETTERS

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_TICKS = 100_000
"""Units of integer time that the hint's makespan is cut into, at most (CrossPipe's largest value)."""

MOST_NEIGHBOURS = 20_000
"""Pairs of actions of a rank, over all ranks, up to which the solver is told which waits go unnoticed."""


class CpModel:
    """The CP-SAT model of a problem, in integer ticks."""

    def __init__(self, problem: Problem, hint: Schedule, hint_s: float, bound_s: float) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.hint = problem, hint
        smallest_s = hint_s / _TICKS
        self.tick_s = time_step_s(problem, smallest_s)
        self.exact = self.tick_s > smallest_s
        self.horizon = math.ceil(hint_s / self.tick_s - 1e-9)
        self.model = cp_model.CpModel()
        self.start: dict[Action, cp_model.IntVar] = {}
        self.end: dict[Action, Any] = {}
        self.hinted: dict[Action, int] = {}
        """Starts in the hint, ticks."""
        self.reversed: dict[tuple[Action, Action], cp_model.IntVar] = {}
        """Literals: the first of two actions of a rank is over before the second begins."""
        at = _starts(problem, hint)
        self._actions(at)
        # The event model's own bound, rounded down, saves the solver from proving it again.
        makespan = self.model.new_int_var(self.ticks(bound_s), self.horizon, "makespan")
        self._links(at, makespan)
        for rank in range(problem.n_ranks):
            self._memory(rank)
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
        """The order per rank of a solution.

        What starts at the same time goes microbatch by microbatch, each on its way there and back, so that actions of
        no length do not wait for each other, and take no more memory than they must.
        """
        last = self.problem.n_stages - 1
        rows: list[list[tuple[tuple[int, ...], Action]]] = [[] for _ in range(self.problem.n_ranks)]
        for action, start in self.start.items():
            stage, kind, microbatch, _ = action
            assert microbatch is not None
            begin, end = value(start), value(self.end[action])
            position = {Kind.F: (stage, 0), Kind.I: (2 * last + 1 - stage, 0), Kind.W: (2 * last + 1 - stage, 1)}[kind]
            key = (begin, int(end > begin), microbatch, *position)
            rows[self.problem.stage_to_rank[stage]].append((key, action))
        ordered = tuple(tuple(self._in_order(sorted(row), value)) for row in rows)
        return Schedule(self.hint.name, ordered, self.problem.stage_to_rank, self.problem.n_microbatches)

    def _in_order(self, row: list[tuple[tuple[int, ...], Action]], value: Callable[[Any], int]) -> list[Action]:
        """A row in order; of two actions at one time that `exclude` tells apart, the one first that it says."""
        order = [action for _, action in row]
        for (first, second), literal in self.reversed.items():
            if first in order and value(literal) and order.index(first) > order.index(second):
                order.remove(first)
                order.insert(order.index(second), first)
        return order

    def exclude(self, rows: tuple[Row, ...]) -> None:
        """Solutions have another order than this one on some rank."""
        model, differs = self.model, []
        for row in rows:
            for before, after in pairwise(row):
                if before.stage == after.stage and (before.kind == after.kind or before.microbatch == after.microbatch):
                    continue  # no schedule has them the other way round
                if (after, before) not in self.reversed:
                    literal = self.reversed[after, before] = model.new_bool_var(f"{after} before {before}")
                    model.add(self.end[after] <= self.start[before]).only_enforce_if(literal)
                differs.append(self.reversed[after, before])
        model.add_bool_or(differs)

    def _variable(self, name: str, hint_s: float) -> cp_model.IntVar:
        variable = self.model.new_int_var(0, self.horizon, name)
        self.model.add_hint(variable, min(self.ticks(hint_s), self.horizon))
        return variable

    def _actions(self, at: dict[Any, float]) -> None:
        problem, model = self.problem, self.model
        per_rank: list[list[cp_model.IntervalVar]] = [[] for _ in range(problem.n_ranks)]
        for stage in range(problem.n_stages):
            for kind in SPLIT_KINDS:
                for m in range(problem.n_microbatches):
                    action = Action(stage, kind, m)
                    length = self.ticks(problem.duration(action))
                    start = self._variable(str(action), at[action])
                    self.hinted[action] = min(self.ticks(at[action]), self.horizon)
                    self.start[action], self.end[action] = start, start + length
                    per_rank[problem.stage_to_rank[stage]].append(
                        model.new_fixed_size_interval_var(start, length, str(action))
                    )
                    if m:
                        model.add(start >= self.end[Action(stage, kind, m - 1)])
            for m in range(problem.n_microbatches):
                for before, after in pairwise(SPLIT_KINDS):
                    model.add(self.start[Action(stage, after, m)] >= self.end[Action(stage, before, m)])
        for intervals in per_rank:
            model.add_no_overlap(intervals)
        for stage in range(problem.n_stages):
            gathered_s = idle_gather_s(problem, stage) - problem.unnoticed_wait_s
            model.add(self.start[Action(stage, Kind.F, 0)] >= self.ticks(gathered_s))
        if not problem.all_gather:
            model.add(self.start[Action(0, Kind.F, 0)] == 0)

    def _links(self, at: dict[Any, float], makespan: cp_model.IntVar) -> None:
        """Messages of the first replica take turns on every link; collectives take what they would on idle links."""
        problem, model = self.problem, self.model
        on_link: list[list[cp_model.IntervalVar]] = [[] for _ in problem.links]
        producer = {made: action for action in self.start if (made := produced(action, problem.n_stages)) is not None}
        for action, start in self.start.items():
            message = consumed(action, problem.n_stages)
            local = message is None or problem.stage_to_rank[message.stage] == problem.stage_to_rank[action.stage]
            if local and self._tells_waits():
                model.add_bool_or(self._at_once(action))
            if message is None:
                continue
            ready = self.end[producer[message]]
            if local:
                model.add(start >= ready)
                continue
            route, size = _route(problem, message)
            hints = [at[message, hop] for hop in range(len(route))]
            self._transfer(str(message), route, size, ready, action, hints, on_link)
        for stage in range(problem.n_stages):
            last = Action(stage, Kind.W, problem.n_microbatches - 1)
            model.add(makespan >= self.end[last] + self.ticks(idle_reduction_s(problem, stage)))
        for intervals in on_link:
            if intervals:
                model.add_no_overlap(intervals)

    def _transfer(
        self,
        name: str,
        route: tuple[int, ...],
        size: float,
        ready: Any,
        consumer: Action,
        hints: list[float],
        on_link: list[list[cp_model.IntervalVar]],
    ) -> None:
        """`consumer` is no earlier than what is `ready` has crossed its route, but for a wait that goes unnoticed."""
        links, model, base_s = self.problem.links, self.model, 0.0  # the first bit leaves at ready + base_s
        done, noticed = self.start[consumer], self._noticed(consumer)
        for hop, index in enumerate(route):
            rest_s = sum(links[other].delay_s for other in route[hop:])
            wire_s = links[index].seconds_per_byte * size
            if length := self.ticks(wire_s):
                wire = self._variable(f"{name}/{hop}", hints[hop])
                on_link[index].append(model.new_fixed_size_interval_var(wire, length, f"{name}/{hop}"))
                model.add(wire >= ready + self.ticks(base_s))
                self._arrives(done, wire, wire_s + rest_s, noticed)
                ready, base_s = wire, 0.0
            base_s += links[index].delay_s  # cut through: the first bit goes on at once
        self._arrives(done, ready, base_s, noticed)
        if noticed is not None and route and not any(links[index].seconds_per_byte for index in route):
            came = ready + self.ticks(base_s + self.problem.handover_s)  # nothing can make it later
            model.add(done <= came + (0 if self.exact else 2)).only_enforce_if(noticed)

    def _arrives(self, done: cp_model.IntVar, since: Any, on_links_s: float, noticed: cp_model.IntVar | None) -> None:
        """`done` is no earlier than what takes so long; where `noticed`, no earlier than its arrival either."""
        self.model.add(done >= since + self.ticks(on_links_s + hand_over_s(self.problem)))
        if noticed is not None:
            came = since + self.ticks(on_links_s + self.problem.handover_s)
            self.model.add(done >= came).only_enforce_if(noticed)

    def _noticed(self, action: Action) -> cp_model.IntVar | None:
        """A literal: the action starts when its input has come, and not right behind another one, or at 0.

        None where it does not matter: waits are always noticed, or the model is so large that it would cost more than
        it gains; then the solver may believe that an action follows a gap and is early all the same.
        """
        if not self._tells_waits():
            return None
        noticed = self.model.new_bool_var(f"{action} notices")
        self.model.add_bool_or([noticed, *self._at_once(action)])
        return noticed

    def _tells_waits(self) -> bool:
        problem = self.problem
        pairs = len(self.start) * len(self.start) // problem.n_ranks
        return bool(problem.unnoticed_wait_s and not problem.all_gather and pairs <= MOST_NEIGHBOURS)

    def _at_once(self, action: Action) -> list[cp_model.IntVar]:
        """Literals, one for every way to start without a gap: right behind another action of the rank, or at 0."""
        model, rounding, literals = self.model, 0 if self.exact else 1, []
        for other, end in self.end.items():
            elsewhere = self.problem.stage_to_rank[other.stage] != self.problem.stage_to_rank[action.stage]
            if elsewhere or (other.stage == action.stage and _follows(other, action)):
                continue
            behind = model.new_bool_var(f"{action} right behind {other}")
            model.add(self.start[action] >= end).only_enforce_if(behind)
            model.add(self.start[action] <= end + rounding).only_enforce_if(behind)
            literals.append(behind)
        first = model.new_bool_var(f"{action} first")
        model.add(self.start[action] <= rounding).only_enforce_if(first)
        return [*literals, first]

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
                            length = self._length(f"held {s}{kind}{m}", Action(s, kind, m), Action(s, Kind.W, m))
                            held.append(model.new_interval_var(first, length, last, f"{s}{kind}{m} held"))
                            needs.append(need)
            model.add_cumulative(held, needs, capacity)
            if not any(more for _, more in shares.values()):
                self._in_flight(stages, [taken for taken, _ in shares.values()], limit)
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

    def _length(self, name: str, first: Action, last: Action) -> cp_model.IntVar:
        """From the start of one action to the end of another; hinted, or the solver would first look for a solution."""
        length = self.model.new_int_var(0, self.horizon, name)
        until = self.hinted[last] + self.ticks(self.problem.duration(last))
        self.model.add_hint(length, max(0, until - self.hinted[first]))
        return length

    def _in_flight(self, stages: list[int], shares: list[float], limit: float) -> None:
        """What a limit on equal shares implies for single actions, which the solver would be slow to find.

        K shares fit. Then F of m + K waits for W of m on every stage. And when a rank's later stage starts the input
        gradient of m, both its stages hold m: its earlier stage can have begun K - 2 more, so F of m + K - 1 waits
        until one of the two W of m has ended.
        """
        problem, model = self.problem, self.model
        share = min(shares)
        if share <= 0 or max(shares) - share > TOLERANCE:
            return
        room = int(limit / share)
        for s in stages:
            for m in range(problem.n_microbatches - room):
                model.add(self.start[Action(s, Kind.F, m + room)] >= self.end[Action(s, Kind.W, m)])
        for early, late in combinations(stages, 2):
            least = min(self.ticks(problem.weight_s[s]) for s in (early, late))
            for m in range(problem.n_microbatches - room + 1):
                model.add(self.start[Action(early, Kind.F, m + room - 1)] >= self.end[Action(late, Kind.I, m)] + least)


def _follows(later: Action, action: Action) -> bool:
    """Whether an action of the same stage always comes after another one."""
    assert later.microbatch is not None
    assert action.microbatch is not None
    ranked = SPLIT_KINDS.index(later.kind) - SPLIT_KINDS.index(action.kind), later.microbatch - action.microbatch
    return min(ranked) >= 0


def _memory_scale(values: Iterable[float]) -> float:
    """Integers per unit of memory: the common denominator if it is small, else a large number."""
    fractions = [Fraction(value).limit_denominator(1000) for value in values]
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    exact = all(abs(float(f) - v) < 1e-12 for f, v in zip(fractions, values, strict=True))
    return scale if exact and scale <= 1_000_000 else 1_000_000


def _route(problem: Problem, message: Message) -> tuple[tuple[int, ...], float]:
    """The links of a message's route, and its bytes on them."""
    source, target = (problem.stage_to_rank[s] for s in (message.stage, message.consumer))
    route = problem.route(source, target) if source != target else ()
    return route, problem.message_bytes[min(message.stage, message.consumer)]


def _starts(problem: Problem, schedule: Schedule) -> dict[Any, float]:
    """When the event model starts every action, and under (message, hop) every message on every link; seconds."""
    timeline = simulate(problem, schedule, receives="early")
    at: dict[Any, float] = {}
    first = {problem.number(0, rank) for rank in range(problem.n_ranks)}  # the first pipeline's ranks
    mine = (row for row in timeline.actions if int(row["rank"]) in first)
    for row in mine:
        kind = KINDS[row["kind"]]
        at[Action(int(row["stage"]), kind, int(row["microbatch"]))] = float(row["start_s"])
    queue: list[tuple[float, int, Message, int, float]] = []
    mine = (
        row for row in timeline.messages if int(row["source_rank"]) in first and int(row["kind"]) in MESSAGE_LETTERS
    )
    for number, row in enumerate(sorted(mine, key=lambda m: float(m["sent_s"]))):
        message = Message(MESSAGE_LETTERS[int(row["kind"])], int(row["stage"]), int(row["microbatch"]))
        queue.append((float(row["sent_s"]), number, message, 0, float(row["sent_s"])))
    heapq.heapify(queue)
    wires = idle_links(problem.links, gathered(problem).link_free_s)
    while queue:
        now, number, message, hop, last_bit = heapq.heappop(queue)
        route, size = _route(problem, message)
        if hop < len(route):
            start = at[message, hop] = float(occupy(wires, route[hop], size, now, last_bit))
            delay = problem.links[route[hop]].delay_s
            heapq.heappush(queue, (start + delay, number, message, hop + 1, float(wires.free_s[route[hop]]) + delay))
    return at
