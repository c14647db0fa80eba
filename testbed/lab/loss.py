"""Losses that were asked for: how many of so many packets a link with that share may lose, by chance."""

from __future__ import annotations

import math
from typing import NamedTuple

_WANTED_LOSSES = 100
"""So many to expect make a count worth something: by chance it is off by a tenth."""
_FEWEST, _MOST = 200, 20_000
_LONGEST_S = 2.0


class LossCount(NamedTuple):
    """Packets sent over a direction, and how many of them never came."""

    sent: int
    lost: int


def packets_to_send(loss: float, interval_s: float) -> int:
    """How many packets show whether a share `loss` (0..1) of them is lost, sent `interval_s` apart."""
    wanted = min(_MOST, max(_FEWEST, math.ceil(_WANTED_LOSSES / loss)))
    return max(1, min(wanted, int(_LONGEST_S / interval_s)))


def likely_losses(sent: int, loss: float, chance: float) -> tuple[int, int]:
    """The fewest and the most of `sent` packets that a link which loses a share `loss` (0..1) of them loses.

    Fewer, or more, are lost with a probability of `chance` at most: the binomial distribution's two tails.
    """
    return _below(sent, loss, chance), sent - _below(sent, 1.0 - loss, chance)


def _below(sent: int, share: float, chance: float) -> int:
    """The least number that at least a part 1 - `chance` of all draws of `sent` with `share` reach."""
    if share >= 1.0:
        return sent
    drawn, total = 0, 0.0
    odds = math.log(share) - math.log1p(-share)
    # the logarithm of the probability of exactly so many: a sum of small ones, none of which underflows early
    exactly = sent * math.log1p(-share)
    while True:
        total += math.exp(exactly)
        if total > chance:
            return drawn
        exactly += odds + math.log(sent - drawn) - math.log(drawn + 1)
        drawn += 1
