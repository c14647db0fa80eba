"""Makespan, bubble and peak in flight of a trace: one code for what is predicted and what is measured."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.pipeline.ir import Kind
from testbed.trace.tables import KINDS, Table, Trace


class Summary(NamedTuple):
    """One iteration in numbers."""

    makespan_s: float
    """From the common start to the end of the last action, on any rank."""
    bubble_ratio: float
    """Idle share of all ranks' time."""
    peaks: tuple[float, ...]
    """Per rank, the most microbatches in flight; 1/v each with v stages on the rank."""


def summaries(trace: Trace) -> list[Summary]:
    """One per iteration, in ascending order."""
    return [
        Summary(float(makespan_s), float(bubble), peaks_in_flight(trace.of_iteration(int(iteration))))
        for iteration, makespan_s, bubble in zip(
            trace.iterations(), trace.makespans(), trace.bubble_ratios(), strict=True
        )
    ]


def peaks_in_flight(trace: Trace) -> tuple[float, ...]:
    """Per rank, the most microbatches in flight in a trace of one iteration: forward begun, B or W not yet ended."""
    return tuple(_peak(trace.actions[trace.actions["rank"] == rank]) for rank in range(trace.n_ranks))


def _peak(actions: Table) -> float:
    """Of one rank. A rank does one thing at a time, so the order of its actions' starts tells."""
    if not len(actions):
        return 0.0
    begins = (actions["kind"] == KINDS.index(Kind.F)) & (actions["part_begin"] == 0)
    frees = np.isin(actions["kind"], (KINDS.index(Kind.B), KINDS.index(Kind.W)))
    frees &= actions["part_end"] == actions["part_of"]
    order = np.argsort(actions["start_s"], kind="stable")
    held = np.cumsum(begins[order].astype(int) - frees[order].astype(int))
    return float(held.max(initial=0)) / len(np.unique(actions["stage"]))
