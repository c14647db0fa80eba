"""Flow completion times that a policy is predicted to give: every message of the flows that it routes, draw by draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats
from testbed.plan import routes
from testbed.plan.plan import Case, Plan
from testbed.routing.apply import Demands
from testbed.trace.tables import NOTICE, Trace

_SHARES = (50.0, 95.0, 99.0, 100.0)


class Quantiles(NamedTuple):
    """Of flow completion times; seconds."""

    median_s: float
    p95_s: float
    p99_s: float
    max_s: float


class Completions(NamedTuple):
    """What one policy gives."""

    policy: str
    draws: tuple[Floats, ...]
    """Per draw of the policy (one, where it has no seed), seconds of every message over links, ascending."""

    @property
    def pooled(self) -> Floats:
        """Of all draws together, ascending."""
        return np.sort(np.concatenate(self.draws))


def completion_times(plan: Plan, case: Case, wanted: Demands, predicted: Trace) -> Floats:
    """Of an iteration of all jobs that is predicted on the routes of a case.

    Seconds from being handed to the network to the last byte's arrival, ascending: the messages that are under way
    over links between the ends of flows to be routed.
    """
    nodes, route_of = routes.nodes_of_ranks(plan), routes.routes_of_nodes(plan, case)
    routed = {(flow.source, flow.target) for flow in wanted.elephants if route_of[flow.source, flow.target]}
    messages = predicted.messages
    messages = messages[messages["kind"] != NOTICE]
    pairs = zip(messages["source_rank"].tolist(), messages["target_rank"].tolist(), strict=True)
    counted = np.array([(nodes[source], nodes[target]) in routed for source, target in pairs], bool)
    took: Floats = np.sort(np.fmax(0.0, messages["arrived_s"] - messages["sent_s"])[counted])
    return took


def quantiles(times_s: Floats) -> Quantiles:
    """Of times, at least one: by when so many have come. That of all seeds is at most that of the worst seed."""
    return Quantiles(*np.percentile(times_s, _SHARES, method="inverted_cdf").tolist())
