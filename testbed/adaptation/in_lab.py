"""What adapts in a lab: the only job of a plan, or the starts of several. What to train next, where to probe, what is
seen of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from testbed.adaptation.adaptable_job import AdaptableJob, planned_belief
from testbed.adaptation.adapting import Adapting, adapting_job
from testbed.adaptation.candidate import JobSetting, Prospect
from testbed.adaptation.controller import Decide
from testbed.adaptation.estimates import Belief
from testbed.adaptation.jobs_in_rounds import JobsInRounds, StartProspects, best_starts_of
from testbed.adaptation.sightings import Path, Sighting, sighting, with_wire_bytes
from testbed.model.lower import Load
from testbed.plan.plan import Case, JobSchedule
from testbed.trace.tables import Trace


class LabSubject(Protocol):
    """Of a plan that a lab trains."""

    @property
    def belief(self) -> Belief:
        """As planned."""

    @property
    def message_bytes(self) -> float:
        """Of all messages of pipelines, as planned."""

    @property
    def cases(self) -> list[Case]:
        """In which messages are those of every setting that it may go on with."""

    def adapting(self, decide: Decide, swap_s: float) -> Adapting:
        """From what the plan's first case has on."""

    def case_with(self, runs: Prospect) -> Case:
        """The plan's first case with a candidate in place of what it has."""

    def probed(self, setting: JobSetting) -> dict[Path, tuple[str, str]]:
        """The nodes between which a packet is sent for each path that is in use."""

    def nodes_of(self, path: Path) -> tuple[str, str]:
        """Two nodes between which its pipelines would send along a path, whether it is in use or not."""

    def seen(
        self, measured: Sequence[Trace], predicted: Sequence[Trace], runs: Prospect, probes_s: Mapping[Path, float]
    ) -> Sighting:
        """What an iteration of every job says; messages have the wire bytes of what was predicted."""

    def made_for(self, loads: Sequence[Load]) -> list[Prospect]:
        """What is best where jobs put so much on the network, of who knows it, beside what the controller finds."""


class OneJob(NamedTuple):
    """It may go on with another schedule, in another setting."""

    job: AdaptableJob

    @property
    def belief(self) -> Belief:
        """As planned."""
        return planned_belief(self.job)

    @property
    def message_bytes(self) -> float:
        """As planned."""
        return self.job.message_bytes

    @property
    def cases(self) -> list[Case]:
        """One for each setting."""
        return [
            self._case(job.scheduled(recipe.choice, setting), setting)
            for job in (self.job,)
            for setting, recipe in job.settings.items()
        ]

    def adapting(self, decide: Decide, swap_s: float) -> Adapting:
        """With the schedule of the plan's first case."""
        return adapting_job(self.job, decide, swap_s, self.job.plan.cases[0].jobs[0].choice.label)

    def case_with(self, runs: Prospect) -> Case:
        """On its routes."""
        return self._case(self.scheduled(runs, runs.label), runs.setting)

    def scheduled(self, runs: Prospect, label: str) -> JobSchedule:
        """What the job does in a case with a candidate, which the plan calls so."""
        recipe = self.job.labelled(runs.label)
        bare = self.job.scheduled(recipe.choice.model_copy(update={"label": label}), runs.setting)
        return replace(bare, rows=runs.schedule.rows)

    def probed(self, setting: JobSetting) -> dict[Path, tuple[str, str]]:
        """Of the pipelines' messages."""
        problem = self.job.settings[setting].problem
        ends = self.job.pairs(problem)
        return {path: self.job.nodes_of(problem, ends[path.pair]) for path in setting.paths}

    def nodes_of(self, path: Path) -> tuple[str, str]:
        """In the first setting that has it."""
        return self.probed(next(setting for setting in self.job.settings if path in setting.paths))[path]

    def seen(
        self, measured: Sequence[Trace], predicted: Sequence[Trace], runs: Prospect, probes_s: Mapping[Path, float]
    ) -> Sighting:
        """Of the only one."""
        ((ended, known),) = zip(measured, predicted, strict=True)
        return sighting(with_wire_bytes(ended, known), self.job.ranks, probes_s)

    def made_for(self, loads: Sequence[Load]) -> list[Prospect]:
        """None: an oracle may run what the controller could."""
        return []

    def _case(self, chosen: JobSchedule, setting: JobSetting) -> Case:
        return replace(self.job.plan.cases[0], jobs=(chosen,), routes=self.job.routes_in(setting))


class SeveralJobs(NamedTuple):
    """They may begin at other times."""

    jobs: JobsInRounds

    @property
    def belief(self) -> Belief:
        """As planned."""
        return self.jobs.belief()

    @property
    def message_bytes(self) -> float:
        """Of any of them."""
        return self.jobs.message_bytes

    @property
    def cases(self) -> list[Case]:
        """No start makes other messages."""
        return [self.jobs.plan.cases[0]]

    def adapting(self, decide: Decide, swap_s: float) -> Adapting:
        """With the starts of the plan's first case."""
        return Adapting(StartProspects(self.jobs), self.belief, self.jobs.begins, decide, swap_s)

    def case_with(self, runs: Prospect) -> Case:
        """With its starts."""
        return replace(self.jobs.plan.cases[0], starts_s=runs.setting.starts_s)

    def probed(self, setting: JobSetting) -> dict[Path, tuple[str, str]]:
        """Of the pipelines' messages of all of them."""
        return {path: self.jobs.nodes_of(path) for path in setting.paths}

    def nodes_of(self, path: Path) -> tuple[str, str]:
        """Of the job whose messages are looked at."""
        return self.jobs.nodes_of(path)

    def seen(
        self, measured: Sequence[Trace], predicted: Sequence[Trace], runs: Prospect, probes_s: Mapping[Path, float]
    ) -> Sighting:
        """Of all of them."""
        return self.jobs.seen([with_wire_bytes(*pair) for pair in zip(measured, predicted, strict=True)], probes_s)

    def made_for(self, loads: Sequence[Load]) -> list[Prospect]:
        """The starts that are best then."""
        return [self.jobs.starting(best_starts_of(self.jobs, loads))]
