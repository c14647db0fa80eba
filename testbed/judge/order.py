"""Was a run whose prediction hangs on who comes first one of those that were predicted?"""

from __future__ import annotations

from testbed.judge.fidelity import Check
from testbed.thresholds import RANGE_MISS
from testbed.units import show_times


def range_check(measured_s: float, low_s: float, high_s: float) -> Check:
    """Whether a median iteration on the virtual clock lies in the range that is predicted, of other than one time."""
    missed = max(low_s - measured_s, measured_s - high_s, 0.0) / low_s
    off, limit = missed > RANGE_MISS.value, f"{RANGE_MISS.value:.2%}"
    low, high, measured = show_times([low_s, high_s, measured_s])
    reason = (
        f"{measured} lies {missed:.2%} outside the range that is predicted by who comes first, {low} to {high} "
        f"(limit {limit}): none of the orders that were tried, or something else"
    )
    return Check("outside its predicted range", f"{missed:.3%}", limit, RANGE_MISS.why, (reason,) if off else ())
