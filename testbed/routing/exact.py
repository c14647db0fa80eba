"""Exact policies by OR-tools: the fewest flows on the most loaded direction, and the best two-layer metric of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from testbed.errors import DoesNotFit, RunFailed
from testbed.model.network import Ints
from testbed.routing.fairness import Metric, flows_per_direction, max_min_rates, measured_by
from testbed.routing.greedy_routes import greedy, greedy_jobs
from testbed.routing.routing_problem import RoutingProblem

SolverSeconds = Annotated[float, Field(gt=0, le=86_400)]


class Decision(NamedTuple):
    """What a policy may return instead of the choice alone."""

    choice: Ints
    remark: str = ""
    """What a user should know of it."""


def ilp(problem: RoutingProblem, time_limit_s: SolverSeconds = 60.0) -> Decision:
    """The fewest flows on the most loaded direction, which is the paper's integer program; later coordinates of the
    metric and the rates of directions play no part in it. Flows with the same ends are counted together.
    """
    counts = _Counts(problem, problem.pair, problem.candidates)
    model, start = counts.model, greedy(problem)
    alpha = model.new_int_var(0, problem.n_flows, "alpha")
    for crossing in counts.crossing:
        if crossing:
            model.add(counts.total(crossing) <= alpha)
    for pair, mine in enumerate(counts.variables):
        taken = np.bincount(start[problem.pair == pair], minlength=len(mine))
        for variable, number in zip(mine, taken.tolist(), strict=True):
            model.add_hint(variable, number)
    model.add(alpha <= int(flows_per_direction(problem, start)[: problem.n_links].max(initial=0)))
    model.minimize(alpha)
    status, solver = counts.solved(time_limit_s)
    if status not in ("OPTIMAL", "FEASIBLE"):
        return Decision(start, f"no better than greedy, nothing proven in {time_limit_s:g} s")
    bound, proven = round(solver.best_objective_bound), status == "OPTIMAL"
    remark = "" if proven else f"not proven in {time_limit_s:g} s: no choice has less than {bound} flows"
    return Decision(counts.dealt(solver.value), remark)


def lexicographic(
    problem: RoutingProblem,
    time_limit_s: SolverSeconds = 60.0,
    most: Annotated[int, Field(ge=1, le=10_000_000)] = 200_000,
) -> Ints:
    """The best of all choices by the two-layer metric, for few flows.

    Of all max-min-fair rates the least is that of the direction with the least rate per flow. So every choice that has
    the best such value is listed (flows of one job with the same ends are interchangeable), and the metric tells which
    is best. Raises DoesNotFit where there are more than `most` of these, RunFailed when its time is over.
    """
    least, start = _best_share(problem, time_limit_s)
    if not np.isfinite(least):
        return start
    counts = _sharing(problem, least)
    watch = _watcher(counts, start, most)
    status, _ = counts.solved(time_limit_s, watch)
    if watch.seen > most:
        expected = f"at most {most} choices that are equally good for the worst flow: fewer flows"
        raise DoesNotFit.of("lexicographic", "topology and workloads", f"more than {most} choices", expected)
    if status not in ("OPTIMAL", "INFEASIBLE"):
        raise RunFailed(f"lexicographic: {watch.seen} choices tried in {time_limit_s:g} s, and there are more")
    best: Ints = watch.best
    return best


class _Counts:
    """A model of how many flows of each group take each of its candidates."""

    def __init__(self, problem: RoutingProblem, group: Ints, candidates: Sequence[Any]) -> None:
        """`group`: per flow, the number of its group; `candidates`: per group."""
        from ortools.sat.python import cp_model  # slow to import

        self.problem, self.group = problem, group
        self.model, self.solver, self.total = cp_model.CpModel(), cp_model.CpSolver(), cp_model.LinearExpr.sum
        self.variables: list[list[Any]] = []
        self.crossing: list[list[Any]] = [[] for _ in range(problem.n_links)]
        """Per direction that is a link, the counts of the routes that cross it."""
        sizes = np.bincount(group, minlength=len(candidates)).tolist()
        for number, (size, routes) in enumerate(zip(sizes, candidates, strict=True)):
            mine = [self.model.new_int_var(0, size, f"x{number}_{k}") for k in range(len(routes))]
            self.model.add(self.total(mine) == size)
            self.variables.append(mine)
            for variable, route in zip(mine, routes, strict=True):
                for link in route:
                    self.crossing[link].append(variable)

    def solved(self, seconds: float, watch: Any = None) -> tuple[str, Any]:
        """How it ended, and the solver; with `watch`, that is told of every solution."""
        parameters = self.solver.parameters
        parameters.max_time_in_seconds, parameters.num_workers, parameters.random_seed = seconds, 1, 1
        parameters.enumerate_all_solutions = watch is not None
        return self.solver.status_name(self.solver.solve(self.model, watch)), self.solver

    def dealt(self, value: Callable[[Any], int]) -> Ints:
        """The flows of each group, in their order, on as many routes as `value` says of the counts."""
        choice = np.zeros(self.problem.n_flows, np.int64)
        for number, mine in enumerate(self.variables):
            choice[self.group == number] = np.repeat(np.arange(len(mine)), list(map(value, mine)))
        return choice


# --- the two-layer metric ------------------------------------------------------------------------


def _least_share(problem: RoutingProblem, choice: Ints) -> float:
    first, crossed = problem.crossed(choice)
    return float(max_min_rates(first, crossed, problem.rate_bps).min(initial=np.inf))


def _best_share(problem: RoutingProblem, time_limit_s: float) -> tuple[float, Ints]:
    """The largest least rate of a flow that any choice reaches, and such a choice; raised as long as there is one."""
    best = max((greedy(problem), greedy_jobs(problem)), key=lambda choice: _least_share(problem, choice))
    while True:
        least = _least_share(problem, best)
        if not np.isfinite(least):  # nobody crosses anything
            return least, best
        counts = _sharing(problem, least * (1 + 1e-6))
        status, solver = counts.solved(time_limit_s)
        if status == "INFEASIBLE":
            return least, best
        if status not in ("OPTIMAL", "FEASIBLE"):
            raise RunFailed(f"lexicographic: nothing proven of the worst flow in {time_limit_s:g} s")
        best = counts.dealt(solver.value)


def _sharing(problem: RoutingProblem, least: float) -> _Counts:
    """Choices in which every direction gives each of its flows at least `least` bit/s.

    Flows of one job, with the same ends and card, are interchangeable: a group.
    """
    keys = np.stack((problem.job, problem.pair, problem.card))
    first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)[1:]
    candidates = [problem.candidates[pair] for pair in problem.pair[first].tolist()]
    counts = _Counts(problem, group.reshape(-1).astype(np.int64), candidates)
    for rate, crossing in zip(problem.rate_bps.tolist(), counts.crossing, strict=False):
        if crossing:
            counts.model.add(counts.total(crossing) <= int(rate / least * (1 + 1e-9)))
    for card, number in zip(*np.unique(problem.card[problem.card >= 0], return_counts=True), strict=True):
        if problem.rate_bps[card] / number * (1 + 1e-9) < least:
            counts.model.add_bool_or([])  # no route changes what a card carries
    return counts


def _watcher(counts: _Counts, start: Ints, most: int) -> Any:
    """Judges every solution that a solver finds, and stops it behind `most`."""
    from ortools.sat.python import cp_model

    class Watcher(cp_model.CpSolverSolutionCallback):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.best = 0, start
            self.metric: Metric = measured_by(counts.problem, start)

        def on_solution_callback(self) -> None:
            self.seen += 1
            choice = counts.dealt(self.value)
            metric = measured_by(counts.problem, choice)
            if metric.better_than(self.metric):
                self.best, self.metric = choice, metric
            if self.seen > most:
                self.stop_search()

    return Watcher()
