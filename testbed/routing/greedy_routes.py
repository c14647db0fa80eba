"""Greedy policies: flows one by one, each on the route that is then loaded least.

`greedy` is the algorithm of the simulator that very likely belongs to arXiv:2503.05324 (ofircohen205/dcn-simulators,
"mcvlc", marked there as "Ours"); the paper's own text of it was not available to us. Every flow counts 1. With equal
rates and the same living spines for all it puts at most twice as many flows on a direction as there must be, in any
order. `greedy_bytes` and `greedy_jobs` are ours.
"""

from __future__ import annotations

import numpy as np

from testbed.model.network import Floats, Ints
from testbed.routing.loops import loops
from testbed.routing.routing_problem import RoutingProblem


def greedy(problem: RoutingProblem) -> Ints:
    """The places with the most flows first; each flow to where the more loaded of its directions has the fewest flows.

    Directions of different rates count alike, as in the paper's network, where all are equal.
    """
    ones = np.ones(problem.n_flows)
    return _placed(problem, _by_lists(problem), ones, np.ones(len(problem.rate_bps)), jobs=1)


def greedy_bytes(problem: RoutingProblem) -> Ints:
    """The flows with the most bytes first, each to where its most loaded direction then needs the least time."""
    return in_order(problem, np.argsort(-problem.wire_bytes, kind="stable"))


def in_order(problem: RoutingProblem, order: Ints) -> Ints:
    """The flows in this order, each to where its most loaded direction then needs the least time."""
    return _placed(problem, order, problem.wire_bytes, 8 / problem.rate_bps, jobs=1)


def greedy_jobs(problem: RoutingProblem) -> Ints:
    """As greedy by flows per rate, job by job, the one with the fewest flows first; of equal routes the one that other
    jobs use least, so that a job that must share shares with itself.
    """
    counts = np.bincount(problem.job, minlength=problem.n_jobs)
    listed = _by_lists(problem)
    order = listed[np.lexsort((np.arange(len(listed)), problem.job[listed], counts[problem.job[listed]]))]
    ones = np.ones(problem.n_flows)
    scale = problem.rate_bps.max() / problem.rate_bps
    return _placed(problem, order, ones, scale, jobs=problem.n_jobs)


def _placed(problem: RoutingProblem, order: Ints, weight: Floats, scale: Floats, *, jobs: int) -> Ints:
    place = loops(int(problem.choices.sum())).place
    load = np.zeros((max(jobs, 1), len(problem.rate_bps)))
    choice: Ints = place(order, problem.pair, problem.routes, weight, scale, problem.job, load)
    return choice


def _by_lists(problem: RoutingProblem) -> Ints:
    """The order of greedy: of every place a list of the flows that leave it and one of those that enter it, the longest
    list first; of equally long ones those that leave first, then as places are listed.
    """
    places = int(max(problem.source.max(initial=0), problem.target.max(initial=0))) + 1
    outward = problem.source != problem.target
    leaving = np.bincount(problem.source[outward], minlength=places)
    entering = np.bincount(problem.target[outward], minlength=places)
    turn = np.empty(2 * places, np.int64)
    turn[np.argsort(-np.concatenate((leaving, entering)), kind="stable")] = np.arange(2 * places)
    return np.argsort(np.minimum(turn[problem.source], turn[places + problem.target]), kind="stable")
