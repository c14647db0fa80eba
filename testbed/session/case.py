"""One case of a plan: trained by all its jobs, collected, with what the network's counters say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from testbed.judge import fidelity, iterations, parameter_checks
from testbed.lab import host_settings
from testbed.lab.machine_witness import Witness
from testbed.model.host_prediction import HostPrediction, predict_jobs_on_host
from testbed.model.lower import Load
from testbed.pipeline.memory import RankBytes
from testbed.plan.events import Phase, at_work, phases, trained
from testbed.plan.plan import Case, Job, Plan
from testbed.planning.prediction import RangesByLabel, loads_of, parts_of, ranges_of_training, training_of
from testbed.planning.ties import Range
from testbed.planning.training_prediction import PlacedEvent
from testbed.progress import Reporter
from testbed.results.directory import ResultsWriter
from testbed.schedule.registry import Generated
from testbed.session import deadlines
from testbed.session.deadlines import Deadline
from testbed.session.event_player import ChangingLinks, EventPlayer, PlayedEvent
from testbed.session.loop import Loop, start_margin_s
from testbed.session.message_costs import MessageCosts
from testbed.session.network_accounts import NetworkAccounts
from testbed.session.rounds import Round, WitnessedRounds, task_of, timed_schedule
from testbed.session.timers import TimedAction
from testbed.trace.predictions import predicted_times_s
from testbed.trace.tables import Trace, concatenate
from testbed.train.assignment import Fingerprint, TimedSchedule, TrainingTask, require_same_stages
from testbed.units import show_time


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


@dataclass
class TrainedJob:
    """What one job left behind in one case; its ranks count from 0, its times from its own start."""

    number: int
    job: Job
    rounds: range
    """Of the whole training, those in which it has a part."""
    generated: Generated
    load: Load
    """Where links change, that of the usual iteration."""
    beyond_load_s: float
    """By how much the median of what was predicted is more than the prediction of that; 0 where links do not change."""
    predicted: Trace
    """With all jobs at work."""
    predicted_range: Range | None
    """What may be predicted by who comes first; None where that is one time."""
    costs: MessageCosts | None
    """What this machine was measured to add until then; None on the virtual clock and without pacing."""
    on_this_host: HostPrediction | None
    """With these costs; None where there are none."""
    measured: list[Trace] = field(default_factory=list)
    rows: list[iterations.IterationRow] = field(default_factory=list)
    memory: Sequence[RankBytes] = ()
    """Per rank, as counted in the first iteration."""
    fingerprints: list[Fingerprint] = field(default_factory=list)
    """Of gradients and weights, all ranks together."""

    def note(self, ended: Round, phase: Phase) -> None:
        """Keep what came of an iteration; outside the case's own rounds that count, it is as one that warms up."""
        if not ended.records[self.number]:
            return
        self.memory = self.memory or [each.memory for each in ended.records[self.number] if each.memory is not None]
        self.fingerprints += parameter_checks.put_together(ended.records[self.number])
        row = ended.row(self.number)
        self.rows.append(row._replace(warmup=row.iteration not in phase.measured))
        if row.iteration in phase.rounds:
            self.measured.append(ended.trace(self.number))

    @property
    def counted(self) -> list[int]:
        """The iterations that count."""
        return [row.iteration for row in self.rows if not row.warmup]

    @property
    def median_s(self) -> float:
        """Of the iterations that count."""
        return float(np.median([row.makespan_s for row in self.rows if not row.warmup]))

    @property
    def predicted_s(self) -> float:
        """The median of what was predicted of the iterations that count, with all jobs at work."""
        return float(np.median(predicted_times_s(self.predicted, self.counted)))

    def as_part(self) -> Trace:
        """All measured iterations, as the part of a trace of all jobs."""
        return concatenate(self.measured).as_job(self.number, self.job.mesh.ranks, self.load.start_s)


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
    events: Sequence[PlayedEvent] = ()
    """What became of links."""


class _Part(NamedTuple):
    """A case that is about to be trained."""

    case: Case
    phase: Phase
    jobs: Sequence[TrainedJob]
    """Those at work."""
    longest_s: float
    """Of the iterations that are predicted."""
    events: Sequence[PlacedEvent]
    """What becomes of links, and when."""


def train(
    running: Running,
    plan: Plan,
    cases: Sequence[Case],
    made: Sequence[Sequence[Generated]],
    costs: Mapping[int, MessageCosts] | None,
    change: Callable[[Case, Case], None],
) -> list[TrainedCase]:
    """Train one case, and collect what happened; `made` has for each case the schedule of every job.

    Of `cases` the first one begins; each other goes on with its training once `change` has made of the case before it
    what it is, and workers have its schedule. Raises RunFailed; what was measured until then is in the results.
    BadInput, before anything is trained, for a schedule that no training can go on with.
    """
    for before, after in pairwise(made):
        for job, later in enumerate(after):
            require_same_stages(before[job].schedule, later.schedule)
    parts = [_part(running, plan, cases, number, made[number], costs) for number in range(len(cases))]
    deadline = deadlines.of_iteration(max(part.longest_s for part in parts))
    return _iterate(running, plan, parts, _tasks(plan, parts), deadline, change)


def _part(
    running: Running,
    plan: Plan,
    cases: Sequence[Case],
    which: int,
    made: Sequence[Generated],
    costs: Mapping[int, MessageCosts] | None,
) -> _Part:
    case, phase = cases[which], phases(plan, cases)[which]
    loads, working = loads_of(plan, case, [generated.schedule for generated in made]), at_work(plan, case)
    training = training_of(plan, case, loads)
    usual = training.usual(phase.measured)
    predicted, loads = training.trace, list(training.loads_of(usual))
    running.results.add_trace(case.label, "predicted", predicted)
    on_host = None if costs is None else predict_jobs_on_host(loads, [costs[number].extra for number in working])
    known = running.ranges.get(case.label)
    jobs, ranges = [], ranges_of_training(plan, case, training) if known is None else known
    for index, (number, part) in enumerate(zip(working, parts_of(plan, case, predicted), strict=True)):
        beyond_s = float(np.median(predicted_times_s(part, phase.measured)) - predicted_times_s(part, [usual])[0])
        mine = None if costs is None else costs[number], None if on_host is None else on_host[index].moved(beyond_s)
        rounds_of = trained(plan, cases, number)
        shown = plan.jobs[number], rounds_of, made[number], loads[index], beyond_s, part, ranges[index]
        jobs.append(TrainedJob(number, *shown, *mine))
    return _Part(case, phase, jobs, float(predicted.makespans().max()), training.events)


def _nothing(number: int, start_s: float) -> None:
    """Is done as a round begins."""


def _tasks(plan: Plan, parts: Sequence[_Part]) -> dict[int, TrainingTask]:
    """By number of each job that is ever at work, what its workers do: from the first round of a case in which it is
    at work to the last one."""
    first = {job.number: job for part in reversed(parts) for job in part.jobs}
    return {
        number: task_of(job.job, job.load, len(job.rounds), joins=job.rounds.start, evidence=True)
        for number, job in sorted(first.items())
    }


def _swaps(before: _Part, part: _Part) -> dict[int, TimedSchedule]:
    """By number of each job that is at work in both, its schedule where that is another one than before."""
    was = {job.number: _timed(job) for job in before.jobs}
    found = {job.number: _timed(job) for job in part.jobs if job.number in was}
    return {number: timed for number, timed in found.items() if timed != was[number].renamed(timed.schedule.name)}


def _timed(job: TrainedJob) -> TimedSchedule:
    return timed_schedule(job.job, job.load)


def _iterate(
    running: Running,
    plan: Plan,
    parts: Sequence[_Part],
    tasks: Mapping[int, TrainingTask],
    deadline: Deadline,
    change: Callable[[Case, Case], None],
) -> list[TrainedCase]:
    """Rounds of all jobs. What was measured goes into the results, whatever ends them."""
    results, reporter = running.results, running.reporter
    count, title = parts[-1].phase.rounds.stop, parts[0].case.label
    done: list[TrainedCase] = []
    with reporter.step(f"training {title}", total=count) as step, host_settings.real_time(running.real_time):
        reporter.note(f"each iteration has to end within {deadline}")
        if warmup := parts[0].phase.warmup:
            reporter.note(f"the first {warmup} of {count} iterations warm up, and do not count")
        try:
            margin_s = max(start_margin_s(plan, part.case) for part in parts)
            late_s = deadline.seconds / 2

            def noted(number: int) -> list[TimedAction]:
                line = (
                    f"iteration {number} is still under way after {show_time(late_s)}; it has to end within {deadline}"
                )
                return [TimedAction(late_s, partial(reporter.note, line))]

            # cases that go on from each other have other events than links that change
            player = None if running.links is None else EventPlayer(running.links, plan, parts[0].events)
            announce = _nothing if player is None else player.announce
            going = WitnessedRounds(running.loop, tasks, deadline, running.witness, margin_s, noted, announce)
            for index, part in enumerate(parts):
                if index:
                    change(parts[index - 1].case, part.case)
                    going.swap(_swaps(parts[index - 1], part))
                running.network.begin()
                for number, ended in zip(part.phase.rounds, going, strict=False):
                    for other in parts:
                        for job in other.jobs:
                            job.note(ended, other.phase)
                    what = "measured" if number in part.phase.measured else "warming up"
                    times = ", ".join(show_time(job.rows[-1].makespan_s) for job in part.jobs)
                    step.advance(f"training {part.case.label}: {times}, {what}")
                played = [] if player is None else player.end()
                results.add_link_events(part.case.label, [one._asdict() for one in played])
                counted = running.network.end(plan, part.case, len(part.phase.rounds))
                results.add_links(part.case.label, counted.links)
                done.append(TrainedCase(part.case, part.phase, deadline, part.jobs, counted.evidence, played))
        finally:
            for part in parts:
                for job in part.jobs:
                    if job.measured:
                        results.add_trace(part.case.label, "measured", job.as_part())
                        results.add_iterations(part.case.label, job.rows, job=job.number)
    return done
