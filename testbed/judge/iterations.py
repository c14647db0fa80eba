"""From what every rank wrote down to one measured trace and one row per iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.lab.machine_witness import MachineCounts
from testbed.thresholds import OVERRUN_LEAST_S
from testbed.trace.summary import summaries
from testbed.trace.tables import Trace
from testbed.train.assignment import IterationRecord, MessageName
from testbed.train.rank_witness import RankWitness

MEDIAN_INTERVAL = 0.95
"""How surely the interval that is told of a median holds it."""


class Witnesses(NamedTuple):
    """What the machine did during an iteration; nan where it does not tell."""

    rank_queued_s: float = math.nan
    """Of the rank whose computing thread was longest runnable without running, as the next one for gloo's threads."""
    threads_queued_s: float = math.nan
    relay_queued_s: float = math.nan
    """nan without a relay, and where the kernel does not tell, as the others."""
    kernel_queued_s: float = math.nan
    """Of the kernel's threads that carry packets on, together."""
    steal_s: float = math.nan
    """Per processor, what the owner of a virtual machine took."""
    involuntary_switches: float = math.nan
    """Of all ranks."""
    wake_late_s: float = math.nan
    """Of the sleep at the end of a slot that ended latest, on any rank."""
    clock_step_s: float = math.nan
    """By how much the wall clock was moved."""


class IterationRow(NamedTuple):
    """One iteration as a whole; a row of iterations.parquet. A column that is added is nan in earlier runs."""

    iteration: int
    warmup: bool
    makespan_s: float
    bubble_ratio: float
    loss: float
    peak_in_flight: tuple[float, ...]
    """Per rank, most microbatches in flight by the order of its actions."""
    held: tuple[float, ...]
    """Per rank, most microbatches whose tensors its stages really held."""
    overruns: int
    """Actions whose real computation did not fit into their slot."""
    worst_overrun_s: float
    actions: int
    late_start_s: float
    """Of the rank that was latest at the common start."""
    witnesses: Witnesses = Witnesses()
    """What the machine did meanwhile."""
    gradient_norms: tuple[float, ...] = ()
    """Of every layer."""
    begin_s: float = math.nan
    """When it began, in seconds since the common start of all jobs, where jobs run freely; nan where all begin it."""


def trace(records: Sequence[IterationRecord], n_ranks: int | None = None) -> Trace:
    """The measured trace of one iteration, from the records of all its ranks; of a job that has `n_ranks`, where some
    had no part in it."""
    actions = np.concatenate([record.actions for record in records])
    messages = np.concatenate([record.received for record in records])
    sent = {message: when for record in records for message, when in record.sent.items()}
    for row in messages:
        row["sent_s"] = sent[MessageName(*(int(row[name]) for name in MessageName._fields))]
    return Trace(actions, messages, len(records) if n_ranks is None else n_ranks)


def iteration_row(
    records: Sequence[IterationRecord],
    warmup: int,
    machine: MachineCounts,
    begin_s: float = math.nan,
    n_ranks: int | None = None,
) -> IterationRow:
    """The summary of one iteration; the first `warmup` iterations are marked as such.

    `machine` is what it counted from the end of the iteration before to the end of this one. `n_ranks` as in `trace`:
    those without a part hold nothing.
    """
    measured = trace(records, n_ranks)
    held = {record.rank: record.peak_in_flight for record in records}
    (summary,) = summaries(measured)
    overruns = np.concatenate([np.array(record.overruns_s) for record in records])
    late = overruns[overruns > OVERRUN_LEAST_S]
    losses = [record.loss for record in records if record.loss is not None]
    return IterationRow(
        iteration=records[0].iteration,
        warmup=records[0].iteration < warmup,
        makespan_s=summary.makespan_s,
        bubble_ratio=summary.bubble_ratio,
        loss=sum(losses),
        peak_in_flight=summary.peaks,
        held=tuple(held.get(rank, 0.0) for rank in range(measured.n_ranks)),
        overruns=len(late),
        worst_overrun_s=float(late.max()) if len(late) else 0.0,
        actions=len(measured.actions),
        late_start_s=max(record.late_start_s for record in records),
        gradient_norms=_norms(records),
        witnesses=_witnesses([record.witness for record in records], machine),
        begin_s=begin_s,
    )


def _witnesses(ranks: Sequence[RankWitness], machine: MachineCounts) -> Witnesses:
    return Witnesses(
        rank_queued_s=max(rank.rank_queued_s for rank in ranks),
        threads_queued_s=max(rank.threads_queued_s for rank in ranks),
        relay_queued_s=machine.relay_queued_s,
        kernel_queued_s=machine.kernel_queued_s,
        steal_s=machine.steal_s,
        involuntary_switches=sum(rank.involuntary_switches for rank in ranks),
        wake_late_s=max(rank.wake_late_s for rank in ranks),
        clock_step_s=machine.clock_offset_s,
    )


def _norms(records: Sequence[IterationRecord]) -> tuple[float, ...]:
    """The Euclidean norm of every layer's gradients, of which each replica keeps a shard."""
    squares: dict[int, float] = {}
    for record in records:
        for layer, part in record.gradient_squares.items():
            squares[layer] = squares.get(layer, 0.0) + part
    return tuple(math.sqrt(squares[layer]) for layer in sorted(squares))


def median_and_iqr(values: NDArray[np.float64]) -> tuple[float, float]:
    """Median, and distance between the quartiles."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float(middle), float(high - low)


def median_known_to(values: NDArray[np.float64]) -> float:
    """How far the ends of the median's 95 % interval are from the median, as a share of it: the further one.

    The ends are order statistics, whatever the distribution: the number of values below the median is binomial with a
    chance of one half (Conover, Practical Nonparametric Statistics, 3.2). Fewer than six values: the extremes.
    """
    ordered, middle = np.sort(values), float(np.median(values))
    count, below, likely = len(ordered), 0, 0.0
    while (likely := likely + math.comb(count, below) / 2**count) <= (1 - MEDIAN_INTERVAL) / 2:
        below += 1
    low, high = ordered[max(below - 1, 0)], ordered[min(count - below, count - 1)]
    return float(max(middle - low, high - middle)) / middle
