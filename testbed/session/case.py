"""One case of a plan: trained by all its jobs, collected, with what the network's counters say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from testbed.errors import RunFailed
from testbed.goodput.elastic_training import elastic_training, range_of
from testbed.goodput.spans import foretold
from testbed.goodput.state_times import keeping_of
from testbed.lab import host_settings
from testbed.model.host_prediction import predict_jobs_on_host
from testbed.plan.costs import schedule_of
from testbed.plan.events import at_work, changed, own_phase, phases, swaps, trained
from testbed.plan.moved_weights import require_movable
from testbed.plan.plan import Case, Plan
from testbed.plan.timeline import LinkEvent
from testbed.plan.traffic import PlannedTraffic, notices_ahead, swap_acknowledgements_s, swap_traffic
from testbed.planning.drawn_iterations import slower_ranks, varies
from testbed.planning.prediction import loads_of, parts_of, ranges_of_training, training_of
from testbed.planning.training_prediction import PlacedEvent
from testbed.progress import ProgressStep
from testbed.routing.rerouting import with_shift, with_swap
from testbed.schedule.registry import Generated
from testbed.session import deadlines
from testbed.session.deadlines import Deadline
from testbed.session.elastic_case import elastic_rounds, elastic_traffic
from testbed.session.elastic_rounds import ElasticRounds
from testbed.session.event_player import EventPlayer
from testbed.session.free_loop import FreeIterations
from testbed.session.loop import Resumed, acknowledged_s, start_margin_s
from testbed.session.message_costs import MessageCosts
from testbed.session.neighbour_memory import NeighbourMemory
from testbed.session.network_accounts import Beside, CountedNetwork
from testbed.session.recovering_rounds import Failing, RecoveringJob, RecoveringRounds
from testbed.session.rounds import Round, WitnessedIterations, WitnessedRounds, task_of, timed_schedule
from testbed.session.running import GoesOn, Running
from testbed.session.timers import TimedAction
from testbed.session.trained import Swap, TrainedCase, TrainedJob, TrainingPart
from testbed.trace.predictions import predicted_times_s
from testbed.train.assignment import TimedSchedule, TrainingTask
from testbed.units import show_time


class TrainedPlan(NamedTuple):
    """Cases that were trained one behind the other."""

    plan: Plan
    """With the swaps of schedules that were decided while it was trained, and a case for each."""
    done: Sequence[TrainedCase]


def train(
    running: Running,
    plan: Plan,
    cases: Sequence[Case],
    made: Sequence[Sequence[Generated]],
    costs: Mapping[int, MessageCosts] | None,
    change: Callable[[Plan, Case, Case], None],
) -> TrainedPlan:
    """Train one case, and collect what happened; `made` has for each case the schedule of every job.

    Of `cases` the first one begins; each other goes on with its training once `change` has made of the case before it
    what it is, and workers have its schedule. Raises RunFailed; what was measured until then is in the results.
    BadInput, before anything is trained, for a schedule that no training can go on with.
    """
    for before, after in pairwise(made):
        for job, now in enumerate(generated.schedule for generated in after):
            was, workload = before[job].schedule, plan.jobs[job].workload
            require_movable(workload, was.stage_to_rank, now.stage_to_rank, now.name, "stages")
    return _UnderWay(running, plan, list(cases), list(made), costs).trained(change)


def _explained(rounds: Iterable[Round], player: EventPlayer | None) -> Iterator[Round]:
    """The same; a RunFailed says which links send nothing then."""
    try:
        yield from rounds
    except RunFailed as error:
        down = "" if player is None else player.down()
        raise RunFailed(f"{down}: {error}" if down else str(error)) from error


def _tasks(plan: Plan, parts: Sequence[TrainingPart]) -> dict[int, TrainingTask]:
    """By number of each job that is ever at work, what its workers do: from the first round of a case in which it is
    at work to the last one."""
    first = {job.number: job for part in reversed(parts) for job in part.jobs}
    return {
        number: task_of(
            job.job,
            job.load,
            len(job.rounds),
            joins=job.rounds.start,
            evidence=True,
            swaps=swaps(plan),
            slower=job.slower,
        )
        for number, job in sorted(first.items())
    }


def _swaps(before: TrainingPart, part: TrainingPart) -> dict[int, TimedSchedule]:
    """By number of each job that is at work in both, its schedule where that is another one than before."""
    was = {job.number: _timed(job) for job in before.jobs}
    found = {job.number: _timed(job) for job in part.jobs if job.number in was}
    return {number: timed for number, timed in found.items() if timed != was[number].renamed(timed.schedule.name)}


def _timed(job: TrainedJob) -> TimedSchedule:
    return timed_schedule(job.job, job.load, drawn=True, slower=job.slower)


@dataclass
class _UnderWay:
    """A training, part by part; behind the last one another may come."""

    running: Running
    plan: Plan
    cases: list[Case]
    made: list[Sequence[Generated]]
    costs: Mapping[int, MessageCosts] | None
    parts: list[TrainingPart] = field(init=False)
    ended: list[Round] = field(default_factory=list)
    """The rounds that are over."""
    began_s: float = 0.0
    """The latest one, by the monotonic clock."""

    def __post_init__(self) -> None:
        self.parts = [self._part(which) for which in range(len(self.cases))]

    def _part(self, which: int, *, shortened: bool = False) -> TrainingPart:
        """One of them; `shortened` where it is predicted again, now that another one goes on before it was to end."""
        running, plan, case, costs = self.running, self.plan, self.cases[which], self.costs
        phase, made = phases(plan, self.cases)[which], self.made[which]
        loads, working = loads_of(plan, case, [generated.schedule for generated in made]), at_work(plan, case)
        training = whole = training_of(plan, case, loads, strict=not self.ended)  # then a controller has chosen it
        elastic = None
        if plan.recovery is not None and plan.recovery.elastic is not None:
            elastic = elastic_training(plan, case)
            training = elastic.prediction
        compared, predicted = training.compared(phase.measured), training.trace
        usual = whole.usual(compared)  # of all replicas, also where some are away
        if not shortened:
            running.results.add_trace(case.label, "predicted", predicted)
        known, loads = None if shortened else running.ranges.get(case.label), list(whole.loads_of(usual))
        if elastic is not None:
            known = [range_of(plan, case, elastic)]
        jobs, ranges = [], ranges_of_training(plan, case, training) if known is None else known
        on_host, free = None, plan.rounds == "free"
        if costs is not None and not free:  # of which an iteration of all jobs is predicted
            on_host = predict_jobs_on_host(loads, [costs[number].extra for number in working])
        each = (parts_of(plan, case, trace) for trace in (predicted, whole.trace))
        for index, (number, part, of_all) in enumerate(zip(working, *each, strict=True)):
            own = own_phase(plan, case, phase, number).measured
            times_s = predicted_times_s(part, training.compared(own))
            beyond_s = float(np.median(times_s) - predicted_times_s(of_all, [usual])[0])
            here = None if on_host is None else on_host[index].moved(beyond_s)
            if here is not None and varies(plan, case):
                here = here.with_spread(times_s)
            mine = None if costs is None else costs[number], here
            rounds_of = trained(plan, self.cases, number)
            each_load = loads[index], whole.loads_of_job(index)
            shown = plan.jobs[number], rounds_of, made[number], *each_load, beyond_s, part, ranges[index]
            began = made[number].schedule.rows == self.made[0][number].schedule.rows
            slower = slower_ranks(plan, case, number)
            jobs.append(TrainedJob(number, *shown, *mine, began_with_it=began, slower=slower, free=free))
        return TrainingPart(case, phase, jobs, training)

    def trained(self, change: Callable[[Plan, Case, Case], None]) -> TrainedPlan:
        """Rounds of all jobs. What was measured goes into the results, whatever ends them."""
        running, results, reporter, parts = self.running, self.running.results, self.running.reporter, self.parts
        deadline = max((deadlines.of_training(part.training) for part in parts), key=lambda one: one.seconds)
        count, title = parts[-1].phase.rounds.stop, parts[0].case.label
        if self.plan.rounds == "free":
            count = sum(len(job.rounds) for job in parts[0].jobs)
        with reporter.step(f"training {title}", total=count) as step, host_settings.real_time(running.real_time):
            reporter.note(f"each iteration has to end within {deadline}")
            if warmup := parts[0].phase.warmup:
                reporter.note(f"the first {warmup} of {count} iterations warm up, and do not count")
            try:
                if self.plan.rounds == "free":
                    return TrainedPlan(self.plan, [self._freely(step, deadline)])
                done = self._in_rounds(step, deadline, change)
                return TrainedPlan(self.plan, done)  # the plan as it is now: controllers add to it
            finally:
                for part in parts:
                    for job in part.jobs:
                        if job.measured:
                            results.add_trace(part.case.label, "measured", job.as_part())
                            results.add_iterations(part.case.label, job.rows, job=job.number)

    def _freely(self, step: ProgressStep, deadline: Deadline) -> TrainedCase:
        """Iterations of every job, as they end, of the only part."""
        running, (part,) = self.running, self.parts
        tasks = _tasks(self.plan, self.parts)

        def halfway(job: int, number: int) -> None:
            late_s, name = deadline.seconds / 2, part.jobs[job].job.name
            running.reporter.note(f"iteration {number} of {name} is still under way after {show_time(late_s)}")

        def begins(start_s: float) -> None:
            if running.background is not None:
                running.background.begin(start_s, 0.0)

        margin_s = start_margin_s(self.plan, part.case)
        free = FreeIterations(running.loop.of(list(tasks)), list(tasks.values()), deadline, margin_s, halfway, begins)
        running.network.begin()
        for ended in WitnessedIterations(free, list(tasks), running.witness, running.reporter.note):
            self._note(ended)
            job = next(job for job in part.jobs if job.number in ended.records)
            what = "warming up" if job.rows[-1].warmup else "measured"
            step.advance(f"training {part.case.label}: {job.job.name} {show_time(job.rows[-1].makespan_s)}, {what}")
        if running.background is not None:
            running.background.pause()
        iterations = {job.number: len(job.rounds) for job in part.jobs}
        counted = running.network.end(self.plan, part.case, iterations)
        running.results.add_links(part.case.label, counted.links)
        return TrainedCase(part.case, part.phase, deadline, part.jobs, counted.evidence)

    def _in_rounds(
        self, step: ProgressStep, deadline: Deadline, change: Callable[[Plan, Case, Case], None]
    ) -> list[TrainedCase]:
        """Rounds of all jobs, part after part."""
        running, results, parts = self.running, self.running.results, self.parts
        done: list[TrainedCase] = []
        player = None if running.links is None else EventPlayer(running.links, self.plan, self._events())
        going = self._rounds(deadline, partial(self._announce, player))
        for index, part in enumerate(parts):  # while it grows
            swap = None
            running.network.begin()
            if index:
                assert isinstance(going, WitnessedRounds)  # of a plan whose workers fail a case is a training
                swap = self._swap(going, parts[index - 1], part, change)
                running.network.begin()
            for ended in _explained(going, player):
                if running.background is not None:
                    running.background.pause()
                self._note(ended)
                number = len(self.ended) - 1
                what = "measured" if number in part.phase.measured else "warming up"
                times = ", ".join(show_time(job.rows[-1].makespan_s) for job in part.jobs)
                step.advance(f"training {part.case.label}: {times}, {what}")
                if number in part.phase.measured and index + 1 == len(parts) and self._swapped(part, number):
                    if player is not None:
                        player.expect(self._events())
                    break
                if number == part.phase.rounds[-1]:
                    break
            if self.running.adaptation is None and index + 1 < len(parts):
                self._await_acknowledgements(part.case)
            played = player.end() if player is not None and index + 1 == len(parts) else []
            counted = self._counted(going, index)
            results.add_links(part.case.label, counted.links)
            compares = part.training.by_chance.isdisjoint(part.compared)
            collected = parts[index].phase, deadline, part.jobs, counted.evidence, compares
            ended_part = TrainedCase(part.case, *collected, swap=swap)
            if isinstance(going, RecoveringRounds | ElasticRounds):
                ended_part.spans, ended_part.exchanged = going.spans, going.exchanged
                ended_part.cuts_late_s = going.cuts_late_s
                ended_part.restarts_late_s, ended_part.saves_late_s = going.restarts_late_s, going.saves_late_s
            done.append(ended_part)
        for ended_case in done:
            ended_case.events = [one for one in played if one.iteration in ended_case.phase.rounds]
            results.add_link_events(ended_case.case.label, [one._asdict() for one in ended_case.events])
        return done

    def _counted(self, going: WitnessedRounds | RecoveringRounds | ElasticRounds, index: int) -> CountedNetwork:
        """What was counted of the network while a part was trained, beside what it should have carried."""
        part = self.parts[index]
        iterations = {job.number: len(part.phase.rounds) for job in part.jobs}
        beside: Beside = going.states if isinstance(going, RecoveringRounds) else self._posted_across(index)
        if isinstance(going, ElasticRounds):  # not all of the job has a part in every iteration
            iterations, beside = {}, elastic_traffic(self.plan, part.case, going.spans)
        elif self.running.adaptation is not None:
            looks = zip(beside, self.running.adaptation.carried(), strict=True)
            beside = [PlannedTraffic(posted.wire_bytes + look.wire_bytes, 0) for posted, look in looks]
        return self.running.network.end(self.plan, part.case, iterations, beside)

    def _posted_across(self, index: int) -> list[PlannedTraffic]:
        """Notices of the receives that are posted while a part is trained, and are of the one after it; without those
        of its own that were posted before it."""
        part, every = self.parts[index], [{job.number for job in part.jobs} for part in self.parts]
        before, after = every[index - 1 : index], every[index + 1 : index + 2]
        posted, known = (
            notices_ahead(self.plan, part.case, every[index].intersection(*beside) if beside else ())
            for beside in (after, before)
        )
        return [PlannedTraffic(there - then, 0) for there, then in zip(posted, known, strict=True)]

    def _swap(
        self,
        going: WitnessedRounds,
        before: TrainingPart,
        part: TrainingPart,
        change: Callable[[Plan, Case, Case], None],
    ) -> Swap:
        """Have a part go on from the one before it. Raises RunFailed."""
        if changed(self.plan, before.case, part.case).lost:  # with acknowledgements that are still on their way
            time.sleep(start_margin_s(self.plan, before.case))
        begun_s = time.monotonic()
        change(self.plan, before.case, part.case)
        going.swap(swapped := _swaps(before, part))
        going.shift({job.number: job.load.start_s for job in part.jobs})
        took_s = time.monotonic() - begun_s
        if self.running.adaptation is not None:
            self.running.adaptation.swapped(took_s)
        if any(any(swap_traffic(self.plan, before.case, part.case, job)) for job in swapped):
            # notices of receives and acknowledgements of weights are still on their way
            weights_s = [swap_acknowledgements_s(self.plan, before.case, part.case, job) for job in swapped]
            usual_s = start_margin_s(self.plan, part.case)
            time.sleep(max(weights_s) + self._margin_s([part.case], usual_s, part.phase.rounds.start))
        return Swap(took_s, self.running.network.carried())

    def _announce(self, player: EventPlayer | None, number: int, start_s: float) -> None:
        """The round of a number begins at this instant of the monotonic clock. Raises RunFailed."""
        warmup, adaptation = self.plan.jobs[0].workload.warmup, self.running.adaptation
        if adaptation is not None and number > warmup:
            ended = self.ended[-1]
            took_s = [job.load.start_s + ended.row(job.number).makespan_s for job in self._part_of(number - 1).jobs]
            adaptation.goes_on(number - warmup, start_s - self.began_s - max(took_s))
        self.began_s = start_s
        if player is not None:
            player.announce(number, start_s)
        if self.running.background is not None:
            training = self._part_of(number).training
            self.running.background.begin(start_s, training.traffic_s.get(number))

    def _part_of(self, number: int) -> TrainingPart:
        """The one that has the round of a number."""
        return next(part for part in self.parts if number in part.phase.rounds)

    def _rounds(
        self, deadline: Deadline, announce: Callable[[int, float], None]
    ) -> WitnessedRounds | RecoveringRounds | ElasticRounds:
        running, recovery = self.running, self.plan.recovery
        if recovery is None:
            return self._witnessed(deadline, announce, None)
        if recovery.checkpoints is None:
            (part,) = self.parts
            training = elastic_training(self.plan, part.case)
            return elastic_rounds(running, self.plan, part.case, training, deadline, partial(self._noted, deadline))
        ((job,),) = (part.jobs for part in self.parts)
        assert running.workers is not None  # where they cannot be replaced, such a plan is refused
        times_s, case = predicted_times_s(job.predicted, job.rounds), self.parts[0].case
        keeping, memory = keeping_of(self.plan, case), None
        spans = foretold(times_s.__getitem__, len(job.rounds), recovery, keeping)
        begin = partial(self._resumed, deadline)
        if recovery.checkpoints.memory is not None:
            memory = NeighbourMemory(self.plan, case, keeping, running.loop, running.workers, running.network)
        shared = running.loop, running.workers, running.network, deadline, memory
        failing = Failing(self.plan, running.links)
        return RecoveringRounds(RecoveringJob(spans, failing, begin, *shared))

    def _resumed(
        self, deadline: Deadline, resumed: Resumed | None, announce: Callable[[int, float], None]
    ) -> WitnessedRounds:
        return self._witnessed(deadline, announce, resumed)

    def _witnessed(
        self, deadline: Deadline, announce: Callable[[int, float], None], resumed: Resumed | None
    ) -> WitnessedRounds:
        running = self.running
        cases = [part.case for part in self.parts]
        if self.running.adaptation is not None:
            cases += self.running.adaptation.cases
        usual_s = max(start_margin_s(self.plan, case) for case in cases)
        margin_s = partial(self._margin_s, cases, usual_s)
        tasks, noted = _tasks(self.plan, self.parts), partial(self._noted, deadline)
        return WitnessedRounds(running.loop, tasks, deadline, running.witness, margin_s, noted, announce, resumed)

    def _await_acknowledgements(self, case: Case) -> None:
        """Return when nothing of the rounds that have ended is on links any more."""
        time.sleep(acknowledged_s(self.plan, case, self._events_before(len(self.ended))))

    def _events_before(self, number: int) -> list[LinkEvent]:
        return [one.event for one in self._events() if one.round < number]

    def _margin_s(self, cases: Sequence[Case], usual_s: float, number: int) -> float:
        """By how much the round of a number is announced ahead: by what is usual, or what links take by then."""
        events = self._events_before(number)
        return max(usual_s, *(start_margin_s(self.plan, case, events) for case in cases)) if events else usual_s

    def _noted(self, deadline: Deadline, number: int) -> list[TimedAction]:
        late_s = deadline.seconds / 2
        line = f"iteration {number} is still under way after {show_time(late_s)}; it has to end within {deadline}"
        warmup, adaptation = self.plan.jobs[0].workload.warmup, self.running.adaptation
        timed = adaptation.timed(number - warmup) if adaptation is not None and number >= warmup else ()
        return [*timed, TimedAction(late_s, partial(self.running.reporter.note, line))]

    def _events(self) -> list[PlacedEvent]:
        return [event for part in self.parts for event in part.training.events if event.round in part.phase.rounds]

    def _note(self, ended: Round) -> None:
        self.ended.append(ended)
        for part in self.parts:
            for job in part.jobs:
                job.note(ended, part, own_phase(self.plan, part.case, part.phase, job.number))

    def _swapped(self, part: TrainingPart, number: int) -> bool:
        """Whether it was decided, after the round of a number, that another part goes on."""
        if self.running.adaptation is None:
            return False
        after = number + 1 - self.plan.jobs[0].workload.warmup
        over = number == part.phase.rounds[-1]
        traces = [self.ended[-1].trace(job.number) for job in part.jobs]
        self._await_acknowledgements(part.case)  # a probe behind them would see a longer delay
        chosen = self.running.adaptation.after(after, traces, over=over)
        if chosen is None:
            return False
        plan = replace(self.plan, adaptation=None)
        if isinstance(chosen, GoesOn):
            self.plan, case = with_swap(plan, part.case, *chosen, after)
            schedule = schedule_of(self.plan, case, job=0)
            assert schedule is not None
            made: Sequence[Generated] = [Generated(schedule, None)]
        else:
            self.plan, case = with_shift(plan, part.case, *chosen, after)
            made = self.made[-1]
        self.cases.append(case)
        self.made.append(made)
        shorter = self._part(len(self.cases) - 2, shortened=True)
        self.parts[-1] = part._replace(phase=shorter.phase)
        for mine, now in zip(part.jobs, shorter.jobs, strict=True):
            mine.load, mine.beyond_load_s = now.load, now.beyond_load_s
            mine.predicted_range, mine.on_this_host = now.predicted_range, now.on_this_host
        added = self._part(len(self.cases) - 1)
        for ended in self.ended:
            for job in added.jobs:
                job.note(ended, added, added.phase)
        self.parts.append(added)
        self.running.reporter.note(f"going on with {case.label}")
        return True
