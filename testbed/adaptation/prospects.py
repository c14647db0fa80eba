"""What an iteration would take with each candidate that the job could swap to, if links and ranks are as believed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.adaptation.adaptable_job import AdaptableJob, PipelineEnds
from testbed.adaptation.believed_problem import believed
from testbed.adaptation.candidate import JobCandidate, JobSetting, Prospect
from testbed.adaptation.estimates import Belief, PathEstimate, between, exactly
from testbed.adaptation.sightings import PROBE_BYTES, Crossing, Path, Sighting, sighting
from testbed.adaptation.swap_costs import Sends, sending_s
from testbed.errors import DoesNotFit
from testbed.model.simulate import makespan, simulate
from testbed.pipeline.ir import Schedule
from testbed.pipeline.link import crossing_s
from testbed.pipeline.problem import Problem
from testbed.schedule.registry import generate_choice

MOST_KEPT = 128
"""Schedules that stay candidates although they were made for what is no longer believed, the latest ones."""


SHARES = (0.25, 0.5, 0.75)
"""Of the way from what was believed to what is: what schedules are made for beside these two; at first from links that
are half as good. One that is made for the middle may be good at both ends, where each end's own is good at one."""

AS_FAST = 1e-4
"""By so much of an iteration schedules may differ to be as fast as each other: no clock of a job tells them apart."""


class Prospects:
    """The candidates: every choice in every setting, made for what is believed, for what was believed before, and for
    between the two.
    """

    def __init__(self, subject: AdaptableJob) -> None:
        self._subject = subject
        self._kept: dict[JobCandidate, _KeptSchedule] = {}
        self._last: Belief | None = None
        self._made: dict[tuple[object, ...], set[JobCandidate]] = {}
        self._latest: dict[str, JobCandidate] = {}
        """By label of its recipe, the one that was made last."""
        self._times: dict[tuple[object, ...], _Times] = {}
        self._alone: dict[tuple[object, ...], dict[Path, float]] = {}

    def under(self, belief: Belief) -> list[Prospect]:
        """All of them, the fastest first. Raises DoesNotFit where no choice has room."""
        if belief != self._last:
            other = slower(belief) if self._last is None else self._last
            self._make([*(between(other, belief, share) for share in SHARES), belief])
            self._last = belief
        times = self.times(belief)
        found = [
            Prospect(kept.label, candidate.setting, (kept.schedule,), times[candidate])
            for candidate, kept in self._kept.items()
        ]
        return sorted(found, key=lambda prospect: prospect.predicted_s)

    def to_begin_with(self, belief: Belief) -> Prospect:
        """The fastest; of several that are as fast, one that was made for exactly that.

        Raises DoesNotFit where no choice has room.
        """
        fastest, *_ = self.under(belief)
        made, *_ = self.made_for(belief) or [fastest]
        return made if made.predicted_s <= (1 + AS_FAST) * fastest.predicted_s else fastest

    def made_for(self, belief: Belief) -> list[Prospect]:
        """Of them those that were made for exactly that."""
        return [each for each in self.under(belief) if each.candidate in self._made[belief.key]]

    def labelled(self, label: str, belief: Belief) -> Prospect | None:
        """That of them of the recipe with a label; None where it has no room."""
        latest = self._latest.get(label)
        return next((each for each in self.made_for(belief) if each.candidate == latest), None)

    def beside(self, running: Prospect, belief: Belief) -> tuple[Prospect, list[Prospect]]:
        """The running candidate with what it is predicted to take now, and all of them, that one included."""
        mine = running.candidate
        self._kept[mine] = self._kept.pop(mine)  # the latest, which is not given up
        found = self.under(belief)
        return next(each for each in found if each.candidate == mine), found

    @property
    def every(self) -> list[Prospect]:
        """All that are candidates now; nothing is predicted of them."""
        return [
            Prospect(kept.label, candidate.setting, (kept.schedule,), float("nan"))
            for candidate, kept in self._kept.items()
        ]

    def times(self, belief: Belief) -> dict[JobCandidate, float]:
        """What an iteration takes with each candidate if that is so."""
        known = self._times.pop(belief.key, None) or _Times(self._problems(belief), {})
        self._times[belief.key] = known
        for key in list(self._times)[:-MOST_KEPT]:
            del self._times[key]
        receives = self._subject.plan.jobs[0].workload.receives
        for candidate, kept in self._kept.items():
            if candidate not in known.seconds:
                known.seconds[candidate] = makespan(known.problems[kept.recipe], kept.schedule, receives=receives)
        return {candidate: known.seconds[candidate] for candidate in self._kept}

    def as_planned(self, seen: Sighting, running: Prospect) -> Sighting:
        """What is seen of the running candidate, as it would be of microbatches and stages as they are planned."""
        planned = self._subject.planned
        mine = self._subject.recipes[self._kept[running.candidate].recipe].problem
        larger, longer = self._subject.larger(mine), 1.0
        if planned.message_bytes and mine.message_bytes:  # of a pipeline of one stage there are none
            longer = max(planned.message_bytes) / max(mine.message_bytes)
        return seen if larger == longer == 1 else seen.of_other_actions(1 / larger, longer)

    def alone(self, belief: Belief, running: Prospect) -> dict[Path, float]:
        """Of what even the fastest message between two datacenters takes longer than a probe, the share that it would
        take by itself, if that is so: where a link is full, every message waits for another one.
        """
        key = belief.key, running.candidate
        if key not in self._alone:
            self.times(belief)
            problem = self._times[belief.key].problems[self._kept[running.candidate].recipe]
            receives = self._subject.plan.jobs[0].workload.receives
            probes_s = {path: belief.paths[path].crossing_s(PROBE_BYTES) for path in running.setting.paths}
            ends = self._subject.pairs(problem)
            trace = simulate(problem, running.schedule, receives=receives)
            seen = sighting(trace, self._subject.ranks, probes_s).crossings
            self._alone = {
                key: {path: share_alone(problem, ends[path.pair], seen[path]) for path in running.setting.paths}
            }
        return self._alone[key]

    def sends_s(self, belief: Belief) -> Sends:
        """What swaps send, if that is so."""
        known: dict[tuple[JobSetting, JobSetting], float] = {}
        recipes = self._subject.settings

        def problem(setting: JobSetting) -> Problem:
            return believed(self._subject, recipes[setting], belief)

        def sends_s(one: JobSetting, other: JobSetting) -> float:
            if (one, other) not in known:
                known[one, other] = sending_s(self._subject, self._subject.plan, problem, one, other)
            return known[one, other]

        return sends_s

    def in_the_way(self, paths: Collection[Path], running: Prospect) -> bool:
        """Whether what goes along these paths shares a link or a node's card with what the running candidate sends."""
        crossed = self._subject.crossed(running.setting)
        return bool(self._subject.planned.cards) or any(not crossed.isdisjoint(path.route) for path in paths)

    @property
    def message_bytes(self) -> float:
        """Of the longest message of a pipeline on the wire, as planned."""
        return self._subject.message_bytes

    def _problems(self, belief: Belief) -> list[Problem]:
        return [believed(self._subject, recipe, belief) for recipe in self._subject.recipes]

    def _make(self, beliefs: Sequence[Belief]) -> None:
        reasons = []
        for belief in beliefs:
            if belief.key in self._made:
                continue
            made = self._made.setdefault(belief.key, set())
            for number, (recipe, problem) in enumerate(zip(self._subject.recipes, self._problems(belief), strict=True)):
                try:
                    schedule = generate_choice(recipe.choice, problem).schedule
                except DoesNotFit as error:
                    reasons.append(error)
                    continue
                candidate = JobCandidate(recipe.setting, schedule.rows)
                self._latest[recipe.label] = candidate
                if candidate in made:  # as another recipe has it, whose label stands for both
                    continue
                made.add(candidate)
                self._kept.pop(candidate, None)
                self._kept[candidate] = _KeptSchedule(recipe.label, schedule, number)
        if not self._kept:
            raise reasons[0]
        for candidate in list(self._kept)[:-MOST_KEPT]:
            del self._kept[candidate]


def share_alone(problem: Problem, ends: PipelineEnds, seen: Crossing) -> float:
    """Of what a message between two ranks takes longer than a probe, the share that it would take over idle links: more
    than 1 where the word that its receive is posted is believed to take longer than as planned.
    """
    alone_s = crossing_s([problem.links[index] for index in ends.route(problem)], seen.message_bytes)
    longer_s = seen.message_s - seen.probe_s
    return max(0.0, alone_s - seen.probe_s) / longer_s if longer_s > 0 else 1.0


def slower(belief: Belief) -> Belief:
    """With links that are half as good: on the way there a job finds what to begin with that bears a change."""
    paths = {
        which: PathEstimate(exactly(2 * path.delay_s.value), exactly(path.rate_bps.value / 2))
        for which, path in belief.paths.items()
    }
    return replace(belief, paths=paths)


class _KeptSchedule(NamedTuple):
    label: str
    schedule: Schedule
    recipe: int
    """Its number."""


class _Times(NamedTuple):
    problems: list[Problem]
    """Of every recipe."""
    seconds: dict[JobCandidate, float]
