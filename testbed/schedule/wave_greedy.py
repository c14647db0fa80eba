"""`wave-greedy`: a greedy for the V-shape placement, which CrossPipe has only a solver for.

List scheduling over delayed links (list_scheduler.py) with a handful of rules for what goes first, since none is best
everywhere: how far to run ahead, whether to alternate forwards and gradients, whether to wait for a better action
that is on its way. Each rule's schedule is judged by the event model; a static ZB-V that fits is among them. Where
there are many microbatches, all rules are tried on fewer of them first, and the best ones on all.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import NamedTuple

from testbed.model.network import Ints
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import TOLERANCE, peaks
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.pipeline.ticks import in_ticks
from testbed.schedule.family import Family
from testbed.schedule.zb_v import zb_v
from testbed.search.list_scheduler import Lister, Priority, forward_first, input_first, oldest_first

PATIENCE = (0.0, 0.5)
"""How long a rank may wait for a better action, in forwards of a stage."""

TRIED_ACTIONS = 20_000
"""Rules are tried on microbatches of about as many actions, and on no fewer than fill and drain the pipeline."""

FINALISTS = 2
"""Of the rules and ZB-V, how many are then tried on all microbatches."""


class _Rule(NamedTuple):
    priority: Priority
    alternate: bool
    patience: float


class _Made(NamedTuple):
    makespan: float
    rule: _Rule | None
    """None: the static ZB-V"""
    order: list[Ints]


def wave_greedy(problem: Problem) -> Schedule:
    """The fastest of the rules' schedules for two stages per rank in a V.

    Raises BadInput when a rank cannot hold a single microbatch.
    """
    problem = in_ticks(problem)
    rules: list[_Rule | None] = [
        _Rule(*rule) for rule in product((input_first, oldest_first, forward_first), (False, True), PATIENCE)
    ]
    rules.append(None)  # last: a rule wins a tie
    few = max(2 * problem.n_ranks, TRIED_ACTIONS // (3 * problem.n_stages))
    if problem.n_microbatches > few:
        rules = [made.rule for made in _made(replace(problem, n_microbatches=few), rules)[:FINALISTS]]
    return Lister(problem).schedule(_made(problem, rules)[0].order, "wave-greedy")


def _made(problem: Problem, rules: list[_Rule | None]) -> list[_Made]:
    """The rules' schedules, None's only if ZB-V fits, the fastest first; in the order of the rules where they tie."""
    from testbed.search.order_evaluator import OrderEvaluator, coded

    lister, patience_s = Lister(problem), max(problem.forward_s)
    orders: list[tuple[_Rule | None, list[Ints]]] = []
    for rule in rules:
        if rule is not None:
            keys = rule.priority(problem.n_stages, problem.n_microbatches)
            order = lister.order(keys, alternate=rule.alternate, patience_s=rule.patience * patience_s)
            orders.append((rule, order))
        elif _fits(static := zb_v(problem), problem):
            orders.append((None, coded(static)))
    judge = OrderEvaluator(problem, lister.schedule(orders[0][1], "wave-greedy"))
    made = [_Made(judge.makespan(order), rule, order) for rule, order in orders]
    return sorted(made, key=lambda built: built.makespan)


def _fits(schedule: Schedule, problem: Problem) -> bool:
    pairs = zip(peaks(schedule, problem), problem.memory_limit, strict=True)
    return all(peak <= limit + TOLERANCE for peak, limit in pairs)


FAMILY = Family(wave_greedy, "ours: a greedy in a V of two chunks per rank", Placement.WAVE, uses_spare_memory=True)
