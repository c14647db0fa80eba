"""Several jobs that train in rounds over links that they share, and one controller that sees the times of all: what it
begins to believe, what it sees, and what an iteration of all would take with other starts.

What counts is the mean of the jobs' iterations, each from its own start: that one begins later costs it nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from testbed.adaptation.adaptable_job import AdaptableJob, PipelineEnds, links_of, one_of_several, planned_belief
from testbed.adaptation.believed_problem import believed_together
from testbed.adaptation.candidate import JobCandidate, JobSetting, Prospect
from testbed.adaptation.estimates import Belief, between
from testbed.adaptation.prospects import MOST_KEPT, SHARES, share_alone, slower
from testbed.adaptation.sightings import PROBE_BYTES, ActionTimes, Crossing, Path, RankKind, Sighting, sighting
from testbed.adaptation.swap_costs import Sends, nothing_sent
from testbed.errors import BadInput
from testbed.model.lower import Load
from testbed.model.shifted import ShiftedJobs
from testbed.model.simulate import ends_of_jobs, simulate_jobs
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem
from testbed.plan.costs import schedule_of
from testbed.plan.events import starts_of
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.planning.ties import ranges_of_orders, worst_s
from testbed.routing.start_search import Starts, StartSearch, best_starts
from testbed.trace.tables import Trace
from testbed.units import show_time

WITHIN = 0.25
"""Of the shortest iteration alone two jobs are apart at most: as `interleave` has it."""

MOST_TRIED = 400
"""Starts that are tried for what is believed, while jobs wait: two jobs have a third of that."""

MOST_AT_WORST = 4
"""Of them, beside the best, so many are looked at for what they take where that hangs on who comes first."""


class JobsInRounds(NamedTuple):
    """The jobs of a plan, as they are in its first case, and what of it may change: when they begin."""

    plan: Plan
    jobs: tuple[AdaptableJob, ...]
    schedules: tuple[Schedule, ...]
    steps: int
    """Places to either side at which starts are looked for."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All that any of them uses."""
        return tuple(dict.fromkeys(path for job in self.jobs for path in job.recipes[0].setting.paths))

    @property
    def begins(self) -> Prospect:
        """As the plan has it."""
        return self.starting(starts_of(self.plan, self.plan.cases[0]))

    def starting(self, starts_s: Starts, predicted_s: float = float("nan")) -> Prospect:
        """They begin at these times."""
        later = zip(self.plan.jobs, starts_s, strict=True)
        said = " and ".join(f"{job.name} {show_time(start_s)} later" for job, start_s in later if start_s > 0)
        return Prospect(said or "all at once", JobSetting(0, self.paths, (), starts_s), self.schedules, predicted_s)

    def watched(self, path: Path) -> int:
        """Of the jobs that use a path, the place of the one whose messages are looked at: the longest."""
        users = [place for place, job in enumerate(self.jobs) if path in job.recipes[0].setting.paths]
        return max(users, key=lambda place: max(self.jobs[place].recipes[0].problem.message_bytes, default=0.0))

    def ends(self, path: Path) -> PipelineEnds:
        """Two ranks of that job, counted in it, which send messages there."""
        job = self.jobs[self.watched(path)]
        return job.pairs(job.recipes[0].problem)[path.pair]

    def nodes_of(self, path: Path) -> tuple[str, str]:
        """Their nodes."""
        job = self.jobs[self.watched(path)]
        return job.nodes_of(job.recipes[0].problem, self.ends(path))

    @property
    def message_bytes(self) -> float:
        """Of the longest message of a pipeline on the wire, as planned."""
        return max(job.message_bytes for job in self.jobs)

    def belief(self) -> Belief:
        """What is believed as they begin: as planned."""
        each = [planned_belief(job) for job in self.jobs]
        paths = {path: estimate for one in each for path, estimate in one.paths.items()}
        slots = {which: slot for one in each for which, slot in one.slots.items()}
        return Belief(paths, slots, frozenset(paths))

    def believed(self, belief: Belief) -> list[Problem]:
        """The problem of every job, with what is believed."""
        return believed_together([(job, job.recipes[0]) for job in self.jobs], self.belief(), belief)

    def loads(self, problems: Sequence[Problem], starts_s: Starts) -> list[Load]:
        """What they put on the network."""
        every = zip(problems, self.schedules, starts_s, self.plan.jobs, strict=True)
        return [Load(problem, schedule, begin_s, job.workload.receives) for problem, schedule, begin_s, job in every]

    def seen(self, traces: Sequence[Trace], probes_s: Mapping[Path, float]) -> Sighting:
        """What the times of an iteration of every job say, each from its own start."""
        crossings, slots, total_s = dict[Path, Crossing](), dict[RankKind, ActionTimes](), 0.0
        for place, (job, trace) in enumerate(zip(self.jobs, traces, strict=True)):
            mine = {path: probes_s[path] for path in job.recipes[0].setting.paths if path in probes_s}
            own = sighting(trace, job.ranks, mine)
            crossings |= {path: found for path, found in own.crossings.items() if self.watched(path) == place}
            slots |= own.slots
            total_s += own.iteration_s
        return Sighting(total_s / len(self.jobs), crossings, slots)


def jobs_in_rounds(plan: Plan, steps: int) -> JobsInRounds:
    """The jobs of a plan whose first case has their schedules. Raises BadInput where one has no times for its actions
    or its schedule is not made yet.
    """
    schedules = []
    for number, job in enumerate(plan.jobs):
        schedule = schedule_of(plan, plan.cases[0], job=number)
        if schedule is None:
            expected = "seconds for F, I and W: without them only a run can tell when they send"
            raise BadInput.of(job.workload.name, "pacing", "none", expected)
        schedules.append(schedule)
    jobs, network, known = [], planned(plan.network), dict[tuple[str, str], Path]()
    for number in range(len(plan.jobs)):
        mine = one_of_several(plan, number)
        (recipe,) = mine.recipes
        paths = []
        for path in recipe.setting.paths:
            first = known.setdefault(path.pair, path)
            paths.append(path if path == first else path._replace(over=links_of(network, path.route)))
        jobs.append(mine._replace(recipes=(recipe._replace(setting=recipe.setting._replace(paths=tuple(paths))),)))
    return JobsInRounds(plan, tuple(jobs), tuple(schedules), steps)


def best_starts_of(jobs: JobsInRounds, loads: Sequence[Load]) -> Starts:
    """When jobs with these loads begin best, found from where they do: by the mean of their iterations, at worst where
    that hangs on who comes first.
    """
    alone_s = [ends_of_jobs([load._replace(start_s=0.0)])[0] for load in loads]
    known, shifted = dict[Starts, tuple[float, ...]](), ShiftedJobs(loads)

    def offer(starts_s: Starts) -> tuple[float, ...]:
        if starts_s not in known:
            known[starts_s] = (sum(shifted.times_s(starts_s)) / len(starts_s),)
        return known[starts_s]

    def over() -> bool:
        return len(known) >= MOST_TRIED

    by_name = sorted(range(len(loads)), key=lambda number: jobs.plan.jobs[number].name)
    begin = tuple(load.start_s for load in loads)
    found = best_starts(StartSearch(offer, over, by_name, WITHIN * min(alone_s), jobs.steps), begin)
    few = [found, *sorted(known, key=known.__getitem__)[:MOST_AT_WORST]]
    return min(few, key=lambda starts_s: worst_mean_s(_starting(loads, starts_s)))


def _starting(loads: Sequence[Load], starts_s: Starts) -> list[Load]:
    return [load._replace(start_s=begin_s) for load, begin_s in zip(loads, starts_s, strict=True)]


def worst_mean_s(loads: Sequence[Load]) -> float:
    """The mean of the jobs' iterations, each at worst."""
    times = [end_s - load.start_s for end_s, load in zip(ends_of_jobs(loads), loads, strict=True)]
    worst = [worst_s(*each) for each in zip(times, ranges_of_orders(loads), strict=True)]
    return sum(worst) / len(worst)


class StartProspects:
    """The candidates: the starts that are best for what is believed, for what was believed before, and between them."""

    def __init__(self, jobs: JobsInRounds) -> None:
        self._jobs, self._last = jobs, slower(jobs.belief())
        self._kept: dict[Starts, None] = {jobs.begins.setting.starts_s: None}
        self._made: set[tuple[object, ...]] = set()
        self._problems: dict[tuple[object, ...], list[Problem]] = {}
        self._times: dict[tuple[object, ...], dict[Starts, float]] = {}
        self._alone: dict[tuple[object, ...], dict[Path, float]] = {}

    def beside(self, running: Prospect, belief: Belief) -> tuple[Prospect, list[Prospect]]:
        """The running candidate with what it is predicted to take now, and all of them, the fastest first."""
        if belief != self._last:
            for share in SHARES:
                self._make(between(self._last, belief, share), running)
            self._last = belief
        self._make(belief, running)
        times = self.times(belief)
        found = [self._jobs.starting(starts_s, times[self._candidate(starts_s)]) for starts_s in self._kept]
        found.sort(key=lambda prospect: prospect.predicted_s)
        return next(each for each in found if each.candidate == running.candidate), found

    def times(self, belief: Belief) -> dict[JobCandidate, float]:
        """What an iteration takes with each candidate if that is so."""
        known = self._times.setdefault(belief.key, {})
        for starts_s in self._kept:
            if starts_s not in known:
                known[starts_s] = worst_mean_s(self._jobs.loads(self._problems_of(belief), starts_s))
        return {self._candidate(starts_s): known[starts_s] for starts_s in self._kept}

    def as_planned(self, seen: Sighting, running: Prospect) -> Sighting:
        """What is seen: no start makes other messages or actions."""
        return seen

    def alone(self, belief: Belief, running: Prospect) -> dict[Path, float]:
        """Of what even the fastest message between two datacenters takes longer than a probe, the share that it would
        take by itself, if that is so.
        """
        key = belief.key, running.candidate
        if key not in self._alone:
            jobs, problems = self._jobs, self._problems_of(belief)
            probes_s = {path: belief.paths[path].crossing_s(PROBE_BYTES) for path in jobs.paths}
            trace = simulate_jobs(jobs.loads(problems, running.setting.starts_s))
            seen = jobs.seen(parts(jobs, trace, running.setting.starts_s), probes_s).crossings
            self._alone[key] = {
                path: share_alone(problems[jobs.watched(path)], jobs.ends(path), crossing)
                for path, crossing in seen.items()
            }
        return self._alone[key]

    def sends_s(self, belief: Belief) -> Sends:
        """Swaps send nothing."""
        return nothing_sent

    def in_the_way(self, paths: Collection[Path], running: Prospect) -> bool:
        """There are no paths but those that are used."""
        return True

    @property
    def message_bytes(self) -> float:
        """Of any of them."""
        return self._jobs.message_bytes

    @property
    def every(self) -> list[Prospect]:
        """All that are candidates now; nothing is predicted of them."""
        return [self._jobs.starting(starts_s) for starts_s in self._kept]

    def _candidate(self, starts_s: Starts) -> JobCandidate:
        return self._jobs.starting(starts_s).candidate

    def _problems_of(self, belief: Belief) -> list[Problem]:
        if belief.key not in self._problems:
            self._problems[belief.key] = self._jobs.believed(belief)
        return self._problems[belief.key]

    def _make(self, belief: Belief, running: Prospect) -> None:
        if belief.key in self._made:
            return
        self._made.add(belief.key)
        mine = running.setting.starts_s
        self._kept[best_starts_of(self._jobs, self._jobs.loads(self._problems_of(belief), mine))] = None
        self._kept = dict.fromkeys([*list(self._kept)[-MOST_KEPT:], mine])


def parts(jobs: JobsInRounds, trace: Trace, starts_s: Starts) -> list[Trace]:
    """Of a trace of all of them, the part of each: its ranks counted from 0, its times from its own start."""
    found = []
    for number, (job, begin_s) in enumerate(zip(jobs.plan.jobs, starts_s, strict=True)):
        found.append(trace.of_job(number, job.mesh.ranks, begin_s))
    return found
