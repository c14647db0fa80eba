"""GeoPipe: 1F1B in which the ranks before a wide-area cut run further ahead (Dai et al., arXiv 2510.12064, 2025).

The paper's text says that the number of warm-up forwards changes by dN, not by which formula; the rule here is
ours, which removes the steady state's waiting exactly (closed_form.geopipe).
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from testbed.errors import BadInput
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family
from testbed.schedule.one_f_one_b import row


def geopipe(problem: Problem, extra: Annotated[int | None, Field(ge=0)] = None) -> Schedule:
    """Rank i runs min(M, P - 1 - i + sum of dN over the cuts after it) warm-up forwards; peak P - i + that sum.

    `extra` is dN of every cut. By default it is what hides each cut's round trip, as far as memory allows.
    Raises BadInput for a negative `extra`.
    """
    if extra is not None and extra < 0:
        raise BadInput.of("schedule geopipe", "extra", extra, "a number of warm-up forwards, at least 0")
    ahead = hiding(problem) if extra is None else dict.fromkeys(cuts(problem), extra)
    last = problem.n_ranks - 1
    rows = tuple(
        row(rank, last - rank + _ahead_of(rank, ahead), problem.n_microbatches) for rank in range(problem.n_ranks)
    )
    return Schedule("geopipe", rows, problem.stage_to_rank, problem.n_microbatches)


def cuts(problem: Problem) -> list[int]:
    """Ranks r from which a message to r + 1 takes a link between datacenters."""
    return [rank for rank in range(problem.n_ranks - 1) if {*problem.route(rank, rank + 1)} - problem.cards]


def hiding(problem: Problem) -> dict[int, int]:
    """Per cut, dN = ceil(2c / tau), c one way with time on the wire, tau = max(f + b); less where memory is short.

    Raises nothing when even 1F1B does not fit: `validate` says so.
    """
    stages = range(problem.n_stages)
    tau = max(problem.forward_s[s] + problem.whole_backward_s(s) for s in stages)
    trip = {cut: _one_way(problem, cut, cut + 1) + _one_way(problem, cut + 1, cut) for cut in cuts(problem)}
    # a trip of exactly n tau needs n, whatever rounding has made of it
    ahead = {cut: math.ceil(trip[cut] / tau - TOLERANCE) if tau else 0 for cut in trip}
    for rank in range(problem.n_ranks):
        while not _fits(problem, rank, ahead) and any(ahead[cut] for cut in ahead if cut >= rank):
            # take one from the cut that then still has the shortest period, (2 tau + 2c) / (2 + dN)
            candidates = [cut for cut in ahead if cut >= rank and ahead[cut]]
            ahead[min(candidates, key=lambda cut: (2 * tau + trip[cut]) / (1 + ahead[cut]))] -= 1
    return ahead


def _ahead_of(rank: int, ahead: dict[int, int]) -> int:
    return sum(more for cut, more in ahead.items() if cut >= rank)


def _fits(problem: Problem, rank: int, ahead: dict[int, int]) -> bool:
    in_flight = min(problem.n_microbatches, problem.n_ranks - rank + _ahead_of(rank, ahead))
    during_backward = problem.input_memory[rank] if problem.input_memory else 0.0
    return in_flight * problem.activation[rank] + during_backward <= problem.memory_limit[rank] + TOLERANCE


def _one_way(problem: Problem, source: int, target: int) -> float:
    """Delay and wire time of a message between neighbours: the slowest link's, as links are cut through."""
    slowest = max((problem.links[index].seconds_per_byte for index in problem.route(source, target)), default=0.0)
    return problem.route_delay(source, target) + problem.message_bytes[min(source, target)] * slowest


FAMILY = Family(geopipe, "1F1B with extra warm-up forwards before every wide-area cut", uses_spare_memory=True)
