"""The event model on a real machine: every message takes what messages were measured to take beyond the model.

What a machine's network stack costs a message is no property of the experiment, so it is kept out of the prediction
proper; here it is added, drawn at random from a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What messages took beyond the model, in seconds, by iteration of the measurement."""

    by_flow: Mapping[tuple[int, int], Sequence[Floats]]
    """By pipeline rank that sends and that takes: per iteration, the times of the messages whose arrival is known."""
    crossing: frozenset[tuple[int, int]]
    """The flows among them that cross links."""

    @property
    def iterations(self) -> int:
        """How many were measured."""
        return max(map(len, self.by_flow.values()), default=0)

    def of(self, source: int, target: int, crosses: bool) -> Floats:
        """All times of a flow; of one that was not measured, those of flows that cross links as it does, or of all.

        Raises ValueError where nothing was measured.
        """
        alike = [parts for pair, parts in self.by_flow.items() if (pair in self.crossing) is crosses]
        for parts in ([self.by_flow.get((source, target), ())], alike, list(self.by_flow.values())):
            if times := [one for part in parts for one in part if len(one)]:
                return np.concatenate(times)
        raise ValueError("no message was measured")

    def of_iteration(self, number: int, source: int, target: int) -> Floats:
        """The times of a flow in one iteration; empty where too few are known."""
        parts = self.by_flow.get((source, target), ())
        return parts[number] if number < len(parts) and len(parts[number]) >= _ENOUGH else np.zeros(0)


_ENOUGH = 2
"""Messages of a flow in one iteration, for it to be drawn from alone."""


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


class _Flow(NamedTuple):
    """The messages of a flow in the program, and what to draw from: all times, and those of each iteration."""

    messages: NDArray[np.int64]
    all: Floats
    of_iteration: Sequence[Floats]


class _Drawn:
    """Draws extra times for the messages of an iteration, all from one measured iteration.

    What a machine does to one message it often does to the next: messages drawn one by one would average that out.
    """

    def __init__(self, load: Load, names: Names, extra: ExtraTimes) -> None:
        rows, ranks = names.messages, load.problem.n_ranks
        between = np.isin(rows["kind"], (ACTIVATION, GRADIENT)) & (rows["source_rank"] != rows["target_rank"])
        self._iterations = extra.iterations
        self._flows: list[_Flow] = []
        for source, target in sorted(set(zip(rows["source_rank"][between], rows["target_rank"][between], strict=True))):
            mine = between & (rows["source_rank"] == source) & (rows["target_rank"] == target)
            paths = load.problem.paths[int(source) // ranks]
            a, b = int(source) % ranks, int(target) % ranks
            each = [extra.of_iteration(number, a, b) for number in range(self._iterations)]
            self._flows.append(_Flow(np.flatnonzero(mine), extra.of(a, b, bool(paths.route(a, b))), each))

    def once(self, random: np.random.Generator, n_messages: int) -> Floats:
        """Extra times for all messages of an iteration; 0 for those that stay on their rank."""
        times, number = np.zeros(n_messages), int(random.integers(self._iterations))
        for flow in self._flows:
            measured = flow.of_iteration[number] if len(flow.of_iteration[number]) else flow.all
            times[flow.messages] = random.choice(measured, len(flow.messages))
        return times
