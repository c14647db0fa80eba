"""Exact policies by OR-tools: the fewest flows on the most loaded direction, and the best two-layer metric of all."""

from __future__ import annotations

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


def ilp(problem: RoutingProblem, seconds: SolverSeconds = 60.0) -> Decision:
    """The fewest flows on the most loaded direction, which is the paper's integer program; later coordinates of the
    metric and the rates of directions play no part in it. Flows with the same ends are counted together.
    """
    model, counts, alpha = _counting(problem)
    start = greedy(problem)
    _hint(model, problem, counts, start)
    model.add(alpha <= _most(problem, start))
    model.minimize(alpha)
    solver = _solver(seconds)
    status = solver.solve(model)
    if solver.status_name(status) not in ("OPTIMAL", "FEASIBLE"):
        return Decision(start, f"no better than greedy, nothing proven in {seconds:g} s")
    choice = _dealt(problem, [[solver.value(variable) for variable in mine] for mine in counts])
    bound = round(solver.best_objective_bound)
    proven = solver.status_name(status) == "OPTIMAL"
    return Decision(choice, "" if proven else f"not proven in {seconds:g} s: no choice has less than {bound} flows")


def lexicographic(
    problem: RoutingProblem, seconds: SolverSeconds = 60.0, most: Annotated[int, Field(ge=1, le=10_000_000)] = 200_000
) -> Ints:
    """The best of all choices by the two-layer metric, for few flows.

    Of all max-min-fair rates the least is that of the direction with the least rate per flow. So every choice that has
    the best such value is listed (flows of one job with the same ends are interchangeable), and the metric tells which
    is best. Raises DoesNotFit where there are more than `most` of these, RunFailed when `seconds` are over.
    """
    groups = _groups(problem)
    least, start = _best_share(problem, groups, seconds)
    if not np.isfinite(least):
        return start
    model, counts = _sharing(problem, groups, least)
    watch = _watcher(problem, groups, counts, start, most)
    solver = _solver(seconds)
    solver.parameters.enumerate_all_solutions = True
    status = solver.solve(model, watch)
    if watch.seen > most:
        expected = f"at most {most} choices that are equally good for the worst flow: fewer flows"
        raise DoesNotFit.of("lexicographic", "topology and workloads", f"more than {most} choices", expected)
    if solver.status_name(status) not in ("OPTIMAL", "INFEASIBLE"):
        raise RunFailed(f"lexicographic: {watch.seen} choices tried in {seconds:g} s, and there are more")
    best: Ints = watch.best
    return best


# --- the model -----------------------------------------------------------------------------------


def _groups(problem: RoutingProblem) -> Ints:
    """Per flow, the number of its group: flows of one job, with the same ends and card, are interchangeable."""
    keys = np.stack((problem.job, problem.pair, problem.card))
    return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _counting(problem: RoutingProblem) -> tuple[Any, list[list[Any]], Any]:
    """How many flows of each pair take each candidate, and the most on any direction as a variable."""
    from ortools.sat.python import cp_model  # slow to import

    model, counts = _counted(problem, problem.pair, problem.candidates)
    alpha = model.new_int_var(0, problem.n_flows, "alpha")
    for crossing in _crossing(problem, counts, problem.candidates):
        if crossing:
            model.add(cp_model.LinearExpr.sum(crossing) <= alpha)
    return model, counts, alpha


def _counted(problem: RoutingProblem, group: Ints, candidates: Any) -> tuple[Any, list[list[Any]]]:
    from ortools.sat.python import cp_model

    model, counts = cp_model.CpModel(), []
    for number, size in enumerate(np.bincount(group, minlength=len(candidates)).tolist()):
        mine = [model.new_int_var(0, size, f"x{number}_{k}") for k in range(len(candidates[number]))]
        model.add(cp_model.LinearExpr.sum(mine) == size)
        counts.append(mine)
    return model, counts


def _crossing(problem: RoutingProblem, counts: list[list[Any]], candidates: Any) -> list[list[Any]]:
    """Per direction that is a link, the counts of the routes that cross it."""
    found: list[list[Any]] = [[] for _ in range(problem.n_links)]
    for mine, routes in zip(counts, candidates, strict=True):
        for variable, route in zip(mine, routes, strict=True):
            for link in route:
                found[link].append(variable)
    return found


def _hint(model: Any, problem: RoutingProblem, counts: list[list[Any]], choice: Ints) -> None:
    for pair, mine in enumerate(counts):
        taken = np.bincount(choice[problem.pair == pair], minlength=len(mine))
        for variable, number in zip(mine, taken.tolist(), strict=True):
            model.add_hint(variable, number)


def _dealt(problem: RoutingProblem, counts: list[list[int]], group: Ints | None = None) -> Ints:
    """The flows of each pair (or group), in their order, on as many routes as are counted."""
    choice = np.zeros(problem.n_flows, np.int64)
    of_flow = problem.pair if group is None else group
    for number, mine in enumerate(counts):
        choice[of_flow == number] = np.repeat(np.arange(len(mine)), mine)
    return choice


def _most(problem: RoutingProblem, choice: Ints) -> int:
    return int(flows_per_direction(problem, choice)[: problem.n_links].max(initial=0))


def _solver(seconds: float) -> Any:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    return solver


# --- the two-layer metric ------------------------------------------------------------------------


def _group_candidates(problem: RoutingProblem, group: Ints) -> list[Any]:
    pair_of = {int(number): int(pair) for number, pair in zip(group, problem.pair, strict=True)}
    return [problem.candidates[pair_of[number]] for number in range(len(pair_of))]


def _least_share(problem: RoutingProblem, choice: Ints) -> float:
    first, crossed = problem.crossed(choice)
    return float(max_min_rates(first, crossed, problem.rate_bps).min(initial=np.inf))


def _best_share(problem: RoutingProblem, group: Ints, seconds: float) -> tuple[float, Ints]:
    """The largest least rate of a flow that any choice reaches, and such a choice; raised as long as there is one."""
    best = max((greedy(problem), greedy_jobs(problem)), key=lambda choice: _least_share(problem, choice))
    while True:
        least = _least_share(problem, best)
        if not np.isfinite(least):  # nobody crosses anything
            return least, best
        model, counts = _sharing(problem, group, least * (1 + 1e-6))
        solver = _solver(seconds)
        status = solver.status_name(solver.solve(model))
        if status == "INFEASIBLE":
            return least, best
        if status not in ("OPTIMAL", "FEASIBLE"):
            raise RunFailed(f"lexicographic: nothing proven of the worst flow in {seconds:g} s")
        best = _dealt(problem, [[solver.value(variable) for variable in mine] for mine in counts], group)


def _sharing(problem: RoutingProblem, group: Ints, least: float) -> tuple[Any, list[list[Any]]]:
    """Choices in which every direction gives each of its flows at least `least` bit/s."""
    from ortools.sat.python import cp_model

    candidates = _group_candidates(problem, group)
    model, counts = _counted(problem, group, candidates)
    for rate, crossing in zip(problem.rate_bps.tolist(), _crossing(problem, counts, candidates), strict=False):
        if crossing:
            model.add(cp_model.LinearExpr.sum(crossing) <= int(rate / least * (1 + 1e-9)))
    for card, number in zip(*np.unique(problem.card[problem.card >= 0], return_counts=True), strict=True):
        if problem.rate_bps[card] / number * (1 + 1e-9) < least:
            model.add_bool_or([])  # no route changes what a card carries
    return model, counts


def _watcher(problem: RoutingProblem, group: Ints, counts: list[list[Any]], start: Ints, most: int) -> Any:
    """Judges every solution that a solver finds, and stops it behind `most`."""
    from ortools.sat.python import cp_model

    class Watcher(cp_model.CpSolverSolutionCallback):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.best = 0, start
            self.metric: Metric = measured_by(problem, start)

        def on_solution_callback(self) -> None:
            self.seen += 1
            choice = _dealt(problem, [[self.value(variable) for variable in mine] for mine in counts], group)
            metric = measured_by(problem, choice)
            if metric.better_than(self.metric):
                self.best, self.metric = choice, metric
            if self.seen > most:
                self.stop_search()

    return Watcher()
