"""Was a run what it says it was? A run that fails a threshold is untrusted and says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from testbed.judge.iterations import IterationRow
from testbed.judge.thresholds import (
    MAX_LATE_START_S,
    MAX_LATE_START_SHARE,
    MAX_OVERRUN_SHARE,
    MAX_SPREAD,
    MAX_TRAFFIC_BYTES,
    MAX_TRAFFIC_PER_MESSAGE_BYTES,
    MAX_TRAFFIC_SHARE,
)


class Traffic(NamedTuple):
    """One direction of a link while a case was trained."""

    direction: str
    counted_bytes: float
    planned_bytes: float
    messages: int
    """That crossed it, or were acknowledged across it."""


class NetworkEvidence(NamedTuple):
    """What the lab counted while a schedule was trained."""

    drops: int
    retransmits: int
    other: dict[str, int]
    """TCP's other signs of loss or squeeze, by counter name, those above 0."""
    lossless: bool
    """Whether the experiment asked for a network without loss."""


def run_reasons(rows: Sequence[IterationRow], network: NetworkEvidence, paced: bool) -> list[str]:
    """Why the run of one schedule cannot be trusted; [] when it can. `rows` are the measured iterations."""
    reasons: list[str] = []
    if any(row.held != row.peak_in_flight for row in rows):
        reasons.append("a rank held another number of microbatches than the order of its actions needs")
    share = sum(row.overruns for row in rows) / sum(row.actions for row in rows)
    if paced and share > MAX_OVERRUN_SHARE:
        worst = max(row.worst_overrun_s for row in rows)
        reasons.append(
            f"{share:.1%} of the actions did not fit into their slots (worst by {worst * 1e3:.1f} ms, "
            f"limit {MAX_OVERRUN_SHARE:.0%}): longer pacing or a smaller model is needed"
        )
    late = np.mean([row.late_start_s > MAX_LATE_START_S for row in rows])
    if late > MAX_LATE_START_SHARE:
        worst = max(row.late_start_s for row in rows)
        reasons.append(f"a rank started late in {late:.0%} of the iterations (worst by {worst * 1e3:.1f} ms)")
    times = np.array([row.makespan_s for row in rows])
    low, median, high = np.percentile(times, (25, 50, 75))
    if (high - low) / median > MAX_SPREAD:
        reasons.append(f"iteration times spread by {(high - low) / median:.1%} (limit {MAX_SPREAD:.0%})")
    if network.lossless and network.drops:
        reasons.append(f"{network.drops} packets were dropped on a network that should lose none")
    if network.lossless and network.retransmits:
        reasons.append(f"TCP retransmitted {network.retransmits} segments on a network that should lose none")
    if network.lossless and network.other:
        counts = ", ".join(f"{name} {count}" for name, count in network.other.items())
        reasons.append(f"TCP had to squeeze or drop: {counts}")
    return reasons


def traffic_reasons(traffic: Sequence[Traffic], *, lossless: bool) -> list[str]:
    """Directions that did not carry what the plan's routes send over them; where data is sent again, more is right."""
    reasons = []
    for one in traffic:
        allowed = MAX_TRAFFIC_SHARE * one.planned_bytes + MAX_TRAFFIC_PER_MESSAGE_BYTES * one.messages
        allowed += MAX_TRAFFIC_BYTES
        off = one.counted_bytes - one.planned_bytes
        if off < -allowed or (lossless and off > allowed):
            reasons.append(
                f"{one.direction} carried {one.counted_bytes:.0f} bytes, its routes should bring "
                f"{one.planned_bytes:.0f} (±{allowed:.0f}): traffic did not take the routes of the plan"
            )
    return reasons
