"""Messages over a network that loses or delays packets by chance, against the model, which has neither.

Jitter moves a message by no more than was asked for, and of those that lost no packet most take what the model says, to
the microsecond: where packets are lost the quickest message of a flow in an iteration tells whether links, nodes and
ranks are as asked for, elsewhere most of them do, whenever that changed, also before the first iteration.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.judge.messages import KnownTimes
from testbed.thresholds import CHANCE_OF_LOSSES, CHANGE_SHIFT_VIRTUAL_S

Floats = NDArray[np.float64]


class FlowChance(NamedTuple):
    """What is left to chance on the way of a flow."""

    jitter_s: float | None
    """By so much jitter may make a message later or earlier, at most; None: nothing is known of that."""
    touched: float
    """The share of messages whose time losses, or gloo's all-reduce, may change."""
    order_s: float
    """By so much messages of others may come before or after it by chance."""

    @property
    def limit_s(self) -> float:
        """By how much messages of an iteration may be late or early: also in another order than predicted, unless it
        is the quickest that tells."""
        if self.jitter_s is None:
            return math.inf
        return CHANGE_SHIFT_VIRTUAL_S + self.jitter_s + (0.0 if self.touched > 0 else self.order_s)

    def shift_s(self, known: KnownTimes) -> Floats:
        """Per iteration, by how much messages were late or early, if by more than may be; else 0, and nan where nothing
        is known. Early are half of all, beside what free links owe them. Late is a quarter of all, and where packets
        are lost even the quickest, unless losses may well have touched as many."""
        late_s, early_s = known.quickest_s if self.touched > 0 else known.upper_s, known.beyond_free_s
        shift_s = np.where(np.isnan(known.quickest_s) | (self.jitter_s is None), math.nan, 0.0)
        for far, by_s in ((late_s > self.limit_s, late_s), (early_s < -self.limit_s, early_s)):
            if at_least(int(known.number[far].sum()), int(known.sent.sum()), self.touched) < CHANCE_OF_LOSSES:
                shift_s[far] = by_s[far]
        return shift_s


def at_least(count: int, of: int, chance: float) -> float:
    """How likely so many or more of all are, each with this chance (binomial distribution)."""
    if count == 0 or chance == 1.0:
        return 1.0
    if chance == 0.0:
        return 0.0
    log, log_other = math.log(chance), math.log1p(-chance)
    each = range(count, of + 1)
    terms = (math.log(math.comb(of, n)) + n * log + (of - n) * log_other for n in each)
    return math.fsum(map(math.exp, terms))
