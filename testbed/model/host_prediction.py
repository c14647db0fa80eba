"""The event model on a real machine: every message takes what messages were measured to take beyond the model.

What a machine's network stack costs a message is no property of the experiment, so it is kept out of the prediction
proper; here it is added, drawn at random from a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.model.lower import Load, lower
from testbed.model.network import Bools
from testbed.model.program import NONE
from testbed.model.program_columns import RowNames
from testbed.model.simulate import ends_by_job, run
from testbed.trace.tables import NOTICE

Floats = NDArray[np.float64]

FlowName = tuple[int, int, int]
"""The rank that sends, the one that takes, and the kind of message (its place in MESSAGE_KINDS)."""

DRAWS = 96
"""Iterations simulated, shared out among the measured ones that they draw from."""


class ExtraTimes(NamedTuple):
    """What messages took beyond the model, in seconds, by iteration of the measurement."""

    by_flow: Mapping[FlowName, Sequence[Floats]]
    """Per iteration, the times of the messages whose arrival is known. Kinds apart: when all ranks begin at once with
    an all-gather it takes longer than what two ranks send each other while the others compute."""
    crossing: frozenset[FlowName]
    """The flows among them that cross links."""

    @property
    def iterations(self) -> int:
        """How many were measured."""
        return max(map(len, self.by_flow.values()), default=0)

    def of(self, flow: FlowName, crosses: bool) -> Floats:
        """All times of a flow; of one that was not measured, those of other kinds between its ranks, of flows that
        cross links as it does, or of all.

        Raises ValueError where nothing was measured.
        """
        flows = self.by_flow.items()
        same_ranks = [parts for name, parts in flows if name[:2] == flow[:2]]
        as_far = [parts for name, parts in flows if (name in self.crossing) is crosses]
        for parts in ([self.by_flow.get(flow, ())], same_ranks, as_far, list(self.by_flow.values())):
            if times := [seconds for part in parts for seconds in part if len(seconds)]:
                return np.concatenate(times)
        raise ValueError("no message was measured")

    def differs_s(self, flow: FlowName, crosses: bool, n_later: int) -> float:
        """By how much the first quartile of a flow differs by chance from that of `n_later` later messages.

        Its standard deviation, for a normal distribution (1.36 sigma by the square root of the count, and sigma 0.74
        quartile distances). The quartile distance is that of all flows of its kind that cross links as it does, each
        from its own median: of a few messages alone it is not known. 0 where no such flow was measured.
        """
        draws = [
            np.concatenate(parts)
            for name, parts in self.by_flow.items()
            if name[2] == flow[2] and (name in self.crossing) is crosses and any(map(len, parts))
        ]
        if not draws or not n_later:
            return 0.0
        low, high = np.percentile(np.concatenate([times - np.median(times) for times in draws]), (25, 75))
        return float((high - low) * math.sqrt(1 / len(self.of(flow, crosses)) + 1 / n_later))

    def of_iteration(self, number: int, flow: FlowName) -> Floats:
        """The times of a flow in one iteration; empty where too few are known."""
        parts = self.by_flow.get(flow, ())
        return parts[number] if number < len(parts) and len(parts[number]) >= _ENOUGH else np.zeros(0)

    def with_later(self, later: ExtraTimes) -> ExtraTimes:
        """These iterations, then those of another measurement; a flow that one of them lacks is empty there."""
        none: Floats = np.zeros(0)
        padded = [
            {
                pair: [part for part, _ in zip_longest(parts, range(prediction.iterations), fillvalue=none)]
                for pair, parts in prediction.by_flow.items()
            }
            for prediction in (self, later)
        ]
        missing = [[none] * self.iterations, [none] * later.iterations]
        pairs = sorted({*self.by_flow, *later.by_flow})
        by_flow = {pair: [*padded[0].get(pair, missing[0]), *padded[1].get(pair, missing[1])] for pair in pairs}
        return ExtraTimes(by_flow, self.crossing | later.crossing)


_ENOUGH = 2
"""Messages of a flow in one iteration, for it to be drawn from alone."""


class HostPrediction(NamedTuple):
    """Iteration time on this machine, in seconds."""

    median_s: float
    low_s: float
    """Nineteen further iterations of twenty lie between this ..."""
    high_s: float
    """... and this, as far as so few measured ones can tell."""

    def with_spread(self, times_s: Floats) -> HostPrediction:
        """The same of iterations that differ on purpose, as the model has their times."""
        low_s, median_s, high_s = np.percentile(times_s, (2.5, 50, 97.5))
        return self._replace(low_s=self.low_s + low_s - median_s, high_s=self.high_s + high_s - median_s)

    def moved(self, seconds: float) -> HostPrediction:
        """The same of an iteration that takes so much longer without this machine."""
        return HostPrediction(*(each + seconds for each in self))


def predict_on_host(load: Load, extra: ExtraTimes, *, draws: int = DRAWS) -> HostPrediction:
    """Of a job alone; see `predict_jobs_on_host`."""
    (found,) = predict_jobs_on_host([load], [extra], draws=draws)
    return found


def predict_jobs_on_host(
    loads: Sequence[Load], extras: Sequence[ExtraTimes], *, draws: int = DRAWS
) -> list[HostPrediction]:
    """Simulate iterations of jobs together, each message with an extra time of its own, as measured of its job.

    The interval is the prediction interval for one further observation (Student's t): measured iterations differ from
    each other, since a machine has its phases, and messages within one do. Times are from a job's own start.
    Raises ValueError as `of`.
    """
    program, names = lower(loads)
    drawn = [
        _Drawn(names, program.part_of == NONE, number, load, extra)
        for number, (load, extra) in enumerate(zip(loads, extras, strict=True))
    ]
    random = np.random.default_rng(1)

    def simulated(number: int) -> list[float]:
        times = sum((draw.once(random, len(program.release), number) for draw in drawn), np.zeros(len(program.release)))
        late = program._replace(handover_s=program.handover_s + times)
        ends = ends_by_job(late, run(late), names)
        return [end_s - load.start_s for end_s, load in zip(ends, loads, strict=True)]

    iterations = max(extra.iterations for extra in extras)
    each = max(1, draws // iterations)
    times = np.array([[simulated(number) for _ in range(each)] for number in range(iterations)])
    return [_prediction(times[:, :, number]) for number in range(len(loads))]


def _prediction(times: Floats) -> HostPrediction:
    """`times`: measured iterations x draws from each."""
    middle, half = float(np.median(times)), _half_width(times)
    return HostPrediction(middle, middle - half, middle + half)


def _half_width(times: Floats) -> float:
    """Of the 95 % prediction interval; `times`: measured iterations x draws from each.

    None is known where only one iteration was measured: then what lies between the draws.
    """
    count = len(times)
    within = float(times.var(axis=1).mean())
    if count == 1:
        return _quantile(math.inf) * math.sqrt(within)
    of_draws = float(times.mean(axis=1).var(ddof=1))
    return _quantile(count - 1) * math.sqrt(of_draws * (1 + 1 / count) + within)


def _quantile(freedom: float) -> float:
    """The 97.5th percentile of Student's t (Abramowitz and Stegun 1964, 26.7.5); within 1 % from 3 degrees on."""
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


class _FlowTimes(NamedTuple):
    """The messages of a flow in the program, and what to draw from: all times, and those of each iteration."""

    messages: NDArray[np.int64]
    all: Floats
    of_iteration: Sequence[Floats]


class _Drawn:
    """Draws extra times for the messages of a job in an iteration, all from one measured iteration.

    What a machine does to one message it often does to the next: messages drawn one by one would average that out.
    """

    def __init__(self, names: RowNames, whole: Bools, job: int, load: Load, extra: ExtraTimes) -> None:
        """`whole`: per message, whether it is none of the parts of another."""
        rows = names.messages
        wanted = whole & (rows["kind"] != NOTICE) & (rows["source_rank"] != rows["target_rank"]) & (rows["job"] == job)
        first_rank = int(names.action_rank[names.action_job == job].min())
        self._flows: list[_FlowTimes] = []
        flows = rows[["source_rank", "target_rank", "kind"]]
        for source, target, kind in np.unique(flows[wanted]).tolist():
            mine = wanted & (flows == np.array((source, target, kind), flows.dtype))
            flow = source - first_rank, target - first_rank, kind
            each = [extra.of_iteration(number, flow) for number in range(extra.iterations)]
            every = extra.of(flow, load.problem.crosses(*flow[:2]))
            self._flows.append(_FlowTimes(np.flatnonzero(mine), every, each))

    def once(self, random: np.random.Generator, n_messages: int, number: int) -> Floats:
        """Extra times for all messages, drawn from measured iteration `number`; 0 for those that stay on their rank,
        and those of other jobs."""
        times = np.zeros(n_messages)
        for flow in self._flows:
            measured = flow.of_iteration[number] if len(flow.of_iteration[number]) else flow.all
            times[flow.messages] = random.choice(measured, len(flow.messages))
        return times
