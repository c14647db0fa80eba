"""Topology + workload resolved: who is where, what each action costs, what each message costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from testbed.errors import BadInput
from testbed.model.simulate import simulate
from testbed.schedule.ir import Schedule
from testbed.schedule.placement import stage_to_rank
from testbed.schedule.problem import LinkCost, Problem
from testbed.schedule.registry import family, generate
from testbed.spec.topology import Topology
from testbed.spec.workload import Pacing, ScheduleChoice, Workload
from testbed.timeline import Timeline
from testbed.wire import wire_bytes


@dataclass(frozen=True)
class Plan:
    """One topology and one workload that fit together. Build it with `make_plan`."""

    topology: Topology
    workload: Workload
    nodes: tuple[str, ...]
    """The node of every rank, "datacenter/number"."""

    @property
    def n_ranks(self) -> int:
        """Pipeline degree P."""
        return len(self.nodes)

    def datacenter(self, rank: int) -> str:
        """The datacenter of a rank."""
        return self.nodes[rank].split("/")[0]

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Ranks r whose successor r + 1 is in another datacenter."""
        return tuple(r for r in range(self.n_ranks - 1) if self.datacenter(r) != self.datacenter(r + 1))

    def problem(self, choice: ScheduleChoice, pacing: Pacing | None = None) -> Problem:
        """The scheduling problem that `choice` has to solve on this plan.

        `pacing` stands in for the workload's where that is `none` (durations measured on the machine).
        Raises BadInput when there is neither.
        """
        workload = self.workload
        times = workload.pacing or pacing
        if times is None:
            raise BadInput.of(
                workload.name, "pacing", "none", "seconds for F, I and W: without them only a run can tell the time"
            )
        ranks = range(self.n_ranks)
        stages = stage_to_rank(family(choice.schedule).placement, self.n_ranks)
        chunks = len(stages) // self.n_ranks
        routes = {
            (source, target): tuple(path)
            for source in ranks
            for target in ranks
            if (path := self.topology.route(self.datacenter(source), self.datacenter(target)))
        }
        limits = [choice.memory] * self.n_ranks if choice.memory is not None else workload.memory_limits()
        return Problem(
            n_microbatches=workload.microbatches,
            stage_to_rank=stages,
            forward_s=tuple(times.of("F", rank) / chunks for rank in stages),
            input_s=tuple(times.of("I", rank) / chunks for rank in stages),
            weight_s=tuple(times.of("W", rank) / chunks for rank in stages),
            memory_limit=tuple(limits),
            activation=(1.0 / chunks,) * len(stages),
            message_bytes=(wire_bytes(workload.message_bytes()),) * (len(stages) - 1),
            links=tuple(LinkCost(d.delay_s, 8.0 / d.rate_bps) for d in self.topology.directions()),
            routes=routes,
        )

    def schedule(self, choice: ScheduleChoice, pacing: Pacing | None = None) -> Schedule:
        """The schedule that `choice` names, generated for this plan and validated. Raises BadInput."""
        return generate(choice.schedule, self.problem(choice, pacing), **choice.options())

    def predict(self, choice: ScheduleChoice, schedule: Schedule, pacing: Pacing | None = None) -> Timeline:
        """The timeline the event model predicts for one iteration."""
        return simulate(self.problem(choice, pacing), schedule, receives=self.workload.receives)

    def choose(self, names: list[str]) -> list[ScheduleChoice]:
        """The workload's choices for these names, with their options there; [] means all. Raises BadInput."""
        by_name = {choice.schedule: choice for choice in self.workload.schedules}
        for name in names:
            family(name)
        return [by_name.get(name, ScheduleChoice(schedule=name)) for name in dict.fromkeys(names or by_name)]


def make_plan(topology: Topology, workload: Workload) -> Plan:
    """The plan of a workload on a topology. Raises BadInput when they do not fit together."""
    nodes = _place(topology, workload)
    plan = Plan(topology, workload, tuple(nodes))
    for rank in range(plan.n_ranks - 1):
        topology.route(plan.datacenter(rank), plan.datacenter(rank + 1))
    for index, choice in enumerate(workload.schedules):
        try:
            family(choice.schedule)
        except BadInput as error:
            raise BadInput(f"{workload.name}: schedules.{index}: {error}") from error
    return plan


def _place(topology: Topology, workload: Workload) -> list[str]:
    ranks = workload.parallelism.pipeline
    if isinstance(workload.placement, list):
        known = topology.nodes()
        for node in workload.placement:
            if node not in known:
                raise BadInput.of(workload.name, "placement", node, f"a node of {topology.name} ({', '.join(known)})")
        return list(workload.placement)
    nodes: list[str] = []
    left = ranks
    for index, (name, datacenter) in enumerate(topology.datacenters.items()):
        share = math.ceil(left / (len(topology.datacenters) - index))
        taken = min(share, datacenter.nodes)
        nodes += [f"{name}/{n}" for n in range(taken)]
        left -= taken
    if left:
        room = sum(dc.nodes for dc in topology.datacenters.values())
        expected = f"no more stages than {topology.name} can place contiguously ({room} nodes in all)"
        raise BadInput.of(workload.name, "parallelism.pipeline", ranks, expected)
    return nodes
