"""The job that adapts, as planned: where it is, what its schedules are made by, and what it begins to believe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from testbed.adaptation.candidates import Setting
from testbed.adaptation.estimates import Belief, PathEstimate, exactly
from testbed.adaptation.sightings import Pair, PlacedRanks
from testbed.errors import BadInput
from testbed.pipeline.ir import KINDS, Action
from testbed.pipeline.problem import Problem, Route
from testbed.plan import costs
from testbed.plan.microbatches import require_microbatches
from testbed.plan.plan import Case, JobSchedule, Plan
from testbed.plan.routes import datacenter_of
from testbed.schedule.registry import family_of
from testbed.spec.choice import ScheduleChoice, with_ending

MICROBATCHES = "--microbatches"
"""The option with which a job has other numbers of them to choose from."""


class PipelineEnds(NamedTuple):
    """Two ranks of one of a job's pipelines."""

    pipeline: int
    source: int
    target: int

    def route(self, problem: Problem) -> Route:
        """The links that a message takes between them."""
        return problem.pipelines[self.pipeline].route(self.source, self.target)


class Recipe(NamedTuple):
    """What candidates are made by, each for what is believed then: a choice, in a setting."""

    label: str
    choice: ScheduleChoice
    setting: Setting
    problem: Problem
    """As planned."""


class AdaptableJob(NamedTuple):
    """The only job of a plan."""

    plan: Plan
    ranks: PlacedRanks
    stages: tuple[int, ...]
    """The pipeline rank of every stage under every choice, so that no weights have to move."""
    recipes: tuple[Recipe, ...]
    """The first one's setting is as planned."""

    @property
    def planned(self) -> Problem:
        """In that setting."""
        return self.recipes[0].problem

    @property
    def settings(self) -> dict[Setting, Recipe]:
        """All that there are, each with the first recipe that has it."""
        found: dict[Setting, Recipe] = {}
        for recipe in self.recipes:
            found.setdefault(recipe.setting, recipe)
        return found

    def labelled(self, label: str) -> Recipe:
        """The one of its recipes that is called so."""
        return next(recipe for recipe in self.recipes if recipe.label == label)

    def scheduled(self, choice: ScheduleChoice, setting: Setting) -> JobSchedule:
        """What the job does in a case with these, but for the order of its actions."""
        own = setting.microbatches == self.plan.jobs[0].workload.microbatches
        return JobSchedule(choice, self.stages, None, None, microbatches=None if own else setting.microbatches)

    def problem_of(self, plan: Plan, choice: ScheduleChoice, setting: Setting) -> Problem:
        """What iterations cost with these on the network of a plan."""
        routes = plan.cases[0].routes if plan.cases else ()  # a rehearsal's flows take default routes
        return costs.problem_of_case(plan, Case("", (self.scheduled(choice, setting),), routes))

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


def adaptable_job(plan: Plan, choices: Sequence[ScheduleChoice], microbatches: Sequence[int] = ()) -> AdaptableJob:
    """The plan's only job with those of its choices that can be swapped: without solvers, stages where the first has
    them; each also with other numbers of microbatches than the workload's.

    Raises BadInput for several jobs, for no choice, and for numbers that its batch cannot be cut into.
    """
    job, *others = plan.jobs
    if others:
        expected = "one job: others on the same links cannot be told from a slower link"
        raise BadInput.of(job.workload.name, "jobs", len(plan.jobs), expected)
    able = [choice for choice in choices if not family_of(choice).solver]
    if not able:
        raise BadInput.of(job.workload.name, "schedules", len(choices), "one or more that need no solver")
    stages = costs.stages_of(job, able[0])
    for count in microbatches:
        require_microbatches(job, count, MICROBATCHES, "option")
    places = tuple(job.mesh.coordinates(rank).pipeline_rank for rank in job.mesh.ranks)
    ranks = PlacedRanks(tuple(datacenter_of(node) for node in job.nodes), places)
    alone, recipes = AdaptableJob(plan, ranks, stages, ()), list[Recipe]()
    for count in dict.fromkeys((job.workload.microbatches, *microbatches)):
        setting = Setting(count)
        for choice in able:
            if costs.stages_of(job, choice) == stages:
                label = choice.label if not recipes or setting == recipes[0].setting else _called(choice, setting)
                recipes.append(Recipe(label, choice, setting, alone.problem_of(plan, choice, setting)))
    return alone._replace(recipes=tuple(recipes))


def _called(choice: ScheduleChoice, setting: Setting) -> str:
    return with_ending(choice.label, f" with {setting.microbatches} microbatches")


def planned_belief(subject: AdaptableJob) -> Belief:
    """What the job believes as it begins; slots are those of microbatches as planned."""
    problem = subject.planned
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
