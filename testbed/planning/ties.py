"""Predictions that hang on who comes first: what meets within microseconds at a link can come in either order.

The model orders it by who was scheduled first, and by constants that are right to some microseconds; the kernel by
what it happens to do. Where a plan's symmetry brings messages of two ranks to a link at one instant, or with late
receives a notice and a message, either order can be the real one, and what follows from it can differ by per cents.
Such a prediction is a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from testbed.model.lower import Load
from testbed.model.orders import Order, Orders
from testbed.model.simulate import compile_for
from testbed.thresholds import ONE_PREDICTION

MOVED = 10
"""A message that takes so many times `tie_s` longer or shorter in another order hangs on it. What is drawn moves
messages by up to 7 times it without changing any order, found on 30 plans of benchmarks/ranges.py."""

ORDERS = 64
"""Orders that are tried of a plan in which anything hangs on them; an even number."""

FIRST_ORDERS = 16
"""So many are tried before it is given up that any changes anything."""

EVENTS = 400_000
"""What they may cost (some 2 us each, compiled): a larger plan is tried in fewer orders, in FIRST_ORDERS at least."""


class Range(NamedTuple):
    """Iteration times of one job of a case, in seconds from its start, over the orders that may come about.

    Twice the same where only its messages hang on the order, not the time.
    """

    low_s: float
    high_s: float

    @property
    def order_sensitive(self) -> bool:
        """Whether it is more than one time: its ends are further apart than two predictions of one."""
        return self.high_s > self.low_s * (1 + ONE_PREDICTION)

    def moved(self, seconds: float) -> Range:
        """As much wide, so much later."""
        return Range(self.low_s + seconds, self.high_s + seconds)

    def scaled(self, factor: float) -> Range:
        """The same in another unit of time."""
        return Range(self.low_s * factor, self.high_s * factor)


def range_keys(predicted_range: Range | None) -> dict[str, float | None]:
    """Its ends under the keys of comparison.json; None where nothing hangs on who comes first."""
    return {
        "predicted_low_s": None if predicted_range is None else predicted_range.low_s,
        "predicted_high_s": None if predicted_range is None else predicted_range.high_s,
    }


def worst_s(predicted_s: float, predicted_range: Range | None) -> float:
    """The most that a time may be, which what chooses goes by: its prediction where that is one time."""
    return predicted_s if predicted_range is None else predicted_range.high_s


def ranges_of_orders(loads: Sequence[Load]) -> list[Range | None]:
    """Per job, what the model says of jobs that share a network, in the orders in which messages may come.

    None where nothing hangs on them. The same jobs give the same ranges. Raises as a prediction.
    """
    return ranges_in(orders_of(loads), loads)


def orders_of(loads: Sequence[Load]) -> Orders:
    """The orders in which messages of jobs that share a network may come, with the one that is predicted run."""
    return Orders(loads, max(load.problem.tie_s for load in loads))


def ranges_in(orders: Orders, loads: Sequence[Load]) -> list[Range | None]:
    """As `ranges_of_orders`, of `orders_of` these jobs."""
    if not orders.tied():
        return [None] * len(loads)
    compile_for(FIRST_ORDERS * orders.events)
    drawn, predicted = orders.drawn(), orders.predicted_s
    found = list(islice(drawn, FIRST_ORDERS))
    if any(found_range is not None for found_range in _ranges(loads, predicted, found)):
        found += islice(drawn, max(0, min(ORDERS, EVENTS // orders.events) - FIRST_ORDERS))
    return _ranges(loads, predicted, found)


def _ranges(loads: Sequence[Load], predicted_s: Sequence[float], found: Sequence[Order]) -> list[Range | None]:
    """Per job, over the order that is predicted and these."""
    ranges: list[Range | None] = []
    for job, load in enumerate(loads):
        ends = [predicted_s[job], *(order.ends_s[job] for order in found)]
        over_orders = Range(min(ends) - load.start_s, max(ends) - load.start_s)
        if not over_orders.order_sensitive:
            moved = max(order.moved_s[job] for order in found) > MOVED * load.problem.tie_s
            alone = predicted_s[job] - load.start_s
            ranges.append(Range(alone, alone) if moved else None)
        else:
            ranges.append(over_orders)
    return ranges
