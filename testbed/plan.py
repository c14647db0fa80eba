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
from testbed.pipeline.collective import Collective
from testbed.pipeline.ir import Row, Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import validate
from testbed.place import place
from testbed.plugins import Unusable
from testbed.schedule.proof import Proof, Watch
from testbed.schedule.registry import FAMILIES, Generated, check_choice, family_of, generate_choice
from testbed.schedule.schedule_file import Kept
from testbed.spec import load_topology, load_workload
from testbed.spec.choice import ScheduleChoice, choice_named
from testbed.spec.topology import Topology
from testbed.spec.workload import Pacing, Workload
from testbed.timeline import UNNOTICED_WAIT_S, Timeline
from testbed.wire import GLOO_BYTES, ack_bytes, gso_bytes, super_packet_bytes, wire_bytes

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
        return self._problem(self.stages(choice), choice.memory, pacing)

    def stages(self, choice: ScheduleChoice) -> tuple[int, ...]:
        """The rank of every stage under a choice. Raises BadInput for a schedule made for other ranks."""
        try:
            return family_of(choice).stage_to_rank(self.n_ranks)
        except Unusable as error:
            raise error.at(self.workload.name, choice.label) from error

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
        ranks = range(self.n_ranks)
        chunks = len(stages) // self.n_ranks
        if workload.model.layers < len(stages):
            expected = f"at least one layer for each of {len(stages)} stages ({chunks} per rank)"
            raise BadInput.of(workload.name, "model.layers", workload.model.layers, expected)
        again, kept = (1.0, KEPT_WHEN_RECOMPUTING) if workload.recompute else (0.0, 1.0)
        routes = {
            (source, target): tuple(path)
            for source in ranks
            for target in ranks
            if (path := self.topology.route(self.datacenter(source), self.datacenter(target)))
        }
        rings = tuple(self._ring(rank, workload.parameter_bytes() / chunks) for rank in stages) if self.replicas else ()
        super_packets = [self._gso_bytes[self.datacenter(rank)] for rank in ranks]
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
            message_bytes=tuple(
                self._sharing(a, b) * (wire_bytes(workload.message_bytes()) + GLOO_BYTES) for a, b in pairwise(stages)
            ),
            links=tuple(LinkCost(d.delay_s, 8.0 / d.rate_bps) for d in self.topology.directions()),
            routes=routes,
            piece_bytes=tuple(super_packet_bytes(gso) for gso in super_packets),
            ack_bytes=tuple(ack_bytes(gso) for gso in super_packets),
            handover_s=HANDOVER_S,
            unnoticed_wait_s=UNNOTICED_WAIT_S if workload.pacing else 0.0,
            all_gather=rings,
            reduce_scatter=rings,
        )

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
            stages = self.stages(choice)
            pairs = Counter(pair for a, b in pairwise(stages) if a != b for pair in ((a, b), (b, a)))
            sent = max(pairs.values(), default=0) * self.workload.microbatches
            limit = choice.memory or max(self.workload.memory_limits())
            most = max(most, min(sent, 2 * math.ceil(limit) * len(stages) // self.n_ranks))
        return most * self.workload.message_bytes()

    def hops(self, source: str, target: str) -> tuple[int, ...]:
        """The directed links between two nodes."""
        return tuple(self.topology.route(source.split("/")[0], target.split("/")[0]))

    def _ring(self, rank: int, stage_bytes: float) -> Collective:
        """The ring over a rank's replicas, in the order given: N - 1 rounds, in each a share of 1/N over every edge."""
        members = [self.nodes[rank], *(pipeline[rank] for pipeline in self.replicas)]
        edges = (self.hops(a, b) for a, b in pairwise([*members, members[0]]))
        degree = len(members)
        size = wire_bytes(stage_bytes * (degree - 1) / degree)
        return Collective(tuple(edge for edge in edges if edge), size, degree - 1)

    def _sharing(self, source: int, target: int) -> int:
        """How many pipelines, which run in step, send the same message over the same link at the same time."""
        ways = [(self.nodes[source], self.nodes[target])]
        ways += [(pipeline[source], pipeline[target]) for pipeline in self.replicas]
        mine = set(self.hops(*ways[0]))
        return 1 + sum(bool(mine & set(self.hops(*way))) for way in ways[1:])

    def schedule(self, choice: ScheduleChoice, pacing: Pacing | None = None) -> Schedule:
        """The schedule that `choice` names, generated for this plan and validated. Raises BadInput."""
        return self.generate(choice, pacing).schedule

    def generate(self, choice: ScheduleChoice, pacing: Pacing | None = None, watch: Watch | None = None) -> Generated:
        """As `schedule`, with what a solver proved of it; `watch` is told how far the solver has come."""
        return generate_choice(choice, self.problem(choice, pacing), watch)

    def given(self, choice: ScheduleChoice, rows: tuple[Row, ...]) -> Schedule:
        """The schedule of that label with these rows, validated against this plan. Raises BadInput."""
        problem = self.problem(choice)
        schedule = Schedule(choice.label, rows, problem.stage_to_rank, problem.n_microbatches)
        validate(schedule, problem)
        return schedule

    def make(
        self, choices: Sequence[ScheduleChoice], kept: Mapping[str, Kept] | None = None, watch: Watch | None = None
    ) -> dict[str, Generated]:
        """The schedules of the choices by label: what is `kept` of them, validated, the others generated.

        Nothing without pacing: then only a run can tell what actions take. Raises BadInput.
        """
        if not self.workload.pacing and not kept:
            return {}
        made = {}
        for choice in choices:
            if kept and choice.label in kept:
                rows, proof = kept[choice.label]
                made[choice.label] = Generated(self.given(choice, rows), proof)
            else:
                made[choice.label] = self.generate(choice, watch=watch)
        return made

    def predict(self, choice: ScheduleChoice, schedule: Schedule, pacing: Pacing | None = None) -> Timeline:
        """The timeline the event model predicts for one iteration."""
        return simulate(self.problem(choice, pacing), schedule, receives=self.workload.receives)

    def choose(self, names: list[str], watch: Watch | None = None) -> list[ScheduleChoice]:
        """The workload's choices of these names, each a label, a family or a file; [] means all. Raises BadInput.

        A family that the workload does not list is taken without options. `best` becomes the schedule that the model
        says is fastest.
        """
        chosen: dict[str, ScheduleChoice] = {}
        for choice in self.workload.schedules if not names else [one for name in names for one in self._named(name)]:
            found = choice
            if choice.schedule == BEST:
                found = self.ranked(watch)[0].choice
                found = found.model_copy(update={"label": choice.label}) if choice.labelled else found
            chosen.setdefault(found.label, found)
        return list(chosen.values())

    def _named(self, name: str) -> list[ScheduleChoice]:
        """Every choice of the workload with this label or, if there is none, of this family; else a new one."""
        listed = self.workload.schedules
        found = [one for one in listed if one.label == name] or [one for one in listed if one.schedule == name]
        if found or name == BEST:
            return found or [ScheduleChoice(schedule=BEST)]
        try:
            choice = choice_named(name, Path())
            family_of(choice)
        except Unusable as error:
            raise error.at("schedule", "name") from error
        if any(one.label == choice.label for one in listed):
            expected = f"a file called otherwise: the workload has another schedule {choice.label}"
            raise BadInput.of("schedule", "name", name, expected)
        return [choice]

    def every_choice(self) -> list[ScheduleChoice]:
        """The workload's choices, and all other families that need no solver."""
        listed = [choice for choice in self.workload.schedules if choice.schedule != BEST]
        known, labels = {choice.schedule for choice in listed}, {choice.label for choice in listed}
        others = (name for name in FAMILIES if name not in known | labels and not FAMILIES[name].solver)
        return [*listed, *(ScheduleChoice(schedule=name) for name in others)]

    def candidate(self, choice: ScheduleChoice, watch: Watch | None = None) -> Candidate:
        """The schedule of a choice and how long the model says it takes. Raises BadInput."""
        problem, (schedule, proof) = self.problem(choice), self.generate(choice, watch=watch)
        makespan_s = float(self.predict(choice, schedule).makespans()[0])
        return Candidate(choice, problem, schedule, makespan_s, proof)

    def ranked(self, watch: Watch | None = None) -> list[Candidate]:
        """Every schedule that fits into memory and needs no solver, fastest first (CrossPipe's engine, section 6)."""
        candidates = []
        for choice in self.every_choice():
            try:
                candidates.append(self.candidate(choice.model_copy(update={"memory": None}), watch))
            except BadInput:
                continue  # needs more memory than there is, or more layers
        return sorted(candidates, key=lambda candidate: candidate.makespan_s)


def make_plan(topology: Topology, workload: Workload, source: str | None = None) -> Plan:
    """The plan of a workload on a topology. Raises BadInput when they do not fit together.

    `source` is the workload's file, for errors in what only its schedules know: their options.
    """
    pipelines = place(topology, workload)
    plan = Plan(topology, workload, pipelines[0], tuple(pipelines[1:]))
    for rank in range(plan.n_ranks - 1):
        topology.route(plan.datacenter(rank), plan.datacenter(rank + 1))
    _check_replicas(plan)
    for index, choice in enumerate(workload.schedules):
        if choice.schedule != BEST:
            check_choice(choice, source or workload.name, f"schedules.{index}")
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
    return make_plan(load_topology(topology, overrides[1]), load_workload(workload, overrides[0]), str(workload))


def _check_replicas(plan: Plan) -> None:
    """The model follows the first pipeline for all: the others must see the same delays between their ranks."""
    links = plan.topology.directions()

    def delay_s(source: str, target: str) -> float:
        return sum(links[index].delay_s for index in plan.hops(source, target))

    for number, nodes in enumerate(plan.replicas):
        for rank in range(plan.n_ranks - 1):
            mine = delay_s(plan.nodes[rank], plan.nodes[rank + 1])
            other = delay_s(nodes[rank], nodes[rank + 1])
            if mine != other:
                where, expected = f"data_parallel.replicas.{number}", f"{mine:g} s as in the first pipeline"
                raise BadInput.of(plan.workload.name, where, f"{other:g} s from rank {rank} to {rank + 1}", expected)
