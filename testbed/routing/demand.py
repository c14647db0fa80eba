"""What has to be routed: per job and pair of ranks, how many bytes in an iteration, of what kinds, and when.

All of it comes from the plan: the messages of one predicted iteration of all jobs from their starts, on the case's
routes. Nothing is guessed or measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from testbed.plan import routes
from testbed.plan.plan import Case, Plan, TrafficKind
from testbed.planning.prediction import predict_together
from testbed.trace import tables

TRAFFIC_NAMES = {
    tables.ACTIVATION: TrafficKind.ACTIVATION,
    tables.GRADIENT: TrafficKind.GRADIENT,
    tables.ALL_GATHER: TrafficKind.DATA_PARALLEL,
    tables.REDUCE_SCATTER: TrafficKind.DATA_PARALLEL,
    tables.ALL_REDUCE: TrafficKind.DATA_PARALLEL,
    tables.TENSOR: TrafficKind.TENSOR_PARALLEL,
}
"""What a flow carries, by the code of the kind of its messages; notices of receives are left out."""


class Commodity(NamedTuple):
    """All that one rank sends another one in an iteration: it takes one route, since a lab routes by addresses."""

    job: int
    kinds: tuple[TrafficKind, ...]
    source: str
    """The node of the rank that sends."""
    target: str
    wire_bytes: float
    """In an iteration, with headers, without acknowledgements."""
    collective_bytes: float
    """Of these, for data parallelism: what an all-reduce (or its two halves) waits for."""
    when: tuple[tuple[float, float], ...]
    """Seconds from the common start: when messages of it are under way, the spans that overlap joined."""

    @property
    def busy_s(self) -> float:
        """How long something of it is under way."""
        return sum(end - begin for begin, end in self.when)


def commodities(plan: Plan, case: Case) -> tuple[Commodity, ...]:
    """What the jobs of a case send between nodes, by job, source and target rank.

    Raises BadInput for a job whose times only a run can tell: nobody knows when it sends.
    """
    return commodities_in(plan, predict_together(plan, case))


def commodities_in(plan: Plan, predicted: tables.Trace) -> tuple[Commodity, ...]:
    """The same of a trace of one iteration of all jobs."""
    messages = predicted.messages
    messages = messages[np.isin(messages["kind"], list(TRAFFIC_NAMES))]
    nodes = routes.nodes_of_ranks(plan)
    job_of = {rank: number for number, job in enumerate(plan.jobs) for rank in job.mesh.ranks}
    found = []
    order = np.lexsort((messages["target_rank"], messages["source_rank"]))
    pairs = np.stack((messages["source_rank"], messages["target_rank"]))[:, order]
    begins = np.flatnonzero(np.any(np.diff(pairs, axis=1, prepend=-1) != 0, axis=0))
    for rows in np.split(order, begins[1:]) if len(order) else []:
        mine = messages[rows]
        source, target = int(mine["source_rank"][0]), int(mine["target_rank"][0])
        found.append(_commodity(mine, job_of[source], nodes[source], nodes[target]))
    return tuple(found)


def _commodity(messages: tables.Table, job: int, source: str, target: str) -> Commodity:
    kinds = tuple(dict.fromkeys(TRAFFIC_NAMES[int(code)] for code in np.sort(messages["kind"])))
    sizes = messages["wire_bytes"]
    collective = np.isin(
        messages["kind"], [code for code, kind in TRAFFIC_NAMES.items() if kind is TrafficKind.DATA_PARALLEL]
    )
    over_s = np.fmax(messages["arrived_s"], messages["sent_s"])
    spans = joined(list(zip(messages["sent_s"].tolist(), over_s.tolist(), strict=True)))
    return Commodity(job, kinds, source, target, float(sizes.sum()), float(sizes[collective].sum()), spans)


def joined(spans: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Spans of time in order, those that overlap or touch as one."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return tuple(found)
