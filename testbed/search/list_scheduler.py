"""Event-driven list scheduling of whole blocks for any placement: a free rank starts the best action that is ready.

Links are those of the event model (first come, first served, several hops cut through), so what it plans is what
`simulate` predicts, but for reduce-scatters, which follow a stage's last action. Costs O(S M v log(S M)) for S stages,
M microbatches and v stages per rank.
By default an input gradient goes before a forward, and that before a weight gradient. A banker's check (Dijkstra) keeps
ranks with several stages, and recomputation, out of deadlock. Times are whole ticks (ticks.py): equal times are one
instant in every unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from testbed.errors import DoesNotFit
from testbed.model.gather import gathered
from testbed.model.network import Floats, Ints, idle_links
from testbed.pipeline.ir import Action, Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.memory import TOLERANCE
from testbed.pipeline.problem import Problem
from testbed.pipeline.ticks import in_ticks, tick_s
from testbed.search.blocks import SPLIT_KINDS, block_of
from testbed.search.boundary_links import boundary_links
from testbed.search.list_loop import LoopCosts, needed

Priority = Callable[[int, int], Floats]
"""(stages, microbatches) -> keys (S, 3, M) of F, I and W; among ready actions of a rank the lowest key starts."""


def input_first(n_stages: int, n_microbatches: int) -> Floats:
    """I before F before W; within a kind the deeper stage first: what was begun comes to its end."""
    return _ranked((1, 0, 2), n_stages, n_microbatches)


def oldest_first(n_stages: int, n_microbatches: int) -> Floats:
    """I before F before W; within a kind the oldest microbatch first, the deeper stage at equal age."""
    return _ranked((1, 0, 2), n_stages, n_microbatches, by_age=True)


def forward_first(n_stages: int, n_microbatches: int) -> Floats:
    """F before I before W; within a kind the deeper stage first."""
    return _ranked((0, 1, 2), n_stages, n_microbatches)


def _ranked(kinds: tuple[int, int, int], n_stages: int, n_microbatches: int, by_age: bool = False) -> Floats:
    deeper, older = np.arange(n_stages)[::-1, None, None], np.arange(n_microbatches)[None, None, :]
    within = older * n_stages + deeper if by_age else deeper * n_microbatches + older
    return np.array(kinds)[None, :, None] * float(n_stages * n_microbatches) + within


class Lister:
    """Makes orders of a problem's actions by one rule after the other."""

    def __init__(self, problem: Problem, most_ahead: Sequence[int] | None = None) -> None:
        """`most_ahead`: per stage, forwards that may have begun beyond its input gradients; default: any number.

        Raises DoesNotFit when a rank cannot hold a single microbatch.
        """
        self.problem, self.tick_s = in_ticks(problem), tick_s(problem)
        self.free = gathered(self.problem)
        most = (problem.n_microbatches,) * problem.n_stages if most_ahead is None else most_ahead
        self.costs = _costs(self.problem, np.rint(self.free.ready_s), np.array(most, np.int64))
        self.links = [LinkCost(round(link.delay_s), 1.0) for link in self.problem.links]

    def order(self, keys: Floats, *, alternate: bool = False, patience_s: float = 0.0) -> list[Ints]:
        """Per rank the numbers of its actions in order (blocks.py); see `list_schedule`."""
        from testbed.search.list_compiled import run  # slow to import: only where it is used

        patience = float(round(patience_s / self.tick_s)) if self.tick_s else 0.0
        wires = idle_links(self.links, np.rint(self.free.link_free_s).tolist())
        order, filled = run(self.costs, wires, keys, alternate, patience, self.problem.n_microbatches)
        assert filled.sum() == 3 * self.problem.n_stages * self.problem.n_microbatches
        return [row[:count] for row, count in zip(order, filled.tolist(), strict=True)]

    def schedule(self, order: list[Ints], name: str) -> Schedule:
        """An order as a schedule."""
        m = self.problem.n_microbatches
        rows = (zip(*(column.tolist() for column in block_of(row, m)), strict=True) for row in order)
        made = tuple(
            tuple(Action(stage, SPLIT_KINDS[kind], microbatch) for stage, kind, microbatch in row) for row in rows
        )
        return Schedule(name, made, self.problem.stage_to_rank, m)


def list_schedule(
    problem: Problem,
    *,
    priority: Priority = input_first,
    alternate: bool = False,
    patience_s: float = 0.0,
) -> Schedule:
    """A valid schedule of whole F, I and W blocks, microbatches in order per stage and kind.

    priority: the static key of every action. alternate: after an I prefer F, after an F prefer I, whatever their keys.
    patience_s: seconds a rank stays idle for a message that is on its way and has a better key than what is ready.
    Raises DoesNotFit when a rank cannot hold a single microbatch.
    """
    lister = Lister(problem)
    keys = priority(problem.n_stages, problem.n_microbatches)
    return lister.schedule(lister.order(keys, alternate=alternate, patience_s=patience_s), "list")


def _costs(problem: Problem, ready: Floats, most_ahead: Ints) -> LoopCosts:
    """What the loop counts with, of a problem in ticks. Raises DoesNotFit where a rank cannot hold a microbatch."""
    n_stages, ranks = problem.n_stages, range(problem.n_ranks)
    mine = [[s for s, holder in enumerate(problem.stage_to_rank) if holder == rank] for rank in ranks]
    stages = np.full((len(ranks), max(map(len, mine))), -1)
    for rank in ranks:
        stages[rank, : len(mine[rank])] = mine[rank]
    length, delta = (
        np.array([[cost(Action(s, kind, 0)) for kind in SPLIT_KINDS] for s in range(n_stages)])
        for cost in (problem.duration, problem.memory_delta)
    )
    peak = np.array([needed(stages[rank], delta, 0) for rank in ranks])
    for rank in ranks:
        if peak[rank] > problem.memory_limit[rank] + TOLERANCE:
            expected = f"at least {peak[rank]:g}, what one microbatch needs"
            raise DoesNotFit.of("list schedule", f"memory limit of rank {rank}", problem.memory_limit[rank], expected)
    simple = np.array([len(own) == 1 and delta[own[0], 1] <= 0 for own in mine], np.int64)
    limit = np.array(problem.memory_limit) + TOLERANCE
    crossed, holders = boundary_links(problem), np.array(problem.stage_to_rank)
    wire = crossed.wire.astype(np.float64)
    return LoopCosts(
        holders, stages, np.rint(length), delta, limit, peak, simple, ready, crossed.links, wire, most_ahead
    )
