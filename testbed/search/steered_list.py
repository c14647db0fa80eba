"""List scheduling for any placement, steered by an evolution strategy: good schedules of whole blocks in seconds.

What a rank prefers is when each action *should* start: its microbatch's turn in a steady rhythm, plus an offset per
stage and kind. Offsets, rhythm, patience, and a belief about how much memory a stage's microbatch takes (never less
than it does, so every schedule stays valid) are searched; the event model judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.model.bounds import lower_bound
from testbed.model.network import Ints
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem
from testbed.pipeline.ticks import in_ticks
from testbed.search.incumbent import Incumbent
from testbed.search.list_scheduler import Lister, input_first

MOST_EVALUATIONS = 400
EVALUATED_ACTIONS = 400_000
"""Evaluations are cut so that about this many actions are scheduled in all: a few seconds."""

PATIENCE = (0.0, 0.1, 0.25, 0.5, 1.0)
"""How long a rank may wait for a better action, in forwards of a rank."""

DRAWS = 60
"""The first evaluations are spread about the start, MUTATIONS_PER_DRAW away each; the best of them is then improved."""

MUTATIONS_PER_DRAW = 4

_SIGMA = 0.3
_MOST_RESERVED = 1.5


@dataclass(frozen=True)
class _Steering:
    """What the list scheduler is told; times in units of one microbatch's way there and back."""

    rhythm: float
    """From one microbatch's turn to the next's."""
    offsets: NDArray[np.float64]
    """(S, 3): F, I, W"""
    reserved: NDArray[np.float64]
    """(S,): a stage's microbatch is believed to need this share more memory; below 0 counts as 0."""
    patience: float
    alternate: bool

    def mutated(self, generator: np.random.Generator) -> _Steering:
        rhythm, patience, alternate = self.rhythm, self.patience, self.alternate
        offsets, reserved = self.offsets.copy(), self.reserved.copy()
        half = len(reserved) // 2
        chunk = (slice(None, half), slice(half, None))[generator.integers(2)]
        what = generator.random()
        if what < 0.3:  # all stages of a pass together, or a few anywhere
            offsets[chunk, generator.integers(3)] += generator.normal(0.0, _SIGMA)
        elif what < 0.6:
            offsets += (generator.random(offsets.shape) < 0.1) * generator.normal(0.0, _SIGMA, offsets.shape)
        elif what < 0.8:
            reserved[chunk] += generator.normal(0.0, _SIGMA)
        else:
            reserved += (generator.random(reserved.shape) < 0.2) * generator.normal(0.0, _SIGMA, reserved.shape)
        if generator.random() < 0.3:
            rhythm *= float(np.exp(generator.normal(0.0, 0.5)))
        if generator.random() < 0.1:
            patience = PATIENCE[generator.integers(len(PATIENCE))]
        if generator.random() < 0.05:
            alternate = not alternate
        return _Steering(rhythm, offsets, reserved.clip(-_SIGMA, _MOST_RESERVED), patience, alternate)


def steered_list(
    problem: Problem,
    evaluations: int | None = None,
    time_limit_s: float = math.inf,
    seed: int = 1,
    offer: Callable[[Schedule], object] | None = None,
) -> Schedule:
    """The best schedule found; the same seed gives the same one unless the time limit ends the search.

    Whole blocks, microbatches in order per stage and kind. `offer` is told of every better one. Raises BadInput when a
    rank cannot hold a microbatch.
    """
    # compiled code, slow to import: only where it is used
    from testbed.search.order_evaluator import OrderEvaluator

    problem = in_ticks(problem)  # whatever is compared below comes out the same in every unit
    incumbent: Incumbent[list[Ints]] = Incumbent(time_limit_s, lower_bound(problem).seconds)
    lister = Lister(problem)
    plain = lister.order(input_first(problem.n_stages, problem.n_microbatches))
    judge = OrderEvaluator(problem, lister.schedule(plain, "steered-list"))
    incumbent.offer(plain, judge.makespan(plain))
    actions = 3 * problem.n_stages * problem.n_microbatches
    generator = np.random.default_rng(seed)
    first = steering = _first(problem)
    steered_s = math.inf
    for number in range(evaluations or min(MOST_EVALUATIONS, max(12, EVALUATED_ACTIONS // actions))):
        if incumbent.over():
            break
        trial = steering.mutated(generator)
        if number < DRAWS:
            trial = first
            for _ in range(MUTATIONS_PER_DRAW):
                trial = trial.mutated(generator)
        try:
            order = _ordered(problem, trial)
        except BadInput:  # believes that not even one microbatch fits
            continue
        seconds = judge.makespan(order)
        if seconds <= steered_s:
            steering, steered_s = trial, seconds
        if incumbent.offer(order, seconds) and offer is not None:
            offer(lister.schedule(order, "steered-list"))
    return lister.schedule(incumbent.best, "steered-list")


def _first(problem: Problem) -> _Steering:
    """Each action when its microbatch alone would run it; weight gradients when nothing else is left to do."""
    n = problem.n_stages
    f, i = np.array(problem.forward_s), np.array(problem.input_s)
    ahead, back = np.cumsum(f) - f, f.sum() + np.cumsum(i[::-1])[::-1] - i
    whole = float(f.sum() + i.sum()) or 1.0
    offsets = np.stack([ahead / whole, back / whole, np.full(n, 3.0)], axis=1)
    busiest = max(f.sum(), i.sum(), sum(problem.weight_s)) * 3 / problem.n_ranks
    return _Steering(busiest / whole, offsets, np.zeros(n), 0.0, False)


def _ordered(problem: Problem, steering: _Steering) -> list[Ints]:
    share = 1.0 + steering.reserved.clip(0.0)
    believed = replace(
        problem,
        activation=tuple(taken * more for taken, more in zip(problem.activation, share, strict=True)),
        input_memory=tuple(taken * more for taken, more in zip(problem.input_memory, share, strict=False)),
    )
    order_keys = steering.offsets[:, :, None] + np.arange(problem.n_microbatches) * steering.rhythm
    patience_s = steering.patience * sum(problem.forward_s) / problem.n_ranks
    return Lister(believed).order(order_keys, alternate=steering.alternate, patience_s=patience_s)
