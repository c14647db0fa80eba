"""What training a case leaves behind, job by job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.goodput.spans import Span
from testbed.judge import fidelity, iterations, parameter_checks
from testbed.model.host_prediction import HostPrediction
from testbed.model.lower import Load
from testbed.pipeline.memory import RankBytes
from testbed.plan.drawn_slots import SlowerRank
from testbed.plan.events import Phase
from testbed.plan.plan import Case, Job
from testbed.planning.ties import Range
from testbed.planning.training_prediction import TrainingPrediction
from testbed.schedule.registry import Generated
from testbed.session.deadlines import Deadline
from testbed.session.event_player import PlayedEvent
from testbed.session.message_costs import MessageCosts
from testbed.session.rounds import Round
from testbed.session.state_exchanges import StateExchange
from testbed.trace.predictions import predicted_times_s
from testbed.trace.tables import Trace, concatenate
from testbed.train.assignment import Fingerprint


@dataclass
class TrainedJob:
    """What one job left behind in one case; its ranks count from 0, its times from its own start."""

    number: int
    job: Job
    rounds: range
    """Of the whole training, those in which it has a part."""
    generated: Generated
    load: Load
    """Of the usual iteration, where they differ."""
    loads: Mapping[int, Load]
    """By number of the round, for all up to the next one."""
    beyond_load_s: float
    """By how much the median of what was predicted is more than the prediction of that; 0 where they do not differ."""
    predicted: Trace
    """With all jobs at work: every iteration where they differ on purpose, else one that stands for all."""
    predicted_range: Range | None
    """What may be predicted by who comes first; None where that is one time."""
    costs: MessageCosts | None
    """What this machine was measured to add until then; None on the virtual clock and without pacing."""
    on_this_host: HostPrediction | None
    """With these costs; None where there are none."""
    measured: list[Trace] = field(default_factory=list)
    rows: list[iterations.IterationRow] = field(default_factory=list)
    memory: Sequence[RankBytes] = ()
    """Per rank, as counted in the first iteration of the training; () where that had another schedule."""
    began_with_it: bool = True
    """Whether the training began with this schedule."""
    slower: tuple[SlowerRank, ...] = ()
    """Its ranks that become slower in the training."""
    fingerprints: list[Fingerprint] = field(default_factory=list)
    """Of gradients and weights, all ranks together."""
    free: bool = False
    """Whether its iterations begin when its own are over, whatever other jobs do."""

    def note(self, ended: Round, part: TrainingPart, own: Phase) -> None:
        """Keep what came of an iteration, where its `own` rounds of a part are these; outside those that count, it is
        as one that warms up, and so is one in which something happens that the model has not."""
        if not ended.records.get(self.number):
            return
        if self.began_with_it:
            counted = [each.memory for each in ended.records[self.number] if each.memory is not None]
            self.memory = self.memory or (counted if len(counted) == self.job.mesh.size else ())
        self.fingerprints += parameter_checks.put_together(ended.records[self.number])
        row = ended.row(self.number)
        self.rows.append(row._replace(warmup=row.iteration not in part.training.compared(own.measured)))
        if row.iteration in own.rounds:
            self.measured.append(ended.trace(self.number))

    @property
    def counted(self) -> list[int]:
        """The iterations that count."""
        return [row.iteration for row in self.rows if not row.warmup]

    @property
    def median_s(self) -> float:
        """Of the iterations that count; their mean where jobs run freely."""
        return float(self._of_all([row.makespan_s for row in self.rows if not row.warmup]))

    @property
    def predicted_s(self) -> float:
        """The same of what was predicted of them, with all jobs at work."""
        return float(self._of_all(predicted_times_s(self.predicted, self.counted)))

    @property
    def _of_all(self) -> Callable[[Sequence[float] | NDArray[np.float64]], np.floating[Any]]:
        return np.mean if self.free else np.median

    def as_part(self) -> Trace:
        """All measured iterations, as the part of a trace of all jobs."""
        return concatenate(self.measured).as_job(self.number, self.job.mesh.ranks, self.load.start_s)


class Swap(NamedTuple):
    """Between two cases of a training, while no job trains."""

    took_s: float
    """Until routers and workers had what goes on."""
    wire_bytes: Sequence[float]
    """That every direction carried meanwhile; () where nothing counts it."""


@dataclass
class TrainedCase:
    """What one case left behind."""

    case: Case
    phase: Phase
    deadline: Deadline
    jobs: Sequence[TrainedJob]
    """Those at work."""
    network: fidelity.NetworkEvidence
    """What was counted meanwhile."""
    compares: bool = True
    """Whether the model has all of an iteration that was measured."""
    events: Sequence[PlayedEvent] = ()
    """What became of links, known when the whole training is over."""
    spans: Sequence[Span] = ()
    """What the only job did with its time, where its workers may fail."""
    exchanged: Sequence[StateExchange] = ()
    """What its ranks sent each other of their states."""
    cuts_late_s: Sequence[float] = ()
    """How much later than asked for links carried nothing, and carried again, as datacenters were cut off."""
    restarts_late_s: Sequence[float] = ()
    """By how much workers of each restart came to be connected later than its slot was over; 0 where that had room."""
    saves_late_s: Sequence[float] = ()
    """The same of states that were written to disk."""
    swap: Swap | None = None
    """What it took to go on with it from the case before; None of one that begins."""
    disturbed_before: Sequence[fidelity.DisturbedTry] = ()
    """What its training left behind before, which was put aside."""


class TrainingPart(NamedTuple):
    """A case that is about to be trained."""

    case: Case
    phase: Phase
    jobs: Sequence[TrainedJob]
    """Those at work."""
    training: TrainingPrediction
    """What is predicted of it, and when events come."""

    @property
    def compared(self) -> list[int]:
        """The rounds that count: of which the model has all."""
        return self.training.compared(self.phase.measured)
