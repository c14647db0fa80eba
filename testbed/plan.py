"""Topology + workload resolved: who is where, what each action costs, what each message costs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.model.simulate import simulate
from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import stage_to_rank
from testbed.pipeline.problem import LinkCost, Problem
from testbed.pipeline.validate import validate
from testbed.schedule.registry import FAMILIES, family, generate
from testbed.spec import load_topology, load_workload
from testbed.spec.topology import Topology
from testbed.spec.workload import Pacing, ScheduleChoice, Workload
from testbed.timeline import Timeline
from testbed.wire import wire_bytes

KEPT_WHEN_RECOMPUTING = 2 / 34
"""Share of a layer's activation memory that its input is: 2 s b h of 34 s b h bytes (reading/geopipe.md, sizes)."""

BEST = "best"
"""Stands for the fastest of all schedules that fit."""


class Candidate(NamedTuple):
    """A schedule that could be run."""

    choice: ScheduleChoice
    problem: Problem
    schedule: Schedule
    makespan_s: float


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
        placement = stage_to_rank(family(choice.schedule).placement, self.n_ranks)
        return self._problem(placement, choice.memory, pacing)

    def problem_for(self, schedule: Schedule, memory: float | None = None) -> Problem:
        """The scheduling problem of a schedule from elsewhere, with the stages where it has them. Raises BadInput."""
        return self._problem(schedule.stage_to_rank, memory, None)

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
            message_bytes=(wire_bytes(workload.message_bytes()),) * (len(stages) - 1),
            links=tuple(LinkCost(d.delay_s, 8.0 / d.rate_bps) for d in self.topology.directions()),
            routes=routes,
        )

    def schedule(self, choice: ScheduleChoice, pacing: Pacing | None = None) -> Schedule:
        """The schedule that `choice` names, generated for this plan and validated. Raises BadInput."""
        return generate(choice.schedule, self.problem(choice, pacing), **choice.options())

    def read_schedules(self, path: Path) -> dict[str, Schedule]:
        """Schedules that were generated for this plan before: a JSON object of Schedule.as_json by name.

        Raises BadInput when the file is none, InvalidSchedule when one does not fit this plan.
        """
        try:
            documents = json.loads(path.read_text(encoding="utf-8"))
            found = {name: Schedule.from_json(name, document) for name, document in documents.items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput.of(str(path), "schedules", str(error), "what `testbed` wrote") from error
        for schedule in found.values():
            validate(schedule, self.problem_for(schedule, memory=self._memory_of(schedule.name)))
        return found

    def _memory_of(self, name: str) -> float | None:
        return next((choice.memory for choice in self.workload.schedules if choice.schedule == name), None)

    def predict(self, choice: ScheduleChoice, schedule: Schedule, pacing: Pacing | None = None) -> Timeline:
        """The timeline the event model predicts for one iteration."""
        return simulate(self.problem(choice, pacing), schedule, receives=self.workload.receives)

    def choose(self, names: list[str]) -> list[ScheduleChoice]:
        """The workload's choices for these names, with their options there; [] means all. Raises BadInput.

        `best` becomes the schedule that the model says is fastest.
        """
        by_name = {choice.schedule: choice for choice in self.workload.schedules}
        chosen: dict[str, ScheduleChoice] = {}
        for name in names or by_name:
            if name == BEST:
                choice = self.ranked()[0].choice
            else:
                family(name)
                choice = by_name.get(name, ScheduleChoice(schedule=name))
            chosen.setdefault(choice.schedule, choice)
        return list(chosen.values())

    def candidate(self, choice: ScheduleChoice) -> Candidate:
        """The schedule of a choice and how long the model says it takes. Raises BadInput."""
        problem, schedule = self.problem(choice), self.schedule(choice)
        return Candidate(choice, problem, schedule, float(self.predict(choice, schedule).makespans()[0]))

    def ranked(self) -> list[Candidate]:
        """Every schedule that fits into memory and needs no solver, fastest first (CrossPipe's engine, section 6)."""
        by_name = {choice.schedule: choice for choice in self.workload.schedules}
        candidates = []
        for name, known in FAMILIES.items():
            if known.solver and name not in by_name:
                continue
            choice = by_name.get(name, ScheduleChoice(schedule=name)).model_copy(update={"memory": None})
            try:
                candidates.append(self.candidate(choice))
            except BadInput:
                continue  # needs more memory than there is, or more layers
        return sorted(candidates, key=lambda candidate: candidate.makespan_s)


def make_plan(topology: Topology, workload: Workload) -> Plan:
    """The plan of a workload on a topology. Raises BadInput when they do not fit together."""
    nodes = _place(topology, workload)
    plan = Plan(topology, workload, tuple(nodes))
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
