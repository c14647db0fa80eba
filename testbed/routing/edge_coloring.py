"""Edge colouring: in a two-layer Clos, the fewest flows on the most loaded direction that any choice can reach.

Leaves that send and leaves that receive are the two sides of a bipartite multigraph with an edge per flow. It can be
coloured with as many colours as the busiest leaf has flows on one side, D (König); colour k goes over spine k modulo N,
so no direction has more than ceil(D / N) flows, and some direction must have as many.
"""

from __future__ import annotations

import numpy as np

from testbed.errors import DoesNotFit
from testbed.model.network import Ints
from testbed.routing.loops import loops
from testbed.routing.routing_problem import RoutingProblem


def edge_coloring(problem: RoutingProblem) -> Ints:
    """The colour of a flow as the spine that it goes over. Raises DoesNotFit where the network is no two-layer Clos."""
    outward = np.flatnonzero(problem.source != problem.target)
    choice = np.zeros(problem.n_flows, np.int64)
    if not len(outward):
        return choice
    by_spine = _candidate_by_spine(problem)
    source, target = problem.source[outward], problem.target[outward]
    places = int(max(source.max(), target.max())) + 1
    degree = int(max(np.bincount(source).max(), np.bincount(target).max()))
    colours = loops(len(outward) * degree).colour(source, target, places, degree)
    choice[outward] = by_spine[problem.pair[outward], colours % by_spine.shape[1]]
    return choice


def _candidate_by_spine(problem: RoutingProblem) -> Ints:
    """Per pair of places and spine, the number of the candidate that goes over it; 0 inside a place."""
    spines: tuple[int, ...] | None = None
    found: list[list[int] | None] = []
    used: dict[tuple[int, int], int] = {}
    flows = zip(problem.pair.tolist(), problem.source.tolist(), problem.target.tolist(), strict=True)
    ends = {pair: (source, target) for pair, source, target in flows}
    for pair, candidates in enumerate(problem.candidates):
        if candidates == ((),):
            found.append(None)
            continue
        source, target = ends[pair]
        over: dict[int, int] = {}
        for number, route in enumerate(candidates):
            spine = int(problem.link_target[route[0]])
            known = len(route) == 2 and spine not in over
            known = known and used.setdefault((source, spine), route[0]) == route[0]
            if not known or used.setdefault((-1 - target, spine), route[1]) != route[1]:
                raise _no_clos("one with other routes")
            over[spine] = number
        spines = spines or tuple(sorted(over))
        if tuple(sorted(over)) != spines:
            raise _no_clos("one where not every leaf is joined to the same spines")
        found.append([over[spine] for spine in spines])
    width = len(spines or ())
    return np.array([[0] * width if colours is None else colours for colours in found], np.int64)


def _no_clos(what: str) -> DoesNotFit:
    expected = "a two-layer Clos, with one link from every leaf to every spine"
    return DoesNotFit.of("edge-coloring", "topology", what, expected)
