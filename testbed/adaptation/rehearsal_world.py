"""The world of a rehearsal: every iteration of every candidate as it really is, whoever runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from testbed.adaptation.adaptable_job import AdaptableJob
from testbed.adaptation.candidate import JobCandidate, JobSetting, Prospect
from testbed.adaptation.looks import Look
from testbed.adaptation.rehearsal_changes import Change, Truth, real_problem, truth_at
from testbed.adaptation.sightings import PROBE_BYTES, Path, TrainTimes
from testbed.adaptation.swap_costs import SwapCosts, sending_s
from testbed.model.lower import Load
from testbed.model.simulate import makespan, simulate_jobs
from testbed.pipeline.ir import KINDS, Action
from testbed.pipeline.link import crossing_s
from testbed.pipeline.problem import Problem
from testbed.plan.network_state import planned
from testbed.trace.tables import Trace


class SlotVariation(NamedTuple):
    """Slots that are not always the same: lognormal, each action of each iteration drawn by itself."""

    variation: float = 0.0
    """Coefficient of variation; 0: as paced."""
    seed: int = 1

    def slots_s(self, problem: Problem, iteration: int) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """As `Load.slots_s` wants them; the same for every schedule."""
        if not self.variation:
            return None
        means = np.array(
            [[problem.duration(Action(stage, kind, 0)) for kind in KINDS] for stage in range(problem.n_stages)]
        )
        sigma = np.sqrt(np.log1p(self.variation**2))
        draw = np.random.default_rng([self.seed, iteration])
        replicas = len(problem.pipelines) // problem.tensor
        factors = draw.lognormal(-(sigma**2) / 2, sigma, (replicas, *means.shape, problem.n_microbatches))
        drawn_s: np.ndarray[Any, np.dtype[np.float64]] = means[None, :, :, None] * factors
        return drawn_s


AS_PACED = SlotVariation()


class LookedAt(NamedTuple):
    """What a look has shown."""

    trains: Mapping[Path, TrainTimes]
    waited_s: float
    """By the job."""


@dataclass
class World:
    """What really happens: every iteration of every candidate, whoever runs it."""

    subject: AdaptableJob
    changes: Sequence[Change]
    drawn: SlotVariation
    _states: dict[tuple[bool, ...], int] = field(default_factory=dict)
    _truths: list[Truth] = field(default_factory=list)
    _problems: dict[tuple[int, JobSetting], Problem] = field(default_factory=dict)
    _traces: dict[tuple[int, JobCandidate, int], Trace] = field(default_factory=dict)
    _times_s: dict[tuple[int, JobCandidate], float] = field(default_factory=dict)
    _sends_s: dict[tuple[int, JobSetting, JobSetting], float] = field(default_factory=dict)

    def state(self, iteration: int) -> int:
        """A number for how things are then; the same one where they are the same."""
        active = tuple(each.applies(iteration) for each in self.changes)
        if active not in self._states:
            truth = truth_at(self.subject.plan, self.changes, iteration)
            if truth not in self._truths:
                self._truths.append(truth)
            self._states[active] = self._truths.index(truth)
        return self._states[active]

    def problem(self, state: int, setting: JobSetting) -> Problem:
        """What iterations cost then."""
        if (state, setting) not in self._problems:
            self._problems[state, setting] = real_problem(self.subject, self._truths[state], setting)
        return self._problems[state, setting]

    def trace(self, runs: Prospect, iteration: int) -> Trace:
        """An iteration as it really is, with the slots that were drawn for it."""
        state = self.state(iteration)
        problem = self.problem(state, runs.setting)
        slots_s = self.drawn.slots_s(problem, iteration)
        key = state, runs.candidate, -1 if slots_s is None else iteration
        if key not in self._traces:
            receives = self.subject.plan.jobs[0].workload.receives
            self._traces[key] = simulate_jobs([Load(problem, runs.schedule, 0.0, receives, slots_s)])
        return self._traces[key]

    def iteration_s(self, runs: Prospect, iteration: int) -> float:
        """What it takes."""
        return float(self.trace(runs, iteration).makespans()[0])

    def probes_s(self, iteration: int, setting: JobSetting) -> dict[Path, float]:
        """What one packet takes between datacenters while nothing else is on its way."""
        problem = self.problem(self.state(iteration), setting)
        routes = {pair: ends.route(problem) for pair, ends in self.subject.pairs(problem).items()}
        return {
            path: crossing_s([problem.links[index] for index in routes[path.pair]], PROBE_BYTES) + problem.handover_s
            for path in setting.paths
        }

    def looked(self, look: Look, iteration: int, runs: Prospect) -> LookedAt:
        """What a look shows beside an iteration, or behind it: trains of which half comes in time."""
        state = self.state(iteration)
        problem, truth = self.problem(state, runs.setting), self._truths[state]
        directions, down = planned(truth.plan.network).links, {event.name for event in truth.plan.events}
        within_s = self.iteration_s(runs, iteration) if look.beside else look.waits_s
        found = dict[Path, TrainTimes]()
        for path in look.paths:
            links = [problem.links[index] for index in path.route]
            first_s, last_s = (crossing_s(links, size) + problem.handover_s for size in (PROBE_BYTES, look.wire_bytes))
            half_s = (first_s + last_s) / 2
            if half_s <= within_s and down.isdisjoint(directions[index].link for index in path.route):
                found[path] = TrainTimes(first_s, last_s, look.wire_bytes)
        if look.beside:
            return LookedAt(found, 0.0)
        all_s = max((train.last_s for train in found.values()), default=look.waits_s)
        return LookedAt(found, min(all_s, look.waits_s) if len(found) == len(look.paths) else look.waits_s)

    def swap_costs(self, iteration: int, swap_s: float) -> SwapCosts:
        """What swaps before an iteration really cost: so much, and what they send over links as they are in the one
        before it.
        """
        state = self.state(max(0, iteration - 1))

        def sends_s(one: JobSetting, other: JobSetting) -> float:
            key = state, one, other
            if key not in self._sends_s:
                problems = partial(self.problem, state)
                self._sends_s[key] = sending_s(self.subject, problems, one, other)
            return self._sends_s[key]

        return SwapCosts(swap_s, sends_s)

    def paid_s(self, iteration: int, before: Prospect, runs: Prospect, swap_s: float) -> float:
        """What it costs to go on with a candidate from this iteration on."""
        if runs.candidate == before.candidate:
            return 0.0
        return self.swap_costs(iteration, swap_s).between(before.setting, runs.setting)

    def typical_s(self, runs: Prospect, state: int) -> float:
        """What an iteration takes in a state with the slots as they are in the mean."""
        key = state, runs.candidate
        if key not in self._times_s:
            receives = self.subject.plan.jobs[0].workload.receives
            self._times_s[key] = makespan(self.problem(state, runs.setting), runs.schedule, receives=receives)
        return self._times_s[key]
