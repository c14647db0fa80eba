"""The event model on a real machine: every message takes what messages were measured to take beyond the model.

What a machine's network stack costs a message is no property of the experiment, so it is kept out of the prediction
proper; here it is added, drawn at random from a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.model.execute import last_end
from testbed.model.lower import Load, Names, lower
from testbed.model.simulate import run
from testbed.trace.tables import ACTIVATION, GRADIENT

Floats = NDArray[np.float64]

DRAWS = 100
"""Iterations simulated: enough for the 2.5th and the 97.5th percentile."""


class ExtraTimes(NamedTuple):
    """What messages took beyond the model, in seconds, sorted."""

    by_flow: Mapping[tuple[int, int], Floats]
    """By pipeline rank that sends and that takes."""
    by_kind: Mapping[bool, Floats]
    """The same times by whether the message crossed links; for flows that were not measured."""

    def of(self, source: int, target: int, crosses: bool) -> Floats:
        """What to draw from for a flow. Raises ValueError where nothing like it was measured."""
        for times in (self.by_flow.get((source, target)), self.by_kind.get(crosses), self.by_kind.get(not crosses)):
            if times is not None and len(times):
                return times
        raise ValueError("no message was measured")


class HostPrediction(NamedTuple):
    """Iteration time on this machine, in seconds."""

    median_s: float
    low_s: float
    """Nineteen iterations of twenty lie between this ..."""
    high_s: float
    """... and this."""


def predict_on_host(load: Load, extra: ExtraTimes, *, draws: int = DRAWS, seed: int = 1) -> HostPrediction:
    """Simulate iterations of a job alone, each message with an extra time of its own. Raises ValueError as `of`."""
    program, names = lower([load])
    drawn = _Drawn(load, names, extra)
    random = np.random.default_rng(seed)
    times = [
        last_end(late, run(late))
        for late in (
            program._replace(handover_s=program.handover_s + drawn.once(random, len(program.release)))
            for _ in range(draws)
        )
    ]
    low, median, high = np.percentile(times, (2.5, 50, 97.5))
    return HostPrediction(float(median), float(low), float(high))


class _Drawn:
    """The messages of every flow, and what their extra times are drawn from."""

    def __init__(self, load: Load, names: Names, extra: ExtraTimes) -> None:
        rows, ranks = names.messages, load.problem.n_ranks
        between = np.isin(rows["kind"], (ACTIVATION, GRADIENT)) & (rows["source_rank"] != rows["target_rank"])
        self._flows: list[tuple[NDArray[np.int64], Floats]] = []
        for source, target in sorted(set(zip(rows["source_rank"][between], rows["target_rank"][between], strict=True))):
            mine = between & (rows["source_rank"] == source) & (rows["target_rank"] == target)
            paths = load.problem.paths[int(source) // ranks]
            ends = int(source) % ranks, int(target) % ranks
            self._flows.append((np.flatnonzero(mine), extra.of(*ends, bool(paths.route(*ends)))))

    def once(self, random: np.random.Generator, n_messages: int) -> Floats:
        """Extra times for all messages of an iteration; 0 for those that stay on their rank."""
        times = np.zeros(n_messages)
        for messages, measured in self._flows:
            times[messages] = random.choice(measured, len(messages))
        return times
