"""What iterations would cost if links and ranks were as believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.adaptation.adaptable_job import AdaptableJob, PipelineEnds, Recipe, planned_belief
from testbed.adaptation.estimates import CHANGED, Belief, PathEstimate
from testbed.adaptation.sightings import PROBE_BYTES, Path
from testbed.pipeline.ir import KINDS
from testbed.pipeline.link import LinkCost, crossing_s
from testbed.pipeline.problem import Problem


def believed(job: AdaptableJob, recipe: Recipe, belief: Belief) -> Problem:
    """The problem of a recipe with what is believed in place of what is planned, wherever the two differ.

    What a link explains is a change of that link, for all that cross it; what no single link explains is a link of its
    own between two datacenters, whatever it really crosses.
    """
    problem = recipe.problem
    links, unexplained = _changed_links(job, problem, belief)
    routes = [dict(pipeline.routes) for pipeline in problem.pipelines]
    for which in recipe.setting.paths:
        if which not in unexplained:
            continue
        path = belief.paths[which]
        links.append(LinkCost(path.delay_s.value, 8 / path.rate_bps.value))
        for number, mine in enumerate(routes):
            for (a, b), route in mine.items():
                if job.sites_of(problem, PipelineEnds(number, a, b)) == which.pair:
                    own_card = tuple(index for index in route if index in problem.cards)
                    mine[a, b] = (*own_card, len(links) - 1)
    pipelines = [pipeline._replace(routes=mine) for pipeline, mine in zip(problem.pipelines, routes, strict=True)]
    slots: list[tuple[float, ...]] = []
    larger = job.larger(problem)
    for kind in KINDS:
        of_stages = [larger * belief.slots[rank, kind].value for rank in problem.stage_to_rank]
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


def _changed_links(job: AdaptableJob, problem: Problem, belief: Belief) -> tuple[list[LinkCost], list[Path]]:
    """The links as they must be now, by the fewest that can have changed, and the paths that they do not explain.

    A link that the job crosses as planned, or did when it last crossed it, is as planned. Short routes tell of links
    that longer ones share.
    """
    links, planned, unexplained = list(problem.links), planned_belief(job), list[Path]()
    changed = [which for which, path in belief.paths.items() if path != planned.paths[which]]
    settled = {index for which in belief.used if which not in changed for index in which.route}
    for which in sorted(changed, key=lambda which: len(which.route)):
        path, route = belief.paths[which], which.route
        sizes = PROBE_BYTES, max(problem.message_bytes)
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
