"""The job that adapts, as planned: where it is, what its schedules are made by, and what it begins to believe."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple

from testbed.adaptation.candidate import JobSetting
from testbed.adaptation.estimates import Belief, PathEstimate, exactly
from testbed.adaptation.may_change import NOTHING, VARY, MayChange
from testbed.adaptation.sightings import PROBE_BYTES, Pair, Path, PlacedRanks
from testbed.errors import BadInput
from testbed.pipeline.ir import KINDS, Action
from testbed.pipeline.problem import Problem, Route
from testbed.plan import costs
from testbed.plan.microbatches import require_microbatches
from testbed.plan.moved_weights import require_movable
from testbed.plan.network_state import NetworkState, planned
from testbed.plan.plan import Case, Job, JobSchedule, Plan
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.routes import datacenter_of, nodes_of_ranks
from testbed.planning.resolve import framing_of
from testbed.planning.schedules import with_options
from testbed.routing.candidates import DirectionsByPlace
from testbed.schedule.registry import family_of
from testbed.spec.choice import MOST_LABEL, ScheduleChoice, with_ending

MOST_DETOUR = 2
"""Links more than the shortest route has that another one may have."""

_ROOM_BEHIND = len(" from 100000")
"""Of a label, for the iteration from which on a recipe is used."""

SEARCHED: Mapping[str, Any] = {"evaluations": 60}
"""Options of families that search, where they are made anew whenever something else is believed: a second or so, where
all that they evaluate alone takes ten, in which on the real clock nothing would be trained."""

MOST_SETTINGS = 64
"""Of which each is predicted with every schedule after every iteration in which something has changed."""


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
    setting: JobSetting
    problem: Problem
    """As planned."""


class AdaptableJob(NamedTuple):
    """The only job of a plan; or one of several, which keeps what it has in the plan's first case."""

    plan: Plan
    ranks: PlacedRanks
    recipes: tuple[Recipe, ...]
    """The first one's setting is as planned."""
    number: int = 0
    """In the plan."""

    @property
    def first_rank(self) -> int:
        """The plan's number of its first pipeline rank: of others of its pipelines it is as much more."""
        return self.plan.jobs[self.number].mesh.first_rank

    @property
    def planned(self) -> Problem:
        """In that setting."""
        return self.recipes[0].problem

    @property
    def message_bytes(self) -> float:
        """Of the longest message of its pipelines on the wire, as planned."""
        return max(self.planned.message_bytes, default=PROBE_BYTES)

    @property
    def settings(self) -> dict[JobSetting, Recipe]:
        """All that there are, each with the first recipe that has it."""
        found: dict[JobSetting, Recipe] = {}
        for recipe in self.recipes:
            found.setdefault(recipe.setting, recipe)
        return found

    def larger(self, problem: Problem) -> float:
        """How many times as long as planned an action takes in a problem: of more samples, of a smaller stage."""
        planned = self.planned
        return (planned.n_microbatches * planned.n_stages) / (problem.n_microbatches * problem.n_stages)

    def labelled(self, label: str) -> Recipe:
        """The one of its recipes that is called so."""
        return next(recipe for recipe in self.recipes if recipe.label == label)

    def scheduled(self, choice: ScheduleChoice, setting: JobSetting) -> JobSchedule:
        """What the job does in a case with these, but for the order of its actions."""
        own = setting.microbatches == self.plan.jobs[0].workload.microbatches
        return JobSchedule(choice, setting.stages, None, None, microbatches=None if own else setting.microbatches)

    def problem_of(self, plan: Plan, choice: ScheduleChoice, setting: JobSetting) -> Problem:
        """What iterations cost with these on the network of a plan; a rehearsal's has no flows, but default routes."""
        return costs.problem_of_case(*self._set(plan, choice, setting))

    def routes_between(self, plan: Plan, setting: JobSetting, problem: Problem) -> Callable[[int, int], Route]:
        """The links that a message takes between any two ranks of the job, by their numbers in the plan, in a setting
        whose problem this is, on the network of a plan: also where no message of an iteration goes."""
        taken, planned = RankRoutes(*self._set(plan, self.settings[setting].choice, setting)), len(self.planned.links)
        own = dict[Pair, Route]()
        """Over links that the plan has not, but that are believed to be between two datacenters."""
        for pair, ends in self.pairs(problem).items():
            route = ends.route(problem)
            if any(index >= planned for index in route):
                own[pair] = tuple(index for index in route if index not in problem.cards)

        def route_of(source: int, target: int) -> Route:
            believed = own.get((taken.datacenter(source), taken.datacenter(target)))
            return taken(source, target) if believed is None else (*taken.card(source), *believed)

        return route_of

    def _set(self, plan: Plan, choice: ScheduleChoice, setting: JobSetting) -> tuple[Plan, Case]:
        """A plan with routes as in a setting, and a case that has it."""
        moved = _moved(setting)
        default = tuple(
            replace(each, route=moved.get((each.source, each.target), each.route)) for each in plan.network.routes
        )
        there = replace(plan, network=replace(plan.network, routes=default))
        return there, Case("", (self.scheduled(choice, setting),), self.routes_in(setting))

    def routes_in(self, setting: JobSetting) -> tuple[Route, ...]:
        """One for every flow of the plan: as its first case has it, unless the setting has another one."""
        if not self.plan.cases:
            return ()
        moved, nodes = _moved(setting), nodes_of_ranks(self.plan)
        return tuple(
            moved.get((datacenter_of(nodes[flow.source]), datacenter_of(nodes[flow.target])), route)
            for flow, route in zip(self.plan.flows, self.plan.cases[0].routes, strict=True)
        )

    def crossed(self, setting: JobSetting) -> frozenset[int]:
        """Every direction that anything of the job may cross in a setting, what its replicas exchange included."""
        moved, sites = _moved(setting), {*self.ranks.sites}
        default = [
            moved.get((each.source, each.target), each.route)
            for each in self.plan.network.routes
            if each.source in sites and each.target in sites
        ]
        routes = self.routes_in(setting) or default
        own = [path.route for path in setting.paths]
        return frozenset(index for route in (*routes, *own) for index in route)

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
        numbers, nodes = problem.numbers[ends.pipeline], self.plan.jobs[self.number].nodes
        return nodes[numbers[ends.source]], nodes[numbers[ends.target]]


def adaptable_job(plan: Plan, choices: Sequence[ScheduleChoice], may: MayChange = NOTHING) -> AdaptableJob:
    """The plan's only job with those of its choices that can be swapped: without solvers, stages where the first has
    them unless they may move; each also with what else the job `may` change.

    Raises BadInput for several jobs, for no choice, for numbers that its batch cannot be cut into, for more routes
    than can be looked at or where there is one alone, and for weights that cannot move.
    """
    job, *others = plan.jobs
    if others:
        expected = "one job: others on the same links cannot be told from a slower link"
        raise BadInput.of(job.workload.name, "jobs", len(plan.jobs), expected)
    if may.starts:
        raise BadInput.of(VARY, "starts", may.starts, "several jobs: one alone has nobody to make room for")
    able = [_quick(choice) for choice in choices if not family_of(choice).solver]
    if not able:
        raise BadInput.of(job.workload.name, "schedules", len(choices), "one or more that need no solver")
    at = {choice.label: costs.stages_of(job, choice) for choice in able}
    first = at[able[0].label]
    if not may.stages:
        able = [choice for choice in able if at[choice.label] == first]
    for choice in able:
        require_movable(job.workload, first, at[choice.label], VARY, choice.label)
    for count in may.microbatches:
        require_microbatches(job, count, VARY, "microbatches")
    bare, recipes, own = AdaptableJob(plan, _placed(job), ()), list[Recipe](), job.workload.microbatches
    every: list[JobSetting] = []
    placements = dict.fromkeys(at[choice.label] for choice in able)
    for stages in placements:
        choice = next(choice for choice in able if at[choice.label] == stages)
        as_planned = JobSetting(own, (), stages)
        as_planned = as_planned._replace(paths=planned_paths(bare, bare.problem_of(plan, choice, as_planned)))
        every += _route_settings(plan, as_planned, may.routes)
    if may.routes > 1:  # super-packets short enough for all of them
        if len(every) == len(placements):
            raise BadInput.of(VARY, "routes", may.routes, "two of its datacenters with another route between them")
        needed = framing_of(plan.network, [(path.source, path.route) for one in every for path in one.paths]).gso_bytes
        sizes = {site: min(size, needed[site]) for site, size in plan.framing.gso_bytes.items()}
        bare = bare._replace(plan=replace(plan, framing=replace(plan.framing, gso_bytes=sizes)))
    combinations = {paths: number for number, paths in enumerate(dict.fromkeys(one.paths for one in every), 1)}
    for count in dict.fromkeys((own, *may.microbatches)):
        for setting in (one._replace(microbatches=count) for one in every):
            for choice in able:
                if at[choice.label] == setting.stages:
                    label = _label(choice, _unlike(setting, own, combinations), {one.label for one in recipes})
                    # what others send a job does not know: it is seen as slower links
                    problem = replace(bare.problem_of(bare.plan, choice, setting), streams=())
                    recipes.append(Recipe(label, choice, setting, problem))
    return _knowing_words(bare._replace(recipes=tuple(recipes)))


def _quick(choice: ScheduleChoice) -> ScheduleChoice:
    """The choice, with fewer evaluations than alone where its family takes some and the workload does not say any."""
    given = choice.options().keys()
    return with_options(choice, {name: value for name, value in SEARCHED.items() if name not in given})


def _moved(setting: JobSetting) -> dict[Pair, Route]:
    """The routes that are others than planned."""
    return {path.pair: path.route for path in setting.paths if path.over}


def _placed(job: Job) -> PlacedRanks:
    """Its pipeline ranks by their numbers in the plan."""
    first = job.mesh.first_rank
    places = tuple(first + job.mesh.coordinates(rank).pipeline_rank for rank in job.mesh.ranks)
    return PlacedRanks(tuple(datacenter_of(node) for node in job.nodes), places)


def _knowing_words(job: AdaptableJob) -> AdaptableJob:
    """The job, whose ranks know what word of a receive takes."""
    shorter_bytes = PROBE_BYTES - job.planned.notice_bytes
    shorter_s = {
        path: 8 * shorter_bytes / planned.rate_bps.value for path, planned in planned_belief(job).paths.items()
    }
    return job._replace(ranks=job.ranks._replace(word_shorter_s=shorter_s, word_shorter_bytes=shorter_bytes))


def one_of_several(plan: Plan, number: int) -> AdaptableJob:
    """A job of a plan, by its number, as it is in the first case: nothing of it may change."""
    job, case = plan.jobs[number], plan.cases[0]
    chosen = case.jobs[number]
    # what others send beside the jobs nobody knows: it is seen as slower links
    problem = replace(costs.problem_of_case(plan, case, job=number), streams=())
    bare = AdaptableJob(plan, _placed(job), (), number)
    setting = JobSetting(problem.n_microbatches, planned_paths(bare, problem), chosen.stage_to_rank)
    return _knowing_words(bare._replace(recipes=(Recipe(chosen.choice.label, chosen.choice, setting, problem),)))


def planned_paths(job: AdaptableJob, problem: Problem) -> tuple[Path, ...]:
    """One for every two datacenters that messages of its pipelines go between, as the problem has them."""
    routes = {pair: ends.route(problem) for pair, ends in job.pairs(problem).items()}
    return tuple(
        Path(*pair, tuple(index for index in route if index not in problem.cards)) for pair, route in routes.items()
    )


def _route_settings(plan: Plan, as_planned: JobSetting, most: int) -> list[JobSetting]:
    """As planned, and with every combination of so many routes between two datacenters, there and back the same."""
    if most == 1:
        return [as_planned]
    network = planned(plan.network)
    by_place, options = DirectionsByPlace(network), list[list[dict[Pair, Path]]]()
    for path in as_planned.paths:
        if any(path.pair in known for every in options for known in every):
            continue
        others = [
            route for route in by_place.between(*path.pair, path.route, MOST_DETOUR)[:most] if route != path.route
        ]
        back = path.pair[::-1]
        mine: list[dict[Pair, Path]] = [
            {
                path.pair: Path(*path.pair, route, over := links_of(network, route)),
                back: Path(*back, tuple(index ^ 1 for index in reversed(route)), over),
            }
            for route in others
        ]
        options.append([{}, *mine])
    count = math.prod(map(len, options))
    if count > MOST_SETTINGS:
        expected = f"fewer: they make {count} combinations between datacenters, at most {MOST_SETTINGS}"
        raise BadInput.of(VARY, "routes", most, expected)
    found = []
    for combination in product(*options):
        moved = {pair: path for one in combination for pair, path in one.items()}
        found.append(as_planned._replace(paths=tuple(moved.get(path.pair, path) for path in as_planned.paths)))
    return found


def links_of(network: NetworkState, route: Route) -> str:
    """In words, from first to last."""
    return " + ".join(dict.fromkeys(network.links[index].link for index in route))


def _unlike(setting: JobSetting, microbatches: int, combinations: Mapping[tuple[Path, ...], int]) -> tuple[str, str]:
    """How a recipe's label says what is not as planned, beside its stages, which are its family's: with the names of
    links, and with the number of the combination of routes, which is shorter."""
    words = f" with {setting.microbatches} microbatches" if setting.microbatches != microbatches else ""
    over = dict.fromkeys(path.over for path in setting.paths if path.over)
    if not over:
        return words, words
    return f"{words} over {' and '.join(over)}", f"{words} over routes {combinations[setting.paths]}"


def _label(choice: ScheduleChoice, unlike: tuple[str, str], taken: Collection[str]) -> str:
    """A label that no other recipe has, and that still says the schedule's name."""
    named, numbered = unlike
    words = named if len(choice.label) + len(named) + _ROOM_BEHIND <= MOST_LABEL else numbered
    if not words:
        return choice.label
    label, number = with_ending(choice.label, words), 1
    while label in taken:
        number += 1
        label = with_ending(choice.label, f" {number}{words}")
    return label


def planned_belief(subject: AdaptableJob) -> Belief:
    """What the job believes as it begins; slots are those of microbatches and stages as planned, ranks the plan's."""
    problem, paths = subject.planned, dict[Path, PathEstimate]()
    for setting, recipe in subject.settings.items():
        routes = {pair: ends.route(recipe.problem) for pair, ends in subject.pairs(recipe.problem).items()}
        for path in setting.paths:
            route = [recipe.problem.links[index] for index in routes[path.pair]]
            slowest = max(link.seconds_per_byte for link in route)
            delay_s, rate_bps = sum(link.delay_s for link in route), 8 / slowest if slowest else float("inf")
            paths.setdefault(path, PathEstimate(exactly(delay_s), exactly(rate_bps)))
    slots = {
        (subject.first_rank + rank, kind): exactly(problem.duration(Action(stage, kind, 0)))
        for stage, rank in enumerate(problem.stage_to_rank)
        for kind in KINDS
    }
    return Belief(paths, slots, frozenset(subject.recipes[0].setting.paths))
