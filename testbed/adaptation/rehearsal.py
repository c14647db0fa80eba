"""A rehearsal: a job trains in the event model, iteration after iteration, while links and ranks change.

Three jobs go through the same: one that never adapts, one with a controller, which sees nothing but the model's times
of its messages and actions, and an oracle that knows all that will happen and swaps when that is best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from testbed.adaptation.adaptable_job import AdaptableJob
from testbed.adaptation.candidate import JobCandidate, JobSetting, Prospect
from testbed.adaptation.controller import ControllerChoice, Step, adapting_job
from testbed.adaptation.oracle import best_sequence
from testbed.adaptation.rehearsal_changes import Change, Truth, real_problem, truth_at
from testbed.adaptation.sightings import PROBE_BYTES, Path, sighting
from testbed.adaptation.swap_costs import SwapCosts, sending_s
from testbed.errors import DoesNotFit
from testbed.model.lower import Load
from testbed.model.simulate import makespan, simulate_jobs
from testbed.pipeline.ir import KINDS, Action
from testbed.pipeline.link import crossing_s
from testbed.pipeline.problem import Problem
from testbed.schedule.registry import generate_choice
from testbed.trace.tables import Trace

WORTH_KNOWING = 0.005
"""Share of all time that an oracle has to gain before a controller's share of that gain says anything."""


OVER = "over: "
"""Stands before a change that is no more."""


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


class Rehearsed(NamedTuple):
    """An iteration of all three; seconds, with what a swap before it has cost."""

    iteration: int
    happens: tuple[str, ...]
    """Changes that begin with it, or are over."""
    never_s: float
    adapted_s: float
    oracle_s: float
    late_oracle_s: float
    """Of an oracle that knows everything as well, but of a change that has not happened before not until the iteration
    that it begins with has ended, and swaps for none before: as much as can be had by seeing, without luck."""
    running: str
    """Labels of the controller's schedule ..."""
    oracle: str
    """... and of the oracle's."""
    step: Step
    """What the controller learnt from it and decided behind it."""


@dataclass(frozen=True)
class Rehearsal:
    """All of it."""

    rows: Sequence[Rehearsed]
    swap_s: float
    oracle_swaps: int

    @property
    def swaps(self) -> list[int]:
        """The first iterations of the controller's schedules."""
        return [row.iteration + 1 for row in self.rows if row.step.swapped_to is not None]

    def since(self, iteration: int) -> Rehearsal:
        """What came from an iteration on."""
        return replace(self, rows=self.rows[iteration:])

    def total_s(self, who: str) -> float:
        """Of `never`, `adapted`, `oracle` or `late_oracle`."""
        return float(sum(getattr(row, f"{who}_s") for row in self.rows))

    @property
    def gain_s(self) -> float:
        """What the controller has brought."""
        return self.total_s("never") - self.total_s("adapted")

    @property
    def most_gain_s(self) -> float:
        """What the oracle has."""
        return self.total_s("never") - self.total_s("oracle")

    @property
    def share(self) -> float | None:
        """Of the oracle's gain; None where that is next to nothing."""
        return self.gain_s / self.most_gain_s if self.most_gain_s > WORTH_KNOWING * self.total_s("never") else None

    @property
    def late_share(self) -> float | None:
        """Of the gain of an oracle that has to see the first change too; None where that is next to nothing."""
        most_s = self.total_s("never") - self.total_s("late_oracle")
        return self.gain_s / most_s if most_s > WORTH_KNOWING * self.total_s("never") else None

    def noticed_after(self, at: int) -> int | None:
        """Iterations from the one that a change begins with to the first alarm, that one included; None for never."""
        alarms = (row.iteration for row in self.rows if row.iteration >= at and row.step.learnt.alarms)
        first = next(alarms, None)
        return None if first is None else first - at + 1


def rehearse(
    subject: AdaptableJob,
    changes: Sequence[Change],
    iterations: int,
    controller: ControllerChoice,
    *,
    swap_s: float,
    begin: str | None = None,
    drawn: SlotVariation = AS_PACED,
    advance: Callable[[], None] = lambda: None,
) -> Rehearsal:
    """Train so many iterations; `begin` is the label to begin with, by default the fastest as planned.

    Raises BadInput for what cannot be trained: no route is left, or no schedule fits.
    """
    world = World(subject, changes, drawn)
    adapting = adapting_job(subject, controller.begin(), swap_s, begin)
    ran, steps = [adapting.running], list[Step]()
    for iteration in range(iterations):
        probes_s = world.probes_s(iteration, ran[-1].setting)
        seen = sighting(world.trace(ran[-1], iteration), subject.ranks, probes_s)
        steps.append(adapting.after(iteration, seen))
        if took_s := world.paid_s(iteration + 1, ran[-1], adapting.running, swap_s):
            adapting.swap_costs.learn(ran[-1].setting, adapting.running.setting, took_s)
        ran.append(adapting.running)
        advance()
    first = ran[0]
    others = [*ran, *adapting.candidates]
    states = [world.state(iteration) for iteration in range(iterations)]
    able = _able(world, others, states)
    knows = [first, *_oracle(world, able, _spans(states), swap_s)]
    begins, *goes_on = spans_of_who_sees(states)
    late = [first] * (1 + len(begins)) + _oracle(world, able, goes_on, swap_s, len(states) - sum(map(len, goes_on)))
    rows = []
    for iteration, step in enumerate(steps):
        known, begun = knows[iteration + 1], ran[max(0, iteration - 1)]
        rows.append(
            Rehearsed(
                iteration,
                _happens(changes, iteration),
                world.iteration_s(first, iteration),
                world.iteration_s(ran[iteration], iteration) + world.paid_s(iteration, begun, ran[iteration], swap_s),
                world.iteration_s(known, iteration) + world.paid_s(iteration, knows[iteration], known, swap_s),
                world.iteration_s(late[iteration + 1], iteration)
                + world.paid_s(iteration, late[iteration], late[iteration + 1], swap_s),
                ran[iteration].label,
                known.label,
                step,
            )
        )
    return Rehearsal(rows, swap_s, sum(_is_other(*pair) for pair in pairwise(knows)))


def _is_other(one: Prospect, other: Prospect) -> bool:
    return one.candidate != other.candidate


def _happens(changes: Sequence[Change], iteration: int) -> tuple[str, ...]:
    """What is different from the iteration before."""
    now, before = ([each.applies(when) for each in changes] for when in (iteration, iteration - 1))
    return tuple(
        each.text if here else f"{OVER}{each.text}"
        for each, here, was in zip(changes, now, before, strict=True)
        if here != was
    )


def _spans(states: Sequence[int]) -> list[list[int]]:
    """The iterations in which nothing changes, as their states: whoever knows everything swaps between these."""
    return [list(same) for _, same in groupby(states)]


def spans_of_who_sees(states: Sequence[int]) -> list[list[int]]:
    """The same of who has to see a change once to know of it: the first time, its first iteration is still of the span
    before.
    """
    spans: list[list[int]] = []
    seen: set[tuple[int, int]] = set()
    for span in _spans(states):
        if spans and (change := (spans[-1][-1], span[0])) not in seen:
            seen.add(change)
            spans[-1].append(span.pop(0))
        if span:
            spans.append(span)
    return spans


def _oracle(
    world: World, able: Sequence[Prospect], spans: Sequence[Sequence[int]], swap_s: float, begin: int = 0
) -> list[Prospect]:
    """Per iteration of these spans, which begin with that of a number, the candidate of who knows what will happen.

    It begins with the first of `able`, may run each of them, and pays for swaps as everybody does.
    """
    if not spans:
        return []
    run_s = [[sum(world.typical_s(each, state) for state in span) for each in able] for span in spans]
    firsts = [begin + sum(map(len, spans[:place])) for place in range(len(spans))]
    candidates = [each.candidate for each in able]
    swaps_s = [world.swap_costs(first, swap_s).matrix(candidates) for first in firsts]
    which = best_sequence(np.array(run_s), swaps_s)
    return [able[number] for number, span in zip(which, spans, strict=True) for _ in span]


def _able(world: World, others: Sequence[Prospect], states: Sequence[int]) -> list[Prospect]:
    """What an oracle may run: whatever the controller could, with whose first candidate it begins, and every choice in
    every setting, made for every state that comes; each once."""
    found = {each.candidate: each for each in reversed(others)}
    found = {others[0].candidate: others[0], **found}
    for state in dict.fromkeys(states):
        for label, choice, setting, planned in world.subject.recipes:
            real = world.problem(state, setting).with_memory(planned.memory_limit)
            try:
                made = Prospect(label, setting, (generate_choice(choice, real).schedule,), np.nan)
            except DoesNotFit:
                continue
            found.setdefault(made.candidate, made)
    return list(found.values())
