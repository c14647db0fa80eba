"""Where an iteration's time goes, by asking what it would take without each cause in turn.

The same order of actions is run on an ever more real network, so the parts add up to the makespan exactly:

    makespan = work + imbalance + fill + latency + wire + queueing + data parallel
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from testbed.model.simulate import makespan
from testbed.pipeline.ir import Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import PipelineRoutes, Problem

_HANDOVER = ("handover_s", "send_s", "send_s_per_byte")


class TimeByCause(NamedTuple):
    """Seconds of one iteration by cause; all but `work` are bubble."""

    work_s: float
    """Mean over the ranks of the time they compute."""
    imbalance_s: float
    """What the busiest rank computes beyond the mean."""
    fill_s: float
    """Pipeline fill and drain, and waiting that the order causes, on a network that costs nothing."""
    latency_s: float
    """Added by the links' one-way delays, and by handing messages over."""
    wire_s: float
    """Added by the time messages take on the wire, if none had to wait for another."""
    queueing_s: float
    """Added by messages that wait for each other, and for traffic beside the job."""
    data_parallel_s: float
    """Added by all-gathers and reduce-scatters, and by messages that wait for them."""

    @property
    def makespan_s(self) -> float:
        """The sum."""
        return self.work_s + self.bubble_s

    @property
    def bubble_s(self) -> float:
        """All but work."""
        return sum(self) - self.work_s


def time_by_cause(problem: Problem, schedule: Schedule) -> TimeByCause:
    """The causes of a schedule's time. Raises DeadlockError when it cannot finish."""
    busy = [sum(problem.duration(action) for action in row) for row in schedule.rows]
    mean = sum(busy) / len(busy)
    alone = problem.without_collectives()

    def unshared(*, delay: bool, wire: bool) -> float:
        """With a link of its own for every pair of ranks, on which messages wait for nothing."""
        links: list[LinkCost] = []
        private = [_private(problem, pipeline, links, delay=delay, wire=wire) for pipeline in problem.pipelines]
        handover = {name: getattr(problem, name) * delay for name in _HANDOVER}
        there = replace(alone, links=tuple(links), pipelines=tuple(private), streams=(), **handover)
        return makespan(there, schedule)

    free, delayed = unshared(delay=False, wire=False), unshared(delay=True, wire=False)
    unqueued, real = unshared(delay=True, wire=True), makespan(alone, schedule)
    return TimeByCause(
        work_s=mean,
        imbalance_s=max(busy) - mean,
        fill_s=free - max(busy),
        latency_s=delayed - free,
        wire_s=unqueued - delayed,
        queueing_s=real - unqueued,
        data_parallel_s=makespan(problem, schedule) - real if alone is not problem else 0.0,
    )


def _private(
    problem: Problem, pipeline: PipelineRoutes, links: list[LinkCost], *, delay: bool, wire: bool
) -> PipelineRoutes:
    """The routes of one replica over links of their own, which are appended to `links`."""
    size = problem.tensor * max(problem.message_bytes, default=0.0)  # tensor ranks' parts go one after the other
    routes = {}
    for pair, route in pipeline.routes.items():
        hops = [problem.links[index] for index in route]
        piece = pipeline.piece_bytes[pair[0]] if pipeline.piece_bytes else 0.0
        slowest = max((hop.seconds_per_byte for hop in hops), default=0.0)
        wire_s = size * slowest + min(piece, size) * (sum(hop.seconds_per_byte for hop in hops) - slowest)
        routes[pair] = (len(links),)
        links.append(LinkCost(sum(hop.delay_s for hop in hops) * delay + wire_s * wire, 0.0))
    return PipelineRoutes(routes, pipeline.piece_bytes, pipeline.ack_bytes)
