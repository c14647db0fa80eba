"""GeoPipe: 1F1B in which the ranks before a wide-area cut run further ahead (Dai et al., arXiv 2510.12064, 2025).

The paper's text says that the number of warm-up forwards changes by dN, not by which formula. The rule is ours: it
removes the steady state's waiting exactly where stages are equal and messages take less time on the wire than a stage
computes (benchmarks/oracles/closed_form.py). Wherever that does not come to a lower bound, dN is what the event model
finds fastest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Annotated

from pydantic import BeforeValidator

from testbed.errors import BadInput, DoesNotFit
from testbed.memoization import memoized_by_identity
from testbed.model.bounds import lower_bound
from testbed.model.schedule_model import ScheduleModel
from testbed.pipeline.ir import Schedule
from testbed.pipeline.link import LinkCost, crossing_s, wire_s
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family
from testbed.schedule.one_f_one_b import row

MOST_TRIED = 24
"""Numbers of extra forwards that are tried at all cuts alike, where the rule may not be the best."""

MOST_TRADING = 6
"""Cuts up to which every two of them trade extra forwards; with more, neighbours only."""

Ahead = dict[int, int]
"""Per cut, dN: the warm-up forwards that all ranks before it make in addition."""


def _numbers(value: object) -> object:
    numbers = value if isinstance(value, list) else [value]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("at least 0: extra warm-up forwards of every cut, or a list with a number for each")
    return value


Extra = Annotated[int | list[int], BeforeValidator(_numbers)]


def geopipe(problem: Problem, extra: Extra | None = None) -> Schedule:
    """Rank i runs min(M, P - 1 - i + sum of dN over the cuts after it) warm-up forwards; peak P - i + that sum.

    `extra` is dN of every cut, or a list with one for each. By default it is what hides each cut's round trip, or,
    where nobody knows that nothing is faster, what the event model finds fastest: never slower than 1F1B, as far as
    memory allows. Raises BadInput for a negative number, DoesNotFit for a list that is not as long
    as there are cuts.
    """
    return with_ahead(problem, chosen(problem) if extra is None else _asked(problem, extra))


def _asked(problem: Problem, extra: int | list[int]) -> Ahead:
    places = cuts(problem)
    numbers = extra if isinstance(extra, list) else [extra] * len(places)
    if len(numbers) != len(places):
        expected = f"a number for every one of {len(places)} cuts (after ranks {', '.join(map(str, places)) or 'none'})"
        raise DoesNotFit.of("schedule geopipe", "extra", extra, expected)
    if any(number < 0 for number in numbers):
        raise BadInput.of("schedule geopipe", "extra", extra, "a number of warm-up forwards, at least 0")
    return dict(zip(places, numbers, strict=True))


def with_ahead(problem: Problem, ahead: Ahead) -> Schedule:
    """The schedule with these numbers of extra warm-up forwards, whether memory allows them or not."""
    last = problem.n_ranks - 1
    rows = tuple(
        row(rank, last - rank + _ahead_of(rank, ahead), problem.n_microbatches) for rank in range(problem.n_ranks)
    )
    return Schedule("geopipe", rows, problem.stage_to_rank, problem.n_microbatches)


def cuts(problem: Problem) -> list[int]:
    """Ranks r from which a message to r + 1 takes a link between datacenters."""
    return [rank for rank in range(problem.n_ranks - 1) if {*problem.route(rank, rank + 1)} - problem.cards]


@memoized_by_identity(1)
def chosen(problem: Problem) -> Ahead:
    """dN of every cut: by the rule where that comes to a lower bound, else the fastest by the event model."""
    by_rule = hiding(problem)
    if not by_rule:
        return by_rule
    whole = tuple(map(problem.whole_backward_s, range(problem.n_stages)))
    fused = replace(problem, input_s=whole, weight_s=(0.0,) * problem.n_stages, backward_s=())
    least_s = lower_bound(fused).seconds * (1 + TOLERANCE)
    planned = with_ahead(problem, by_rule)
    model = ScheduleModel(problem, planned)
    return by_rule if model.makespan(planned) <= least_s else _fastest(problem, model, by_rule)


def hiding(problem: Problem) -> Ahead:
    """Per cut, dN = ceil(2c / max(tau, S/B)), less where memory is short.

    c is one way with time on the wire, tau = max(f + b), S/B the most time that a cut's messages take on the wire: a
    full link, not a rank, then decides how often a microbatch can pass.
    """
    return _fitting(problem, unlimited(problem))


def unlimited(problem: Problem) -> Ahead:
    """As `hiding`, whatever memory allows."""
    # the shortest time in which a microbatch can pass: max(tau, S/B)
    wires = (wire_s(*route) for cut in cuts(problem) for route in _both_directions(problem, cut))
    period = max([*_busy_s(problem), *wires])
    # a trip of exactly n periods needs n, whatever rounding has made of it
    return {cut: math.ceil(trip / period - TOLERANCE) if period else 0 for cut, trip in _trips(problem).items()}


def _fitting(problem: Problem, wanted: Ahead) -> Ahead:
    """As much of what is wanted as memory allows; nothing where not even 1F1B fits, which `validate` refuses."""
    ahead, tau, trip = dict(wanted), max(_busy_s(problem)), _trips(problem)
    for rank in range(problem.n_ranks):
        while not _fits(problem, rank, ahead) and any(ahead[cut] for cut in ahead if cut >= rank):
            # take one from the cut that then still has the shortest period, (2 tau + 2c) / (2 + dN)
            candidates = [cut for cut in ahead if cut >= rank and ahead[cut]]
            ahead[min(candidates, key=lambda cut: (2 * tau + trip[cut]) / (1 + ahead[cut]))] -= 1
    return ahead


def _fastest(problem: Problem, model: ScheduleModel, by_rule: Ahead) -> Ahead:
    """The best of the rule's, of equal dN at all cuts, and of what is found from there cut by cut, and between two.

    Of equally fast ones that with the fewest microbatches in flight.
    """
    judged: dict[tuple[int, ...], tuple[float, int]] = {}

    def worth(ahead: Ahead) -> tuple[float, int]:
        key = tuple(ahead.values())
        if key not in judged:
            seconds = model.makespan(with_ahead(problem, ahead))
            held = sum(more * (cut + 1) for cut, more in ahead.items())
            judged[key] = float(f"{seconds:.12g}"), held  # times that differ by rounding are equal
        return judged[key]

    begins = [by_rule, *(_fitting(problem, dict.fromkeys(by_rule, n)) for n in _tried(problem))]
    best = min(begins, key=worth)
    while True:
        before = best
        for change in _changes(best):
            moved = {cut: more + change.get(cut, 0) for cut, more in best.items()}
            if min(moved.values()) >= 0 and fits(problem, moved) and worth(moved) < worth(best):
                best = moved
        if best == before:
            return best


def _changes(ahead: Ahead) -> list[Ahead]:
    """One extra forward more or less at a cut, or one taken from a cut for another one."""
    pairs = combinations(ahead, 2) if len(ahead) <= MOST_TRADING else pairwise(ahead)
    single = [{cut: step} for cut in ahead for step in (-1, 1)]
    return single + [{one: step, other: -step} for one, other in pairs for step in (-1, 1)]


def _tried(problem: Problem) -> list[int]:
    """From 0 to M, every number as long as they are few."""
    most = problem.n_microbatches
    if most <= MOST_TRIED:
        return list(range(most + 1))
    half = MOST_TRIED // 2
    return [*range(half), *sorted({round(half * (most / half) ** (step / half)) for step in range(half + 1)})]


def limited(problem: Problem, extra: int | list[int] | None = None) -> str | None:
    """What memory takes from the warm-up, in words; None where it takes nothing, or the user has said what to do."""
    wanted = unlimited(problem)
    if extra is not None or wanted == _fitting(problem, wanted):
        return None
    got = chosen(problem)
    one_more = [got | {cut: got[cut] + 1} for cut in got if got[cut] < wanted[cut]]
    if all(fits(problem, more) for more in one_more):
        return None
    needed = max(_held(problem, rank, wanted) for rank in range(problem.n_ranks))
    shown = ", ".join(f"{got[cut]} of {wanted[cut]}" for cut in got)
    is_other = "; without any it is 1f1b" if not any(got.values()) else ""
    where = "cut after rank" if len(got) == 1 else "cuts after ranks"
    return (
        f"memory allows {shown} extra warm-up forwards for the {where} {', '.join(map(str, got))}{is_other} "
        f"(memory for {needed:g} microbatches would hide the links)"
    )


def _ahead_of(rank: int, ahead: Ahead) -> int:
    return sum(more for cut, more in ahead.items() if cut >= rank)


def _held(problem: Problem, rank: int, ahead: Ahead) -> float:
    """Most memory that a rank needs, in microbatches."""
    in_flight = min(problem.n_microbatches, problem.n_ranks - rank + _ahead_of(rank, ahead))
    during_backward = problem.input_memory[rank] if problem.input_memory else 0.0
    return in_flight * problem.activation[rank] + during_backward


def fits(problem: Problem, ahead: Ahead) -> bool:
    """Whether every rank has memory for these extra forwards."""
    return all(_fits(problem, rank, ahead) for rank in range(problem.n_ranks))


def _fits(problem: Problem, rank: int, ahead: Ahead) -> bool:
    return _held(problem, rank, ahead) <= problem.memory_limit[rank] + TOLERANCE


def _busy_s(problem: Problem) -> list[float]:
    """Per stage, seconds of a microbatch's forward and backward."""
    return [problem.forward_s[s] + problem.whole_backward_s(s) for s in range(problem.n_stages)]


def _trips(problem: Problem) -> dict[int, float]:
    """Per cut, seconds of a message there and another one back, with delays and time on the wire."""
    return {cut: sum(crossing_s(*route) for route in _both_directions(problem, cut)) for cut in cuts(problem)}


def _both_directions(problem: Problem, cut: int) -> list[tuple[list[LinkCost], float]]:
    """Of a cut, there and back: the links of a message, and its size."""
    routes = problem.route(cut, cut + 1), problem.route(cut + 1, cut)
    return [([problem.links[index] for index in route], problem.message_bytes[cut]) for route in routes]


FAMILY = Family(
    geopipe, "1F1B with extra warm-up forwards before every wide-area cut", uses_spare_memory=True, remark=limited
)
