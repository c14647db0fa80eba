"""A routing policy of one's own: the flows between two places take turns over the routes that are there."""

from collections import Counter
from typing import Annotated

from pydantic import Field

from testbed.routing.routing_problem import RoutingProblem


def in_turn(problem: RoutingProblem, first: Annotated[int, Field(ge=0)] = 0) -> list[int]:
    """Per flow, the number of one of `problem.routes_of(flow)`, where 0 is the default; turns begin at `first`."""
    turns: Counter[int] = Counter()
    choice = []
    for flow in range(problem.n_flows):
        pair = int(problem.pair[flow])
        choice.append((first + turns[pair]) % len(problem.routes_of(flow)))
        turns[pair] += 1
    return choice
