"""Has the level of a series changed? A CUSUM in both directions, and the least of a window.

CUSUM: S = max(0, S + (y - mu) / sigma - k), an alarm where S > h, and the same for -y (Page, 1954). With k = 0.5 and
h = 5 a steady series of normal deviates gives a false alarm in 465 values, and a shift by 2 sigma is found in 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

SLACK = 0.5
"""k, in sigma: half of the smallest shift that has to be found."""

ALARM = 5.0
"""h, in sigma."""

LEAST_SIGMA = 0.01
"""Of the mean: what hardly varies at all, as on a virtual clock, must not raise an alarm for a nanosecond."""


class Level:
    """What a series is around, learnt from all of its values since the last reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._count, self._mean, self._above, self._below = 0, 0.0, 0.0, 0.0

    @property
    def mean(self) -> float:
        """Of all values since the last reset; 0 of none."""
        return self._mean

    def add(self, value: float, deviation: float = 0.0) -> bool:
        """Take the next value; whether it makes an alarm, after which the series begins anew with this value.

        `deviation` is that of a single value, as far as it is known; at least 1 % of the mean.
        """
        if self._count and self._is_elsewhere(value, deviation):
            self.reset()
            self._learn(value)
            return True
        self._learn(value)
        return False

    def move(self, mean: float) -> None:
        """What was taken for the mean so far is this, since all values were misread by as much."""
        self._mean = mean

    def _is_elsewhere(self, value: float, deviation: float) -> bool:
        sigma = max(deviation, LEAST_SIGMA * abs(self._mean))
        if not sigma:
            return value != self._mean
        shift = (value - self._mean) / sigma
        self._above = max(0.0, self._above + shift - SLACK)
        self._below = max(0.0, self._below - shift - SLACK)
        return max(self._above, self._below) > ALARM

    def _learn(self, value: float) -> None:
        self._count += 1
        self._mean += (value - self._mean) / self._count


class WindowedMinimum:
    """The least of the last few values: what a message takes that nothing was in the way of."""

    def __init__(self, window: int) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def reset(self) -> None:
        """Forget everything: a minimum would hide a rise until its window is over."""
        self._values.clear()

    def add(self, value: float) -> None:
        """Take the next value."""
        self._values.append(value)

    def replace(self, values: Iterable[float]) -> None:
        """Have these, the oldest first, in place of those in the window."""
        self._values = deque(values, self._values.maxlen)

    @property
    def values(self) -> tuple[float, ...]:
        """Those in the window, the oldest first."""
        return tuple(self._values)
