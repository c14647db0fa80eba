"""What a job that adapts may go on with: the order of its actions, in a setting. Several: when they begin."""

from __future__ import annotations

from typing import NamedTuple

from testbed.adaptation.sightings import Path
from testbed.pipeline.ir import Row, Schedule
from testbed.plan.moved_weights import Stages


class JobSetting(NamedTuple):
    """What a job may change between two iterations beside the order of its actions; or what several jobs may."""

    microbatches: int
    """Into how many each pipeline's batch is cut; of as many samples in all. 0 of several jobs, which keep theirs."""
    paths: tuple[Path, ...]
    """One for every two datacenters that its pipelines' messages go between, each way."""
    stages: Stages
    """The pipeline rank of every stage; () of several jobs, which keep theirs."""
    starts_s: tuple[float, ...] = ()
    """Of several jobs, when each begins, in seconds from the common start; () of one."""


class JobCandidate(NamedTuple):
    """One of them is known by these alone, whatever it is called and whatever it was made for."""

    setting: JobSetting
    rows: tuple[Row, ...]
    """Of several jobs, one behind the other."""


class Prospect(NamedTuple):
    """A candidate, and what an iteration is predicted to take with it."""

    label: str
    setting: JobSetting
    schedules: tuple[Schedule, ...]
    """Of every job."""
    predicted_s: float
    """Of several jobs the mean, of each from its own start."""

    @property
    def schedule(self) -> Schedule:
        """Of the only job."""
        (schedule,) = self.schedules
        return schedule

    @property
    def candidate(self) -> JobCandidate:
        """What it is known by."""
        return JobCandidate(self.setting, tuple(row for schedule in self.schedules for row in schedule.rows))
