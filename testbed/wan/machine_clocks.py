"""By how much the clocks of machines differ: bounds from exchanges of two words there and back (as in NTP).

A word that leaves at t0 by our clock and is there at t1 by theirs says that their clock is ahead by no more than
t1 - t0, since no word arrives before it is sent; one that leaves there at t2 and is here at t3, that it is ahead by no
less than t2 - t3. Every exchange narrows both sides; what lies between them is half a round trip either way at best,
because nothing tells how a round trip divides into there and back. (Mills, RFC 5905; each side's least: Cristian 1989.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from testbed.thresholds import CLOCK_PACE

_REMEMBERED = 512
"""Exchanges of one clock: those before say less than the last ones."""

_GRAIN_S = 1e-9
"""Clocks tell nanoseconds, and rounding takes less: by so little nothing contradicts."""


class ClockExchange(NamedTuple):
    """What one exchange says of another clock, in seconds."""

    at_s: float
    """When, by our clock."""
    most_s: float
    """It is ahead of ours by no more than this ..."""
    least_s: float
    """... and by no less."""

    @property
    def round_trip_s(self) -> float:
        """How long both words were on their way."""
        return self.most_s - self.least_s


class ClockOffset(NamedTuple):
    """By how much another clock is ahead of ours, and how far off that may be."""

    seconds: float
    uncertainty_s: float


OURS = ClockOffset(0.0, 0.0)


class ClockOffsets:
    """Of one other clock, at any time; what was found before or after is less sure the longer ago it is."""

    def __init__(self) -> None:
        self.exchanges: deque[ClockExchange] = deque(maxlen=_REMEMBERED)
        self.contradictions = 0
        """Exchanges that no offset explains beside those before them: from then on, only what follows counts."""

    def add(self, exchange: ClockExchange) -> None:
        """Learn from one more."""
        if self.exchanges:
            most_s, least_s = self._bounds(exchange.at_s)
            if exchange.most_s < least_s - _GRAIN_S or exchange.least_s > most_s + _GRAIN_S:
                self.contradictions += 1
                self.exchanges.clear()
        self.exchanges.append(exchange)

    def at(self, time_s: float) -> ClockOffset:
        """At an instant of our clock. Raises ValueError before the first exchange."""
        most_s, least_s = self._bounds(time_s)
        return ClockOffset((most_s + least_s) / 2, max(0.0, most_s - least_s) / 2)

    def _bounds(self, time_s: float) -> tuple[float, float]:
        drifts_s = [CLOCK_PACE * abs(time_s - exchange.at_s) for exchange in self.exchanges]
        pairs = list(zip(self.exchanges, drifts_s, strict=True))
        most_s = min(exchange.most_s + drift_s for exchange, drift_s in pairs)
        least_s = max(exchange.least_s - drift_s for exchange, drift_s in pairs)
        return most_s, least_s


def between_the_worst(offsets: Sequence[ClockOffset]) -> float:
    """How far off the difference of two machines' clocks may be, for the two of which it is worst known; `offsets` of
    all machines but ours, which knows its own."""
    worst = sorted((offset.uncertainty_s for offset in offsets), reverse=True)
    return sum(worst[:2])
