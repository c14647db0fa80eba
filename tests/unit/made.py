"""Problems and options with which every schedule family can be tried quickly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from testbed.pipeline.algorithms import Members, exchange
from testbed.pipeline.collectives import Collective, CollectiveMessage
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import PipelineRoutes, Problem, uniform
from testbed.schedule.registry import FAMILIES, generate

QUICK = sorted(name for name, family in FAMILIES.items() if not family.solver)
"""Everything but the solvers, which have tests of their own."""

OPTIONS: dict[str, dict[str, Any]] = {"search": {"evaluations": 8}}


def quick(name: str, problem: Problem, **options: Any) -> Schedule:
    """A family's schedule, validated, in little time."""
    return generate(name, problem, **(OPTIONS.get(name, {}) | options))


def fitting(name: str, p: int, m: int, **costs: Any) -> Problem:
    """A uniform problem in the family's own placement, with memory for any schedule."""
    costs.setdefault("memory", float(2 * max(p, m)))
    return uniform(p, m, stage_to_rank=FAMILIES[name].stage_to_rank(p), **costs)


@st.composite
def with_collectives(draw: st.DrawFn, problem: Problem) -> Problem:
    """The problem with replicas on any ways over its links, and rings between them, or without any."""
    if not problem.links or draw(st.booleans()):
        return problem
    degree, ranks = draw(st.integers(2, 3)), range(problem.n_ranks)
    route = st.lists(st.sampled_from(range(len(problem.links))), max_size=2, unique=True).map(tuple)
    pairs = [(a, b) for a in ranks for b in ranks]
    others = tuple(PipelineRoutes({pair: draw(route) for pair in pairs}) for _ in range(degree - 1))
    ways = [(a, b) for a in range(degree) for b in range(degree)]
    sites = tuple(draw(st.sampled_from("ab")) for _ in range(degree))
    name, sharded = draw(st.sampled_from(["ring", "hierarchical"])), draw(st.booleans())
    chosen = exchange(name, Members(sites, sharded, draw(st.integers(1, 2)) if name == "hierarchical" else 1))

    def collectives(steps: tuple[CollectiveMessage, ...], kind: str) -> tuple[Collective, ...]:
        return tuple(
            Collective(steps, sizes(draw(st.integers(0, 5)), degree), {way: draw(route) for way in ways}, {}, kind)
            for _ in range(problem.n_stages)
        )

    gathers = collectives(chosen.gather, "all-gather") if sharded else ()
    reductions = collectives(chosen.reduction, chosen.reduces_to)
    return replace(problem, pipelines=(*problem.pipelines, *others), all_gather=gathers, reductions=reductions)


def sizes(of_a_cell: float, most: int = 1) -> dict[int, float]:
    """Bytes of messages with up to so many cells."""
    return {cells: float(cells * of_a_cell) for cells in range(1, most + 1)}


@st.composite
def in_packets(draw: st.DrawFn, problem: Problem) -> Problem:
    """The problem with messages of several packets, with or without acknowledgements and a handover, or as it was."""
    if draw(st.booleans()):
        return problem
    pieces = tuple(draw(st.sampled_from([0.2, 0.5, 1.0])) for _ in range(problem.n_ranks))
    ack, handover = draw(st.sampled_from([(), (0.125,) * problem.n_ranks])), draw(st.sampled_from([0.0, 0.25]))
    unnoticed = draw(st.sampled_from([0.0, 0.5]))
    first, *others = problem.pipelines
    return replace(
        problem,
        pipelines=(
            first._replace(piece_bytes=pieces, ack_bytes=ack),
            *(pipeline._replace(piece_bytes=pieces[::-1], ack_bytes=ack) for pipeline in others),
        ),
        handover_s=handover,
        unnoticed_wait_s=unnoticed,
        wake_s=draw(st.sampled_from([0.0, 0.125])),
        notice_bytes=draw(st.sampled_from([0.0, 0.125])),
    )
