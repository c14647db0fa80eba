"""A policy that looks at when flows send: training traffic is periodic, and what never meets can share a direction.

Ours; nothing of it is in arXiv:2503.05324. When flows send is predicted on the default routes, so it is right as far as
other routes do not shift the jobs against each other.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from testbed.errors import BadInput
from testbed.model.network import Floats, Ints
from testbed.routing.routing_problem import RoutingProblem


def greedy_time(problem: RoutingProblem, slots: Annotated[int, Field(ge=1, le=4096)] = 128) -> Ints:
    """The flows with the most bytes first, each to where its bytes meet the fewest others at the same time.

    The iteration is cut into `slots`; a flow's bytes are spread evenly over the time that it has messages under way.
    What a route costs: over its directions and the slots, the flow's bytes times those that are there already, each at
    the direction's rate. Of equal routes the one with fewer bytes over the whole iteration, then the first. Raises
    BadInput where nobody knows when flows send.
    """
    if len(problem.when) != problem.n_flows:
        raise BadInput.of("greedy-time", "when", "nothing", "when each flow sends, as a predicted plan has it")
    sent = bytes_per_slot(problem, slots)
    load = np.zeros((len(problem.rate_bps), slots))
    choice = np.zeros(problem.n_flows, np.int64)
    for flow in np.argsort(-problem.wire_bytes, kind="stable").tolist():
        costs = []
        for number, route in enumerate(problem.routes_of(flow)):
            links = list(route)
            met = float(((load[links] @ sent[flow]) / problem.rate_bps[links] ** 2).sum())
            busiest = float((load[links].sum(axis=1) / problem.rate_bps[links]).max(initial=0.0))
            costs.append((met, busiest, number))
        choice[flow] = min(costs)[2]
        load[list(problem.routes_of(flow)[int(choice[flow])])] += sent[flow]
    return choice


def bytes_per_slot(problem: RoutingProblem, slots: int) -> Floats:
    """Per flow and slot of the iteration, bytes; all that a flow sends is somewhere."""
    horizon_s = max((spans[-1][1] for spans in problem.when if spans), default=0.0)
    edges = np.linspace(0.0, horizon_s or 1.0, slots + 1)
    found = np.zeros((problem.n_flows, slots))
    for flow, spans in enumerate(problem.when):
        for begin, end in spans:
            found[flow] += np.clip(np.minimum(end, edges[1:]) - np.maximum(begin, edges[:-1]), 0.0, None)
            if end <= begin:  # at once
                found[flow, min(int(np.searchsorted(edges, begin, "right")) - 1, slots - 1)] += edges[1] * 1e-9
        total = found[flow].sum()
        found[flow] *= problem.wire_bytes[flow] / total if total > 0 else 0.0
    return found
