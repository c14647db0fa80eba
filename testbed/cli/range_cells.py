"""Times that may be ranges, for tables and JSON: what is predicted, or between what, by who comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from testbed.units import show_span, show_times

if TYPE_CHECKING:
    from testbed.planning.ties import Range


def show_ranges(seconds: Sequence[float | None], ranges: Sequence[Range | None]) -> list[str]:
    """A column in one unit: "670.7 ms", or "670.7 to 705.2 ms" where it is more than one prediction; "-" for None."""
    ends = [
        (predicted_s, None) if span is None or not span.order_sensitive else (span.low_s, span.high_s)
        for predicted_s, span in zip(seconds, ranges, strict=True)
    ]
    shown = iter(show_times([end for pair in ends for end in pair]))
    cells = zip(shown, shown, strict=True)
    return [low if high == "-" else show_span(low, high) for low, high in cells]
