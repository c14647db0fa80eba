"""A rehearsal: a job, or several, train in the event model, iteration after iteration, while links and ranks change.

Three jobs go through the same: one that never adapts, one with a controller, which sees nothing but the model's times
of its messages and actions, and an oracle that knows all that will happen and swaps when that is best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from testbed.adaptation.adaptable_job import AdaptableJob
from testbed.adaptation.adapting import Adapting, Step, adapting_job
from testbed.adaptation.candidate import Prospect
from testbed.adaptation.controller import ControllerChoice
from testbed.adaptation.in_lab import SeveralJobs
from testbed.adaptation.jobs_in_rounds import JobsInRounds
from testbed.adaptation.looks import Look
from testbed.adaptation.oracle import best_sequence
from testbed.adaptation.rehearsal_changes import Change
from testbed.adaptation.rehearsal_of_jobs import JobsWorld
from testbed.adaptation.rehearsal_world import AS_PACED, LookedAt, OneJobsWorld, SlotVariation, World

WORTH_KNOWING = 0.005
"""Share of all time that an oracle has to gain before a controller's share of that gain says anything."""


OVER = "over: "
"""Stands before a change that is no more."""


class JobTimes(NamedTuple):
    """What an iteration of a job takes, from its own start."""

    never_s: float
    adapted_s: float
    oracle_s: float


class Rehearsed(NamedTuple):
    """An iteration of all three; seconds, with what a swap before it has cost; of several jobs the mean."""

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
    look: Look | None
    """Beside it, or behind it ..."""
    look_s: float
    """... and for how long the job waited for it, which is in `adapted_s`."""
    jobs: tuple[JobTimes, ...]
    """Of every job, without what is between iterations."""


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

    @property
    def looks(self) -> list[Look]:
        """At routes that were not used."""
        return [row.look for row in self.rows if row.look is not None]

    def since(self, iteration: int) -> Rehearsal:
        """What came from an iteration on."""
        return replace(self, rows=self.rows[iteration:])

    def total_s(self, who: str) -> float:
        """Of `never`, `adapted`, `oracle` or `late_oracle`."""
        return float(sum(getattr(row, f"{who}_s") for row in self.rows))

    @property
    def jobs(self) -> list[JobTimes]:
        """What all iterations of each job took, from its own starts."""
        return [
            JobTimes(*map(sum, zip(*of_job, strict=True)))
            for of_job in zip(*(row.jobs for row in self.rows), strict=True)
        ]

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
    adapting = adapting_job(subject, controller.begin(), swap_s, begin)
    return _through(OneJobsWorld(subject, changes, drawn), adapting, changes, iterations, swap_s, advance)


def rehearse_jobs(
    jobs: JobsInRounds,
    changes: Sequence[Change],
    iterations: int,
    controller: ControllerChoice,
    *,
    swap_s: float,
    drawn: SlotVariation = AS_PACED,
    advance: Callable[[], None] = lambda: None,
) -> Rehearsal:
    """The same of several jobs, of which one controller shifts the starts, as in a lab; they begin as their plan has
    it.
    """
    adapting = SeveralJobs(jobs).adapting(controller.begin(), swap_s)
    return _through(JobsWorld(jobs, changes, drawn), adapting, changes, iterations, swap_s, advance)


def _through(
    world: World,
    adapting: Adapting,
    changes: Sequence[Change],
    iterations: int,
    swap_s: float,
    advance: Callable[[], None],
) -> Rehearsal:
    ran, steps, looks_s = [adapting.running], list[Step](), list[float]()
    for iteration in range(iterations):
        seen = world.seen(ran[-1], iteration)
        look = steps[-1].look if steps else None
        looked = LookedAt({}, 0.0) if look is None else world.looked(look, iteration, ran[-1])
        looks_s.append(looked.waited_s)
        steps.append(adapting.after(iteration, seen, *looked))
        if took_s := world.paid_s(iteration + 1, ran[-1], adapting.running, swap_s):
            adapting.swap_costs.learn(ran[-1].setting, adapting.running.setting, took_s)
        ran.append(adapting.running)
        advance()
    first = ran[0]
    states = [world.state(iteration) for iteration in range(iterations)]
    able = _able(world, [*ran, *adapting.candidates], states)
    knows = [first, *_oracle(world, able, _spans(states), swap_s)]
    begins, *goes_on = spans_of_who_sees(states)
    late = [first] * (1 + len(begins)) + _oracle(world, able, goes_on, swap_s, len(states) - sum(map(len, goes_on)))

    def took(iteration: int, before: Prospect, runs: Prospect) -> float:
        return world.iteration_s(runs, iteration) + world.paid_s(iteration, before, runs, swap_s)

    rows = []
    for iteration, step in enumerate(steps):
        mine, known = ran[iteration], knows[iteration + 1]
        rows.append(
            Rehearsed(
                iteration,
                _happens(changes, iteration),
                world.iteration_s(first, iteration),
                took(iteration, ran[max(0, iteration - 1)], mine) + looks_s[iteration],
                took(iteration, knows[iteration], known),
                took(iteration, late[iteration], late[iteration + 1]),
                mine.label,
                known.label,
                step,
                steps[iteration - 1].look if iteration else None,
                looks_s[iteration],
                tuple(map(JobTimes, *(world.times_s(runs, iteration) for runs in (first, mine, known)))),
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
    """What an oracle may run: whatever the controller could, with whose first candidate it begins, and what is made
    for every state that comes; each once."""
    found = {each.candidate: each for each in reversed(others)}
    found = {others[0].candidate: others[0], **found}
    for state in dict.fromkeys(states):
        for made in world.made_for(state):
            found.setdefault(made.candidate, made)
    return list(found.values())
