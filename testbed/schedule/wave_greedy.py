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
from testbed.schedule.list_scheduler import Lister, Priority, forward_first, input_first, oldest_first
from testbed.schedule.zb_v import zb_v

PATIENCE = (0.0, 0.5)
"""How long a rank may wait for a better action, in forwards of a stage."""

TRIED_ACTIONS = 20_000
"""Rules are tried on microbatches of about as many actions, and on no fewer than fill and drain the pipeline."""

FINALISTS = 2
"""Rules that are then tried on all microbatches."""


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
    rules = [_Rule(*rule) for rule in product((input_first, oldest_first, forward_first), (False, True), PATIENCE)]
    few = max(2 * problem.n_ranks, TRIED_ACTIONS // (3 * problem.n_stages))
    if problem.n_microbatches > few:
        tried = _made(replace(problem, n_microbatches=few), rules)
        rules = [made.rule for made in tried if made.rule is not None][:FINALISTS]
    return Lister(problem).schedule(_made(problem, rules)[0].order, "wave-greedy")


def _made(problem: Problem, rules: list[_Rule]) -> list[_Made]:
    """The rules' schedules, and ZB-V's if it fits, the fastest first; in the order of the rules where they tie."""
    from testbed.schedule.judge import Judge, coded

    static, lister = zb_v(problem), Lister(problem)
    patience_s = max(problem.forward_s)
    judge = Judge(problem, static)
    orders: list[tuple[_Rule | None, list[Ints]]] = []
    for rule in rules:
        keys = rule.priority(problem.n_stages, problem.n_microbatches)
        order = lister.order(keys, alternate=rule.alternate, patience_s=rule.patience * patience_s)
        orders.append((rule, order))
    if all(p <= limit + TOLERANCE for p, limit in zip(peaks(static, problem), problem.memory_limit, strict=True)):
        orders.append((None, coded(static)))
    made = [_Made(judge.makespan(order), rule, order) for rule, order in orders]
    return sorted(made, key=lambda one: one.makespan)


FAMILY = Family(wave_greedy, "ours: a greedy in a V of two chunks per rank", Placement.WAVE, uses_spare_memory=True)
