"""Policies that look at nothing but ends: the default route, a hash, the destination."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from testbed.model.network import Ints
from testbed.routing.routing_problem import RoutingProblem


def shortest(problem: RoutingProblem) -> Ints:
    """The default route: the topology's `routes`, else the least delay."""
    return np.zeros(problem.n_flows, np.int64)


def ecmp(problem: RoutingProblem, seed: Annotated[int, Field(ge=0, lt=2**31)] = 1) -> Ints:
    """By chance, one of the routes with the fewest links: as by a router's hash of addresses and ports, one per seed.

    Every flow is drawn by itself; the paper's code hashes pairs of hosts, which comes to the same where each pair has
    one flow.
    """
    lengths = np.diff(problem.routes.first_link)
    drawn = np.random.default_rng(seed).random(problem.n_flows)
    choice = np.zeros(problem.n_flows, np.int64)
    for pair in range(len(problem.candidates)):
        mine = lengths[problem.routes.first_route[pair] : problem.routes.first_route[pair + 1]]
        equal = np.flatnonzero(mine == mine.min())
        flows = problem.pair == pair
        choice[flows] = equal[(drawn[flows] * len(equal)).astype(np.int64)]
    return choice


def static(problem: RoutingProblem) -> Ints:
    """By destination: the receiving node's number, modulo the number of routes."""
    return problem.target_host % problem.choices
