"""How often to save a job's state, by the formulas of Young (1974) and Daly (2006), and what is left of its time then.

Symbols: delta, seconds to save; M, mean time between failures of the whole job; R, seconds to restart; tau, seconds of
training between two checkpoints. All failures are independent of each other (exponential).
"""

from __future__ import annotations

import math


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """sqrt(2 delta M): J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006: the optimum
    to third order."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return young_interval_s(save_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def expected_goodput(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """The share of a long training's time that trains what is kept, where a checkpoint follows every `interval_s`.

    Daly 2006, the complete model: wall time is M e^(R/M) (e^((tau + delta)/M) - 1) for each tau that is kept;
    failures come while saving and restarting, too.
    """
    wall_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + save_s) / mtbf_s)
    return interval_s / wall_s
