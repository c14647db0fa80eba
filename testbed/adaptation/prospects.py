"""What an iteration would take with each schedule that the job could swap to, if links and ranks are as believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from testbed.adaptation.estimates import CHANGED, Belief, PathEstimate, between, exactly
from testbed.adaptation.sightings import PROBE_BYTES, Crossing, Pair, PlacedRanks, sighting
from testbed.errors import BadInput, DoesNotFit
from testbed.model.simulate import makespan, simulate
from testbed.pipeline.ir import KINDS, Action, Row, Schedule
from testbed.pipeline.link import LinkCost, crossing_s
from testbed.pipeline.problem import Problem, Route
from testbed.plan import costs
from testbed.plan.plan import Plan
from testbed.plan.routes import datacenter_of
from testbed.schedule.registry import family_of, generate_choice
from testbed.spec.choice import ScheduleChoice

MOST_KEPT = 128
"""Schedules that stay candidates although they were made for what is no longer believed, the latest ones."""


SHARES = (0.25, 0.5, 0.75)
"""Of the way from what was believed to what is: what schedules are made for beside these two; at first from links that
are half as good. One that is made for the middle may be good at both ends, where each end's own is good at one."""

AS_FAST = 1e-4
"""By so much of an iteration schedules may differ to be as fast as each other: no clock of a job tells them apart."""


class Prospect(NamedTuple):
    """A schedule, and what an iteration is predicted to take with it."""

    label: str
    schedule: Schedule
    predicted_s: float


class PipelineEnds(NamedTuple):
    """Two ranks of one of a job's pipelines."""

    pipeline: int
    source: int
    target: int

    def route(self, problem: Problem) -> Route:
        """The links that a message takes between them."""
        return problem.pipelines[self.pipeline].route(self.source, self.target)


class AdaptableJob(NamedTuple):
    """The job that adapts, as it was planned."""

    plan: Plan
    ranks: PlacedRanks
    choices: tuple[ScheduleChoice, ...]
    """What it may swap between: stages stay on their ranks, so no weights have to move."""
    problems: tuple[Problem, ...]
    """Of each choice, as planned."""

    def pairs(self, problem: Problem) -> dict[Pair, PipelineEnds]:
        """The datacenters that messages of pipelines go between, each pair with two ranks that send them."""
        between = [ends for a, b in pairwise(problem.stage_to_rank) for ends in ((a, b), (b, a)) if a != b]
        found: dict[Pair, PipelineEnds] = {}
        for pipeline in range(len(problem.pipelines)):
            for a, b in between:
                pair = self.sites_of(problem, PipelineEnds(pipeline, a, b))
                if pair[0] != pair[1]:
                    found.setdefault(pair, PipelineEnds(pipeline, a, b))
        return found

    def sites_of(self, problem: Problem, ends: PipelineEnds) -> Pair:
        """The datacenters of two ranks."""
        numbers = problem.numbers[ends.pipeline]
        return self.ranks.sites[numbers[ends.source]], self.ranks.sites[numbers[ends.target]]

    def nodes_of(self, problem: Problem, ends: PipelineEnds) -> tuple[str, str]:
        """Their nodes."""
        numbers, nodes = problem.numbers[ends.pipeline], self.plan.jobs[0].nodes
        return nodes[numbers[ends.source]], nodes[numbers[ends.target]]


def adaptable_job(plan: Plan, choices: Sequence[ScheduleChoice]) -> AdaptableJob:
    """The plan's only job with those of its choices that can be swapped: without solvers, stages where the first has
    them.

    Raises BadInput for several jobs, and for no choice.
    """
    job, *others = plan.jobs
    if others:
        expected = "one job: others on the same links cannot be told from a slower link"
        raise BadInput.of(job.workload.name, "jobs", len(plan.jobs), expected)
    able = [choice for choice in choices if not family_of(choice).solver]
    if not able:
        raise BadInput.of(job.workload.name, "schedules", len(choices), "one or more that need no solver")
    stages = costs.stages_of(job, able[0])
    alike = tuple(choice for choice in able if costs.stages_of(job, choice) == stages)
    places = tuple(job.mesh.coordinates(rank).pipeline_rank for rank in job.mesh.ranks)
    ranks = PlacedRanks(tuple(datacenter_of(node) for node in job.nodes), places)
    # what others send a job does not know: it is seen as slower links
    problems = tuple(replace(costs.problem(plan, choice), streams=()) for choice in alike)
    return AdaptableJob(plan, ranks, alike, problems)


def planned_belief(subject: AdaptableJob) -> Belief:
    """What the job believes as it begins."""
    problem = subject.problems[0]
    paths = {}
    for pair, ends in subject.pairs(problem).items():
        route = [problem.links[index] for index in ends.route(problem)]
        slowest = max(link.seconds_per_byte for link in route)
        delay_s, rate_bps = sum(link.delay_s for link in route), 8 / slowest if slowest else float("inf")
        paths[pair] = PathEstimate(exactly(delay_s), exactly(rate_bps))
    slots = {
        (rank, kind): exactly(problem.duration(Action(stage, kind, 0)))
        for stage, rank in enumerate(problem.stage_to_rank)
        for kind in KINDS
    }
    return Belief(paths, slots)


def believed(job: AdaptableJob, problem: Problem, belief: Belief) -> Problem:
    """The problem with what is believed in place of what is planned, wherever the two differ.

    What a link explains is a change of that link, for all that cross it; what no single link explains is a link of its
    own between two datacenters, whatever it really crosses.
    """
    links, unexplained = _changed_links(job, problem, belief)
    routes = [dict(pipeline.routes) for pipeline in problem.pipelines]
    for pair in unexplained:
        path = belief.paths[pair]
        links.append(LinkCost(path.delay_s.value, 8 / path.rate_bps.value))
        for number, mine in enumerate(routes):
            for (a, b), route in mine.items():
                if job.sites_of(problem, PipelineEnds(number, a, b)) == pair:
                    own_card = tuple(index for index in route if index in problem.cards)
                    mine[a, b] = (*own_card, len(links) - 1)
    pipelines = [pipeline._replace(routes=mine) for pipeline, mine in zip(problem.pipelines, routes, strict=True)]
    slots: list[tuple[float, ...]] = []
    for kind in KINDS:
        of_stages = [belief.slots[rank, kind].value for rank in problem.stage_to_rank]
        slots.append(tuple(of_stages))
    forward, backward, gradient, weight = slots
    return replace(
        problem,
        links=tuple(links),
        pipelines=tuple(pipelines),
        forward_s=forward,
        backward_s=backward if problem.backward_s else (),
        input_s=gradient,
        weight_s=weight,
    )


def _changed_links(job: AdaptableJob, problem: Problem, belief: Belief) -> tuple[list[LinkCost], list[Pair]]:
    """The links as they must be now, by the fewest that can have changed, and between whom that explains nothing.

    A link that somebody crosses as planned is as planned. Short routes tell of links that longer ones share.
    """
    links, planned, unexplained = list(problem.links), planned_belief(job), list[Pair]()
    routes = {
        pair: [index for index in ends.route(problem) if index not in problem.cards]
        for pair, ends in job.pairs(problem).items()
    }
    changed = [pair for pair, path in belief.paths.items() if path != planned.paths[pair]]
    settled = {index for pair, route in routes.items() if pair not in changed for index in route}
    for pair in sorted(changed, key=lambda pair: len(routes[pair])):
        path, route = belief.paths[pair], routes[pair]
        sizes = PROBE_BYTES, max(problem.message_bytes)
        suspects = [index for index in route if index not in settled]
        if not _explains(links, route, path, sizes) and len(suspects) == 1:
            links[suspects[0]] = _without_others(path, [links[index] for index in route if index not in suspects])
        settled.update(route)
        if not _explains(links, route, path, sizes):
            unexplained.append(pair)
    return links, unexplained


def _explains(links: Sequence[LinkCost], route: Sequence[int], path: PathEstimate, sizes: Sequence[float]) -> bool:
    """Whether messages would take about the times that were seen."""
    crossed = [links[index] for index in route]
    return all(abs(crossing_s(crossed, size) / path.crossing_s(size) - 1) <= CHANGED for size in sizes)


def _without_others(path: PathEstimate, others: Sequence[LinkCost]) -> LinkCost:
    """What is left of a path for one of its links: of a rate above that of others nothing can be seen."""
    delay_s = path.delay_s.value - sum(link.delay_s for link in others)
    return LinkCost(max(0.0, delay_s), 8 / path.rate_bps.value)


class Prospects:
    """The candidates: every choice made for what is believed, for what was believed before, and for between the two."""

    def __init__(self, subject: AdaptableJob) -> None:
        self._subject = subject
        self._kept: dict[tuple[Row, ...], _Candidate] = {}
        self._last: Belief | None = None
        self._made: dict[tuple[object, ...], set[tuple[Row, ...]]] = {}
        self._rows: dict[str, tuple[Row, ...]] = {}
        self._times: dict[tuple[object, ...], _Times] = {}
        self._alone: dict[tuple[object, ...], dict[Pair, float]] = {}

    def under(self, belief: Belief) -> list[Prospect]:
        """All of them, the fastest first. Raises DoesNotFit where no choice has room."""
        if belief != self._last:
            other = _slower(belief) if self._last is None else self._last
            self._make([*(between(other, belief, share) for share in SHARES), belief])
            self._last = belief
        times = self.times(belief)
        found = [Prospect(kept.label, kept.schedule, times[rows]) for rows, kept in self._kept.items()]
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
        return [each for each in self.under(belief) if each.schedule.rows in self._made[belief.key]]

    def labelled(self, label: str, belief: Belief) -> Prospect | None:
        """That of them of the choice with a label; None where it has no room."""
        return next((each for each in self.made_for(belief) if each.schedule.rows == self._rows.get(label)), None)

    def beside(self, running: Prospect, belief: Belief) -> tuple[Prospect, list[Prospect]]:
        """The running schedule with what it is predicted to take now, and all candidates, that one among them."""
        rows = running.schedule.rows
        self._kept[rows] = self._kept.pop(rows)  # the latest, which is not given up
        found = self.under(belief)
        return next(each for each in found if each.schedule.rows == rows), found

    @property
    def every(self) -> list[Schedule]:
        """All that are candidates now."""
        return [kept.schedule for kept in self._kept.values()]

    def times(self, belief: Belief) -> dict[tuple[Row, ...], float]:
        """By its rows, what an iteration takes with each candidate if that is so."""
        known = self._times.pop(belief.key, None) or _Times(self._problems(belief), {})
        self._times[belief.key] = known
        for key in list(self._times)[:-MOST_KEPT]:
            del self._times[key]
        receives = self._subject.plan.jobs[0].workload.receives
        for rows, kept in self._kept.items():
            if rows not in known.seconds:
                known.seconds[rows] = makespan(known.problems[kept.choice], kept.schedule, receives=receives)
        return {rows: known.seconds[rows] for rows in self._kept}

    def alone(self, belief: Belief, running: Prospect) -> dict[Pair, float]:
        """Of what even the fastest message between two datacenters takes longer than a probe, the share that it would
        take by itself, if that is so: where a link is full, every message waits for another one.
        """
        rows = running.schedule.rows
        key = belief.key, rows
        if key not in self._alone:
            self.times(belief)
            problem = self._times[belief.key].problems[self._kept[rows].choice]
            receives = self._subject.plan.jobs[0].workload.receives
            probes_s = {pair: path.crossing_s(PROBE_BYTES) for pair, path in belief.paths.items()}
            trace = simulate(problem, running.schedule, receives=receives)
            seen = sighting(trace, self._subject.ranks, probes_s).crossings
            self._alone = {
                key: {
                    pair: _share(_alone_s(problem, ends, seen[pair].message_bytes), seen[pair])
                    for pair, ends in self._subject.pairs(problem).items()
                }
            }
        return self._alone[key]

    def _problems(self, belief: Belief) -> list[Problem]:
        return [believed(self._subject, problem, belief) for problem in self._subject.problems]

    def _make(self, beliefs: Sequence[Belief]) -> None:
        reasons = []
        for belief in beliefs:
            if belief.key in self._made:
                continue
            made = self._made.setdefault(belief.key, set())
            for number, (choice, problem) in enumerate(zip(self._subject.choices, self._problems(belief), strict=True)):
                try:
                    schedule = generate_choice(choice, problem).schedule
                except DoesNotFit as error:
                    reasons.append(error)
                    continue
                self._rows[choice.label] = schedule.rows
                if schedule.rows in made:  # as another choice has it, whose label stands for both
                    continue
                made.add(schedule.rows)
                self._kept.pop(schedule.rows, None)
                self._kept[schedule.rows] = _Candidate(choice.label, schedule, number)
        if not self._kept:
            raise reasons[0]
        for rows in list(self._kept)[:-MOST_KEPT]:
            del self._kept[rows]


def _alone_s(problem: Problem, ends: PipelineEnds, size: float) -> float:
    """What a message between two ranks takes over idle links."""
    return crossing_s([problem.links[index] for index in ends.route(problem)], size)


def _share(alone_s: float, seen: Crossing) -> float:
    longer_s = seen.message_s - seen.probe_s
    return min(1.0, max(0.0, alone_s - seen.probe_s) / longer_s) if longer_s > 0 else 1.0


def _slower(belief: Belief) -> Belief:
    """With links that are half as good: on the way there a job finds what to begin with that bears a change."""
    paths = {
        pair: PathEstimate(exactly(2 * path.delay_s.value), exactly(path.rate_bps.value / 2))
        for pair, path in belief.paths.items()
    }
    return replace(belief, paths=paths)


class _Candidate(NamedTuple):
    label: str
    schedule: Schedule
    choice: int


class _Times(NamedTuple):
    problems: list[Problem]
    seconds: dict[tuple[Row, ...], float]
