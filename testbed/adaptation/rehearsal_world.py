"""The world of a rehearsal: every iteration of every candidate as it really is, whoever runs it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from testbed.adaptation.adaptable_job import AdaptableJob
from testbed.adaptation.candidate import JobCandidate, JobSetting, Prospect
from testbed.adaptation.looks import Look
from testbed.adaptation.rehearsal_changes import Change, Truth, changes_of_links, real_problem, truth_at
from testbed.adaptation.sightings import PROBE_BYTES, Path, Sighting, TrainTimes, sighting
from testbed.adaptation.swap_costs import SwapCosts, sending_s
from testbed.errors import DoesNotFit
from testbed.model.lower import Load
from testbed.model.simulate import makespan, simulate_jobs
from testbed.pipeline.ir import KINDS, Action
from testbed.pipeline.link import LinkCost, crossing_s
from testbed.pipeline.problem import Problem
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.schedule.registry import generate_choice
from testbed.trace.tables import Trace


class SlotVariation(NamedTuple):
    """Slots that are not always the same: lognormal, each action of each iteration drawn by itself."""

    variation: float = 0.0
    """Coefficient of variation; 0: as paced."""
    seed: int = 1

    def slots_s(self, problem: Problem, iteration: int, job: int = 0) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """As `Load.slots_s` wants them of a job, by its number; the same for every schedule."""
        if not self.variation:
            return None
        means = np.array(
            [[problem.duration(Action(stage, kind, 0)) for kind in KINDS] for stage in range(problem.n_stages)]
        )
        sigma = np.sqrt(np.log1p(self.variation**2))
        draw = np.random.default_rng([self.seed, iteration, *([job] if job else [])])
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


class World(ABC):
    """What really happens: every iteration of every candidate, whoever runs it."""

    def __init__(self, plan: Plan, changes: Sequence[Change], drawn: SlotVariation) -> None:
        """As the plan has it, but for what changes and for slots that are drawn."""
        self._plan, self._changes, self.drawn = plan, changes, drawn
        self._of_links = changes_of_links(plan, changes)
        self._states: dict[int, int] = {}
        """By iteration."""
        self._truths: list[Truth] = []

    def state(self, iteration: int) -> int:
        """A number for how things are then; the same one where they are the same."""
        if iteration not in self._states:
            truth = truth_at(self._plan, self._changes, self._of_links, iteration)
            if truth not in self._truths:
                self._truths.append(truth)
            self._states[iteration] = self._truths.index(truth)
        return self._states[iteration]

    def truth(self, state: int) -> Truth:
        """How things are in a state."""
        return self._truths[state]

    @abstractmethod
    def seen(self, runs: Prospect, iteration: int) -> Sighting:
        """What can be seen of an iteration as it really is, with the slots that were drawn for it."""

    @abstractmethod
    def times_s(self, runs: Prospect, iteration: int) -> tuple[float, ...]:
        """What it takes, by job."""

    @abstractmethod
    def typical_s(self, runs: Prospect, state: int) -> float:
        """What an iteration takes in a state with the slots as they are in the mean; of several jobs their mean."""

    @abstractmethod
    def swap_costs(self, iteration: int, swap_s: float) -> SwapCosts:
        """What swaps before an iteration really cost: so much, and what they send over links as they are in the one
        before it.
        """

    @abstractmethod
    def made_for(self, state: int) -> list[Prospect]:
        """What is best in a state, of who knows it."""

    @abstractmethod
    def crossed(self, path: Path, state: int, runs: Prospect) -> tuple[Sequence[LinkCost], float]:
        """What a packet of its own crosses along a path, and how long it then takes to its receiver's use."""

    def iteration_s(self, runs: Prospect, iteration: int) -> float:
        """What an iteration takes; of several jobs the mean, of each from its own start."""
        times_s = self.times_s(runs, iteration)
        return sum(times_s) / len(times_s)

    def looked(self, look: Look, iteration: int, runs: Prospect) -> LookedAt:
        """What a look shows beside an iteration, or behind it: trains of which half comes in time."""
        state = self.state(iteration)
        truth = self.truth(state)
        directions, down = planned(truth.plan.network).links, {event.name for event in truth.plan.events}
        within_s = self.iteration_s(runs, iteration) if look.beside else look.waits_s
        found = dict[Path, TrainTimes]()
        for path in look.paths:
            links, handover_s = self.crossed(path, state, runs)
            first_s, last_s = (crossing_s(links, size) + handover_s for size in (PROBE_BYTES, look.wire_bytes))
            half_s = (first_s + last_s) / 2
            if half_s <= within_s and down.isdisjoint(directions[index].link for index in path.route):
                found[path] = TrainTimes(first_s, last_s, look.wire_bytes)
        if look.beside:
            return LookedAt(found, 0.0)
        all_s = max((train.last_s for train in found.values()), default=look.waits_s)
        return LookedAt(found, min(all_s, look.waits_s) if len(found) == len(look.paths) else look.waits_s)

    def paid_s(self, iteration: int, before: Prospect, runs: Prospect, swap_s: float) -> float:
        """What it costs to go on with a candidate from this iteration on."""
        if runs.candidate == before.candidate:
            return 0.0
        return self.swap_costs(iteration, swap_s).between(before.setting, runs.setting)


class OneJobsWorld(World):
    """Of a job that trains alone."""

    def __init__(self, subject: AdaptableJob, changes: Sequence[Change], drawn: SlotVariation) -> None:
        super().__init__(subject.plan, changes, drawn)
        self.subject = subject
        self._problems: dict[tuple[int, JobSetting], Problem] = {}
        self._traces: dict[tuple[int, JobCandidate, int], Trace] = {}
        self._times_s: dict[tuple[int, JobCandidate], float] = {}
        self._sends_s: dict[tuple[int, JobSetting, JobSetting], float] = {}

    def problem(self, state: int, setting: JobSetting) -> Problem:
        """What iterations cost then."""
        if (state, setting) not in self._problems:
            self._problems[state, setting] = real_problem(self.subject, self.truth(state), setting)
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

    def probes_s(self, iteration: int, setting: JobSetting) -> dict[Path, float]:
        """What one packet takes between datacenters while nothing else is on its way."""
        problem = self.problem(self.state(iteration), setting)
        routes = {pair: ends.route(problem) for pair, ends in self.subject.pairs(problem).items()}
        return {
            path: crossing_s([problem.links[index] for index in routes[path.pair]], PROBE_BYTES) + problem.handover_s
            for path in setting.paths
        }

    def seen(self, runs: Prospect, iteration: int) -> Sighting:
        """See World."""
        probes_s = self.probes_s(iteration, runs.setting)
        return sighting(self.trace(runs, iteration), self.subject.ranks, probes_s)

    def times_s(self, runs: Prospect, iteration: int) -> tuple[float, ...]:
        """See World."""
        return (float(self.trace(runs, iteration).makespans()[0]),)

    def crossed(self, path: Path, state: int, runs: Prospect) -> tuple[Sequence[LinkCost], float]:
        """See World."""
        problem = self.problem(state, runs.setting)
        return [problem.links[index] for index in path.route], problem.handover_s

    def made_for(self, state: int) -> list[Prospect]:
        """Every choice in every setting."""
        found = []
        for label, choice, setting, problem in self.subject.recipes:
            real = self.problem(state, setting).with_memory(problem.memory_limit)
            try:
                found.append(Prospect(label, setting, (generate_choice(choice, real).schedule,), math.nan))
            except DoesNotFit:
                continue
        return found

    def swap_costs(self, iteration: int, swap_s: float) -> SwapCosts:
        """See World."""
        state = self.state(max(0, iteration - 1))

        def sends_s(one: JobSetting, other: JobSetting) -> float:
            key = state, one, other
            if key not in self._sends_s:
                problems = partial(self.problem, state)
                self._sends_s[key] = sending_s(self.subject, self.truth(state).plan, problems, one, other)
            return self._sends_s[key]

        return SwapCosts(swap_s, sends_s)

    def typical_s(self, runs: Prospect, state: int) -> float:
        """See World."""
        key = state, runs.candidate
        if key not in self._times_s:
            receives = self.subject.plan.jobs[0].workload.receives
            self._times_s[key] = makespan(self.problem(state, runs.setting), runs.schedule, receives=receives)
        return self._times_s[key]
