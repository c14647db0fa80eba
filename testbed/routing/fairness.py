"""How good a choice of routes is: max-min-fair rates of flows, and the two-layer metric of jobs made from them.

"Two-layer max-min fairness" is the objective that arXiv:2503.05324 names. Its definition was not available to us; what
is here is our own formalisation: a job is worth the least max-min-fair rate of its flows, since a step of a collective
ends with its slowest flow, and of two choices of routes the better one has the larger vector of jobs, ascending,
compared from the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints
from testbed.routing.loops import TOLERANCE, loops
from testbed.routing.routing_problem import RoutingProblem


class Metric(NamedTuple):
    """What a choice of routes gives, if every flow always has something to send."""

    rates_bps: Floats
    """Per flow; infinite where it crosses no direction."""
    job_rates_bps: Floats
    """Per job, the least rate of its flows; infinite for a job without any."""
    most_flows: int
    """On any direction of a link: what the paper's integer program calls alpha, in our words."""
    all_reduce_s: Floats
    """Per job, seconds that its slowest flow takes for the bytes of data parallelism; nan without any. Delays, and that
    flows end and leave room to others, are left out."""
    jain: float
    """Jain's index of the jobs' rates: 1 where all are equal, 1/n where one job has everything."""

    def vector(self) -> tuple[float, ...]:
        """The jobs' rates, ascending."""
        return tuple(sorted(self.job_rates_bps.tolist()))

    def better_than(self, other: Metric) -> bool:
        """Whether the two-layer metric prefers it."""
        return better(self.vector(), other.vector())


def better(vector: Sequence[float], other: Sequence[float], tie: float = TOLERANCE) -> bool:
    """Whether the two-layer metric prefers the first of two vectors of jobs' rates; within `tie` two are the same."""
    for mine, its in zip(vector, other, strict=True):
        if mine != its and not abs(mine - its) <= tie * min(mine, its):
            return mine > its
    return False


def max_min_rates(first: Ints, crossed: Ints, rate_bps: Floats) -> Floats:
    """Max-min-fair rates in bit/s; `crossed[first[f]:first[f + 1]]` are the directions of flow f (loops.fill)."""
    rates: Floats = loops(len(crossed)).fill(first, crossed, rate_bps, np.ones(len(first) - 1, np.bool_))
    return rates


def flows_per_direction(problem: RoutingProblem, choice: Sequence[int] | Ints) -> Ints:
    """How many flows cross every direction, cards included."""
    return np.bincount(problem.crossed(choice)[1], minlength=len(problem.rate_bps))


def bytes_per_direction(problem: RoutingProblem, choice: Sequence[int] | Ints) -> Floats:
    """Bytes of an iteration that cross every direction, cards included."""
    first, crossed = problem.crossed(choice)
    weights = np.repeat(problem.wire_bytes, np.diff(first))
    return np.bincount(crossed, weights, minlength=len(problem.rate_bps)).astype(np.float64)


def job_rates(problem: RoutingProblem, rates_bps: Floats) -> Floats:
    """Per job, the least rate of its flows."""
    found = np.full(problem.n_jobs, np.inf)
    np.minimum.at(found, problem.job, rates_bps)
    return found


def measured_by(problem: RoutingProblem, choice: Sequence[int] | Ints) -> Metric:
    """The metric of a choice of routes."""
    first, crossed = problem.crossed(choice)
    rates = max_min_rates(first, crossed, problem.rate_bps)
    jobs = job_rates(problem, rates)
    reduced = np.full(problem.n_jobs, np.nan)
    having = problem.collective_bytes > 0
    np.fmax.at(reduced, problem.job[having], 8 * problem.collective_bytes[having] / rates[having])
    most = int(np.bincount(crossed, minlength=problem.n_links)[: problem.n_links].max(initial=0))
    return Metric(rates, jobs, most, reduced, jain_index(jobs))


def jain_index(values: Floats) -> float:
    """(sum x)^2 / (n sum x^2) of what is finite; 1 of nothing. Jain, Chiu and Hawe, DEC-TR-301, 1984."""
    finite = values[np.isfinite(values)]
    if not len(finite) or not finite.any():
        return 1.0
    scaled = finite / finite.max()
    return float(scaled.sum() ** 2 / (len(scaled) * (scaled**2).sum()))
