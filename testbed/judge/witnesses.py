"""What the machine did to an iteration, told from its witnesses alone, never from how long the iteration took."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.judge.iterations import IterationRow
from testbed.thresholds import DISTURBED_SHARE

ABSOLUTE = ("steal_s", "wake_late_s")
"""Nothing of these belongs to a run ..."""

BEYOND_USUAL = ("relay_queued_s", "threads_queued_s")
"""... and of these only what goes beyond what was usual, action by action, while the machine was measured: a relay and
gloo's threads always wait a little for each other's processors, more often where ranks send more."""


def disturbance_s(rows: Sequence[IterationRow], baseline: Sequence[IterationRow]) -> NDArray[np.float64]:
    """Per iteration, how much of its time the machine could explain, in seconds; 0 where no witness tells.

    `baseline` are iterations of the same job, measured before, whose medians are what this machine always takes.
    """
    total = np.zeros(len(rows))
    for name in ABSOLUTE:
        total += np.nan_to_num(_column(rows, name))
    actions = np.array([row.actions for row in rows])
    for name in BEYOND_USUAL:
        each = [getattr(row.witnesses, name) / row.actions for row in baseline]
        always = np.nan_to_num(np.median(each)) * actions if each else np.zeros(len(rows))
        total += np.maximum(np.nan_to_num(_column(rows, name)) - always, 0.0)
    return total


def disturbed(rows: Sequence[IterationRow], baseline: Sequence[IterationRow]) -> NDArray[np.bool_]:
    """Per iteration, whether its disturbance is more than the limit's share of its time."""
    times = np.array([row.makespan_s for row in rows])
    far: NDArray[np.bool_] = disturbance_s(rows, baseline) > DISTURBED_SHARE.value * times
    return far


def _column(rows: Sequence[IterationRow], name: str) -> NDArray[np.float64]:
    return np.array([getattr(row.witnesses, name) for row in rows], dtype=np.float64)
