"""What iterations would cost if links and ranks were as believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.adaptation.adaptable_job import AdaptableJob, PipelineEnds, Recipe, planned_belief
from testbed.adaptation.estimates import CHANGED, Belief, PathEstimate
from testbed.adaptation.sightings import PROBE_BYTES, Path
from testbed.pipeline.ir import KINDS
from testbed.pipeline.link import LinkCost, crossing_s
from testbed.pipeline.problem import Problem


def believed(job: AdaptableJob, recipe: Recipe, belief: Belief) -> Problem:
    """The problem of a recipe with what is believed in place of what is planned, wherever the two differ."""
    (found,) = believed_together([(job, recipe)], planned_belief(job), belief)
    return found


def believed_together(recipes: Sequence[tuple[AdaptableJob, Recipe]], planned: Belief, belief: Belief) -> list[Problem]:
    """The same of a recipe of each job on one network, of which all was `planned`.

    What a link explains is a change of that link, for all that cross it; what no single link explains is a link of its
    own between two datacenters, whatever it really crosses.
    """
    largest = max((size for _, recipe in recipes for size in recipe.problem.message_bytes), default=PROBE_BYTES)
    links, unexplained = _changed_links(recipes[0][1].problem.links, planned, belief, largest)
    own: dict[Path, int] = {}
    for which in dict.fromkeys(path for _, recipe in recipes for path in recipe.setting.paths):
        if which in unexplained:
            own[which] = len(links)
            links.append(LinkCost(belief.paths[which].delay_s.value, 8 / belief.paths[which].rate_bps.value))
    return [_with(job, recipe, belief, links, own) for job, recipe in recipes]


def _with(
    job: AdaptableJob, recipe: Recipe, belief: Belief, links: Sequence[LinkCost], own: Mapping[Path, int]
) -> Problem:
    """The problem of a recipe on these links, over its `own` between two datacenters where there is one, with slots as
    believed."""
    problem = recipe.problem
    routes = [dict(pipeline.routes) for pipeline in problem.pipelines]
    by_pair = {which.pair: own[which] for which in recipe.setting.paths if which in own}
    for number, mine in enumerate(routes):
        for (a, b), route in mine.items():
            index = by_pair.get(job.sites_of(problem, PipelineEnds(number, a, b)))
            if index is not None:
                own_card = tuple(index for index in route if index in problem.cards)
                mine[a, b] = (*own_card, index)
    pipelines = [pipeline._replace(routes=mine) for pipeline, mine in zip(problem.pipelines, routes, strict=True)]
    slots: list[tuple[float, ...]] = []
    larger = job.larger(problem)
    for kind in KINDS:
        of_stages = [larger * belief.slots[job.first_rank + rank, kind].value for rank in problem.stage_to_rank]
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


def _changed_links(
    as_planned: Sequence[LinkCost], planned: Belief, belief: Belief, largest: float
) -> tuple[list[LinkCost], list[Path]]:
    """The links as they must be now, by the fewest that can have changed, and the paths that they do not explain.

    A link that a job crosses as planned, or did when it last crossed it, is as planned. Short routes tell of links
    that longer ones share. Sizes of messages are up to the `largest`.
    """
    links, unexplained = list(as_planned), list[Path]()
    changed = [which for which, path in belief.paths.items() if path != planned.paths[which]]
    settled = {index for which in belief.used if which not in changed for index in which.route}
    sizes = PROBE_BYTES, largest
    for which in sorted(changed, key=lambda which: len(which.route)):
        path, route = belief.paths[which], which.route
        suspects = [index for index in route if index not in settled]
        if not _explains(links, route, path, sizes) and len(suspects) == 1:
            links[suspects[0]] = _without_others(path, [links[index] for index in route if index not in suspects])
        settled.update(route)
        if not _explains(links, route, path, sizes):
            unexplained.append(which)
    return links, unexplained


def _explains(links: Sequence[LinkCost], route: Sequence[int], path: PathEstimate, sizes: Sequence[float]) -> bool:
    """Whether messages would take about the times that were seen."""
    crossed = [links[index] for index in route]
    return all(abs(crossing_s(crossed, size) / path.crossing_s(size) - 1) <= CHANGED for size in sizes)


def _without_others(path: PathEstimate, others: Sequence[LinkCost]) -> LinkCost:
    """What is left of a path for one of its links: of a rate above that of others nothing can be seen."""
    delay_s = path.delay_s.value - sum(link.delay_s for link in others)
    return LinkCost(max(0.0, delay_s), 8 / path.rate_bps.value)
