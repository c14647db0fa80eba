"""What every case of a session needs while it is trained, and who decides meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from testbed.lab.machine_witness import Witness
from testbed.plan.plan import Case, JobSchedule, Route
from testbed.plan.traffic import PlannedTraffic
from testbed.planning.prediction import RangesByLabel
from testbed.progress import Reporter
from testbed.results.directory import ResultsWriter
from testbed.session.event_player import ChangingLinks
from testbed.session.loop import Loop
from testbed.session.network_accounts import NetworkAccounts
from testbed.session.recovering_rounds import ReplacedWorkers
from testbed.session.timers import TimedAction
from testbed.trace.tables import Trace


class GoesOn(NamedTuple):
    """With what a training goes on."""

    schedule: JobSchedule
    routes: tuple[Route, ...]
    """One for every flow of the plan."""


class Shifts(NamedTuple):
    """When the jobs of a training begin from now on."""

    starts_s: tuple[float, ...]
    """Per job, from the common start."""
    said: str
    """In words."""


class RunningController(Protocol):
    """What decides, as iterations end, whether a training goes on with another schedule or other starts."""

    @property
    def document(self) -> Mapping[str, Any]:
        """What it saw, believed and decided, as comparison.json has it."""

    @property
    def cases(self) -> Sequence[Case]:
        """In which messages are those of every setting that it may go on with."""

    def after(self, iteration: int, ended: Sequence[Trace], *, over: bool) -> GoesOn | Shifts | None:
        """What the only job goes on with, or when several begin, now that so many measured iterations are over; None:
        with what they have, as it is where the training is `over`.

        `ended` is the last of them, as it was measured, of every job.
        """

    def timed(self, iteration: int) -> Sequence[TimedAction]:
        """What is to be done during the measured iteration of this number, which is about to begin."""

    def carried(self) -> Sequence[PlannedTraffic]:
        """What it has sent over every direction, that came, since this was asked last."""

    def swapped(self, seconds: float) -> None:
        """What was decided is so: the last swap took so long."""

    def goes_on(self, iteration: int, idle_s: float) -> None:
        """The measured iteration of this number begins, so long after the one before it was over."""


class BackgroundTraffic(Protocol):
    """What is on a lab's network beside the jobs."""

    def begin(self, start_s: float, since_s: float | None) -> None:
        """Jobs begin at this instant of the monotonic clock, and the time of the traffic has come so far; None: it has
        the rates that it has first."""

    def pause(self) -> None:
        """Send no more; nothing is on its way when this returns."""


@dataclass(frozen=True)
class Running:
    """What every case of a session needs."""

    network: NetworkAccounts
    loop: Loop
    results: ResultsWriter
    reporter: Reporter
    real_time: bool
    """Whether workers run under SCHED_RR."""
    witness: Witness
    ranges: RangesByLabel
    """Of the cases that they are known of already."""
    links: ChangingLinks | None = None
    """Of a lab; None where nothing can change what the network is."""
    background: BackgroundTraffic | None = None
    """None where jobs have the network for themselves."""
    adaptation: RunningController | None = None
    """None where schedules are swapped as the plan says, and at no other time."""
    workers: ReplacedWorkers | None = None
    """Of a lab; None where a worker that fails cannot be replaced."""
