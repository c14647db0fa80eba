"""What a job that adapts may go on with: the order of its actions, in a setting."""

from __future__ import annotations

from typing import NamedTuple

from testbed.adaptation.sightings import Path
from testbed.pipeline.ir import Row, Schedule
from testbed.plan.moved_weights import Stages


class JobSetting(NamedTuple):
    """What a job may change between two iterations beside the order of its actions."""

    microbatches: int
    """Into how many each pipeline's batch is cut; of as many samples in all."""
    paths: tuple[Path, ...]
    """One for every two datacenters that its pipelines' messages go between, each way."""
    stages: Stages
    """The pipeline rank of every stage."""


class JobCandidate(NamedTuple):
    """One of them is known by these alone, whatever it is called and whatever it was made for."""

    setting: JobSetting
    rows: tuple[Row, ...]


class Prospect(NamedTuple):
    """A candidate, and what an iteration is predicted to take with it."""

    label: str
    setting: JobSetting
    schedule: Schedule
    predicted_s: float

    @property
    def candidate(self) -> JobCandidate:
        """What it is known by."""
        return JobCandidate(self.setting, self.schedule.rows)
