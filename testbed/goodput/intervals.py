"""How often to save a job's state, by the formulas of Young (1974) and Daly (2006), and what is left of its time then.

Symbols: delta, seconds to save; M, mean time between failures of the whole job; R, seconds to restart; tau, seconds of
training between two checkpoints. All failures are independent of each other (exponential), and each is of any rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


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


def both_lost_share(rings: Sequence[int], restart_s: float, mtbf_s: float) -> float:
    """The share of failures behind which, before everything is restored, some rank and its neighbour are both lost.

    `rings`: of each ring of ranks in which every one keeps the state of the one before it, how many it has.
    Derivation: let k ranks be lost, no two of them neighbours, and f_k the chance that two will be. The restart comes
    to its end with e^(-R/M). Else the next failure is of a rank that is lost already (k/N), of a rank beside none of
    them, or of a neighbour. Every set of k ranks without neighbours is as likely as any other. I_k is how many there
    are, and a set of k + 1 comes from k + 1 of them, so that a rank beside none has the share a_k. So

        f_k = (1 - e^(-R/M)) (k/N f_k + a_k f_{k+1} + 1 - k/N - a_k),    a_k = (k + 1) I_{k+1} / (I_k N)

    and f_1 is asked for. Of a ring of n, I_k is n/(n - k) C(n - k, k) (I. Kaplansky, "Solution of the probleme des
    menages", 1943); of several, the products summed. To first order it is 2/N of 1 - e^(-R/M), and 1/N in pairs.
    """
    ranks, free = sum(rings), [1]
    for size, count in Counter(rings).items():
        for _ in range(count):
            free = _product(free, [_without_neighbours(size, k) for k in range(size // 2 + 1)])
    again, share = -math.expm1(-restart_s / mtbf_s), 0.0
    for k in range(len(free) - 1, 0, -1):
        apart = (k + 1) * free[k + 1] / (free[k] * ranks) if k + 1 < len(free) else 0.0
        share = again * (apart * share + 1 - k / ranks - apart) / (1 - again * k / ranks)
    return share


def _without_neighbours(size: int, chosen: int) -> int:
    """In how many ways so many of a ring can be chosen, no two of them neighbours."""
    return 1 if chosen == 0 else size * math.comb(size - chosen, chosen) // (size - chosen)


def _product(a: Sequence[int], b: Sequence[int]) -> list[int]:
    found = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            found[i + j] += x * y
    return found


def expected_goodput_in_memory(
    interval_s: float,
    save_s: float,
    restart_s: float,
    mtbf_s: float,
    *,
    per_disk: int,
    disk_save_s: float,
    both_lost: float,
) -> float:
    """The same where a checkpoint is in memory, lost with the share `both_lost` of failures (`both_lost_share`), and
    every `per_disk`-th one on disk as well, which takes `disk_save_s` more. A restart takes R from either.

    Derivation: with q = 1 - e^(-s/M), s what training to the next checkpoint and saving it take, the time until that
    ends or a failure comes is M q on average; a failed one costs M (e^(R/M) - 1) more until a restart comes to its end
    (as in Daly's). Then training goes on from checkpoint j, or, where that is lost, from the one on disk, number 0:

        E_j = M q + q M (e^(R/M) - 1) + (1 - q) E_{j+1} + q ((1 - f) E_j + f E_0)

    is the time from checkpoint j to the next one on disk, E_n = 0. Each E_j is a_j + b_j E_0, so that E_0 is
    a_0 / (1 - b_0), and goodput n tau / E_0. Without f it is Daly's formula.
    """
    left_s, of_first = 0.0, 0.0
    for number in range(per_disk, 0, -1):
        span_s = interval_s + save_s + (disk_save_s if number == per_disk else 0.0)
        failing = -math.expm1(-span_s / mtbf_s)
        spent_s = failing * mtbf_s * math.exp(restart_s / mtbf_s)
        goes_on = 1 - failing * (1 - both_lost)
        left_s = (spent_s + (1 - failing) * left_s) / goes_on
        of_first = ((1 - failing) * of_first + failing * both_lost) / goes_on
    return per_disk * interval_s * (1 - of_first) / left_s
