"""Topology + workload resolved: who is where, what each action costs, what each message costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.model.simulate import simulate
from testbed.pipeline.collectives import Collective, Step, ring_all_gather, ring_reduce_scatter
from testbed.pipeline.ir import Row, Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.placement import stage_to_rank
from testbed.pipeline.problem import Paths, Problem
from testbed.pipeline.validate import validate
from testbed.place import place
from testbed.schedule.proof import Proof, Watch
from testbed.schedule.registry import FAMILIES, Generated, family, generate_proven
from testbed.schedule.schedule_file import Kept
from testbed.spec import load_topology, load_workload
from testbed.spec.topology import Topology
from testbed.spec.workload import Pacing, ScheduleChoice, Workload
from testbed.trace.tables import UNNOTICED_WAIT_S, Trace
from testbed.wire import GLOO_BYTES, NOTICE_BYTES, ack_bytes, gso_bytes, super_packet_bytes, wire_bytes

KEPT_WHEN_RECOMPUTING = 2 / 34
"""Share of a layer's activation memory that its input is: 2 s b h of 34 s b h bytes (reading/geopipe.md, sizes)."""

HANDOVER_S = 10e-6
"""What is left of a message's time on an ideal machine (virtual clock): waking gloo's thread and the rank
(docs/figures.md). It decides who comes first where a plain model would hand two messages to a link at one instant.
A real machine takes more, which is part of the error reported there."""

BEST = "best"
"""Stands for the fastest of all schedules that fit."""


class Candidate(NamedTuple):
    """A schedule that could be run."""

    choice: ScheduleChoice
    problem: Problem
    schedule: Schedule
    makespan_s: float
    proof: Proof | None
    """What is proven of it, where a solver made it."""


@dataclass(frozen=True)
class Plan:
    """One topology and one workload that fit together. Build it with `make_plan`."""

    topology: Topology
    workload: Workload
    nodes: tuple[str, ...]
    """The node of every rank, "datacenter/number"."""
    replicas: tuple[tuple[str, ...], ...] = ()
    """The nodes of the further pipelines of a data-parallel job, rank by rank."""

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

    def require_trainable(self) -> None:
        """Raises BadInput for a plan that can be predicted and scheduled, but not trained yet."""
        if self.replicas:
            expected = "1: data parallelism can be predicted and compared, but not trained yet"
            raise BadInput.of(self.workload.name, "parallelism.data", self.workload.parallelism.data, expected)

    def problem(self, choice: ScheduleChoice, pacing: Pacing | None = None) -> Problem:
        """The scheduling problem that `choice` has to solve on this plan.

        `pacing` stands in for the workload's where that is `none` (durations measured on the machine).
        Raises BadInput when there is neither.
        """
        placement = stage_to_rank(family(choice.schedule).placement, self.n_ranks)
        return self._problem(placement, choice.memory, pacing)

    def problem_for(self, schedule: Schedule) -> Problem:
        """The scheduling problem of a schedule from elsewhere, with the stages where it has them. Raises BadInput."""
        return self._problem(schedule.stage_to_rank, None, None)

    def _problem(self, stages: tuple[int, ...], memory: float | None, pacing: Pacing | None) -> Problem:
        workload = self.workload
        times = workload.pacing or pacing
        if times is None:
            raise BadInput.of(
                workload.name, "pacing", "none", "seconds for F, I and W: without them only a run can tell the time"
            )
        chunks = len(stages) // self.n_ranks
        if workload.model.layers < len(stages):
            expected = f"at least one layer for each of {len(stages)} stages ({chunks} per rank)"
            raise BadInput.of(workload.name, "model.layers", workload.model.layers, expected)
        again, kept = (1.0, KEPT_WHEN_RECOMPUTING) if workload.recompute else (0.0, 1.0)
        first, *others = (self._paths(nodes) for nodes in (self.nodes, *self.replicas))
        payload, degree = workload.message_bytes(), 1 + len(self.replicas)
        rings = (ring_all_gather(degree), ring_reduce_scatter(degree)) if others else ((), ())
        gather, reduce = (
            tuple(self._collective(rank, steps, workload.parameter_bytes() / chunks) for rank in stages if steps)
            for steps in rings
        )
        limits = [memory] * self.n_ranks if memory is not None else workload.memory_limits()
        return Problem(
            n_microbatches=workload.microbatches,
            stage_to_rank=stages,
            forward_s=tuple(times.of("F", rank) / chunks for rank in stages),
            input_s=tuple((times.of("I", rank) + again * times.of("F", rank)) / chunks for rank in stages),
            weight_s=tuple(times.of("W", rank) / chunks for rank in stages),
            memory_limit=tuple(limits),
            activation=(kept / chunks,) * len(stages),
            input_memory=((1.0 - kept) / chunks,) * len(stages),
            message_bytes=(float(wire_bytes(payload) + GLOO_BYTES),) * (len(stages) - 1),
            payload_bytes=(float(payload),) * (len(stages) - 1),
            links=tuple(LinkCost(d.delay_s, 8.0 / d.rate_bps) for d in self.topology.directions()),
            routes=first.routes,
            piece_bytes=first.piece_bytes,
            ack_bytes=first.ack_bytes,
            others=tuple(others),
            handover_s=HANDOVER_S,
            unnoticed_wait_s=UNNOTICED_WAIT_S if workload.pacing else 0.0,
            notice_bytes=NOTICE_BYTES,
            all_gather=gather,
            reduce_scatter=reduce,
        )

    def _paths(self, nodes: Sequence[str]) -> Paths:
        """How the messages of the replica on these nodes travel."""
        pairs = ((a, b) for a in range(len(nodes)) for b in range(len(nodes)))
        routes = {(a, b): route for a, b in pairs if (route := self.hops(nodes[a], nodes[b]))}
        super_packets = [self._gso_bytes[node.split("/")[0]] for node in nodes]
        pieces, acks = (tuple(map(size, super_packets)) for size in (super_packet_bytes, ack_bytes))
        return Paths(routes, pieces, acks)

    @cached_property
    def _gso_bytes(self) -> dict[str, int]:
        """Per datacenter, the longest super-packet that its nodes may send."""
        return {name: gso_bytes(self.topology.ways_from(name)) for name in self.topology.datacenters}

    def largest_burst_bytes(self, choices: Sequence[ScheduleChoice]) -> int:
        """The most that a rank may have on its way to another under any of the schedules.

        Each message out belongs to a microbatch in flight on the rank that sends it (F) or takes it (G).
        """
        most = 1
        for choice in choices:
            stages = stage_to_rank(family(choice.schedule).placement, self.n_ranks)
            pairs = Counter(pair for a, b in pairwise(stages) if a != b for pair in ((a, b), (b, a)))
            sent = max(pairs.values(), default=0) * self.workload.microbatches
            limit = choice.memory or max(self.workload.memory_limits())
            most = max(most, min(sent, 2 * math.ceil(limit) * len(stages) // self.n_ranks))
        return most * self.workload.message_bytes()

    def hops(self, source: str, target: str) -> tuple[int, ...]:
        """The directed links between two nodes."""
        return tuple(self.topology.route(source.split("/")[0], target.split("/")[0]))

    def _collective(self, rank: int, steps: tuple[Step, ...], stage_bytes: float) -> Collective:
        """A ring over the replicas of a stage on `rank`, in the order given; each message is a share of 1/N."""
        members = [self.nodes[rank], *(pipeline[rank] for pipeline in self.replicas)]
        share = stage_bytes / len(members)
        pairs = ((a, b) for a in range(len(members)) for b in range(len(members)))
        routes = {(a, b): route for a, b in pairs if (route := self.hops(members[a], members[b]))}
        return Collective(steps, wire_bytes(share) + GLOO_BYTES, routes, share)

    def schedule(self, choice: ScheduleChoice, pacing: Pacing | None = None) -> Schedule:
        """The schedule that `choice` names, generated for this plan and validated. Raises BadInput."""
        return self.generate(choice, pacing).schedule

    def generate(self, choice: ScheduleChoice, pacing: Pacing | None = None, watch: Watch | None = None) -> Generated:
        """As `schedule`, with what a solver proved of it; `watch` is told how far the solver has come."""
        return generate_proven(choice.schedule, self.problem(choice, pacing), watch=watch, **choice.options())

    def given(self, choice: ScheduleChoice, rows: tuple[Row, ...]) -> Schedule:
        """The schedule of that name with these rows, validated against this plan. Raises BadInput."""
        problem = self.problem(choice)
        schedule = Schedule(choice.schedule, rows, problem.stage_to_rank, problem.n_microbatches)
        validate(schedule, problem)
        return schedule

    def make(
        self, choices: Sequence[ScheduleChoice], kept: Mapping[str, Kept] | None = None, watch: Watch | None = None
    ) -> dict[str, Generated]:
        """The schedules of the choices by name: what is `kept` of them, validated, the others generated.

        Nothing without pacing: then only a run can tell what actions take. Raises BadInput.
        """
        if not self.workload.pacing and not kept:
            return {}
        made = {}
        for choice in choices:
            if kept and choice.schedule in kept:
                rows, proof = kept[choice.schedule]
                made[choice.schedule] = Generated(self.given(choice, rows), proof)
            else:
                made[choice.schedule] = self.generate(choice, watch=watch)
        return made

    def predict(self, choice: ScheduleChoice, schedule: Schedule, pacing: Pacing | None = None) -> Trace:
        """The trace the event model predicts for one iteration."""
        return simulate(self.problem(choice, pacing), schedule, receives=self.workload.receives)

    def choose(self, names: list[str], watch: Watch | None = None) -> list[ScheduleChoice]:
        """The workload's choices for these names, with their options there; [] means all. Raises BadInput.

        `best` becomes the schedule that the model says is fastest.
        """
        by_name = {choice.schedule: choice for choice in self.workload.schedules}
        chosen: dict[str, ScheduleChoice] = {}
        for name in names or by_name:
            if name == BEST:
                choice = self.ranked(watch)[0].choice
            else:
                family(name)
                choice = by_name.get(name, ScheduleChoice(schedule=name))
            chosen.setdefault(choice.schedule, choice)
        return list(chosen.values())

    def candidate(self, choice: ScheduleChoice, watch: Watch | None = None) -> Candidate:
        """The schedule of a choice and how long the model says it takes. Raises BadInput."""
        problem, (schedule, proof) = self.problem(choice), self.generate(choice, watch=watch)
        makespan_s = float(self.predict(choice, schedule).makespans()[0])
        return Candidate(choice, problem, schedule, makespan_s, proof)

    def ranked(self, watch: Watch | None = None) -> list[Candidate]:
        """Every schedule that fits into memory and needs no solver, fastest first (CrossPipe's engine, section 6)."""
        by_name = {choice.schedule: choice for choice in self.workload.schedules}
        candidates = []
        for name, known in FAMILIES.items():
            if known.solver and name not in by_name:
                continue
            choice = by_name.get(name, ScheduleChoice(schedule=name)).model_copy(update={"memory": None})
            try:
                candidates.append(self.candidate(choice, watch))
            except BadInput:
                continue  # needs more memory than there is, or more layers
        return sorted(candidates, key=lambda candidate: candidate.makespan_s)


def make_plan(topology: Topology, workload: Workload) -> Plan:
    """The plan of a workload on a topology. Raises BadInput when they do not fit together."""
    pipelines = place(topology, workload)
    plan = Plan(topology, workload, pipelines[0], tuple(pipelines[1:]))
    for rank in range(plan.n_ranks - 1):
        topology.route(plan.datacenter(rank), plan.datacenter(rank + 1))
    for index, choice in enumerate(workload.schedules):
        try:
            if choice.schedule != BEST:
                family(choice.schedule)
        except BadInput as error:
            raise BadInput(f"{workload.name}: schedules.{index}: {error}") from error
    return plan


def load_plan(topology: Path, workload: Path, settings: Sequence[str] = (), **direct: object) -> Plan:
    """The plan of two files with settings (KEY=VALUE) laid over them; `topology.` in front of a key means the topology.

    `direct` are further fields of the workload, where not None. Raises BadInput.
    """
    overrides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise BadInput.of("--set", "setting", setting, "KEY=VALUE")
        in_topology = key.startswith("topology.")
        overrides[in_topology][key.removeprefix("topology.")] = value
    overrides[0].update({key: str(value) for key, value in direct.items() if value is not None})
    return make_plan(load_topology(topology, overrides[1]), load_workload(workload, overrides[0]))
