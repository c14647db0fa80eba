"""Where pictures of a run mark what became of links and ranks: read from its comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class EventMark(NamedTuple):
    """An event in one iteration of a case; seconds from the beginning of that iteration."""

    said: str
    """As somebody wrote it."""
    iteration: int
    """As in iterations.parquet."""
    at_s: float
    """When it was to come."""
    until_s: float
    """When the last of it was, as the end of an outage."""
    late_s: float
    """By how much it came later."""

    @property
    def instants_s(self) -> list[float]:
        """When it was to come, once or twice."""
        return [self.at_s] if self.at_s == self.until_s else [self.at_s, self.until_s]


def event_marks(comparison: Mapping[str, Any], label: str) -> list[EventMark]:
    """Those of a case, in order of time; none of runs in which nothing changed."""
    found = [
        EventMark(one["event"], one["iteration"], one["at_s"], one["until_s"], one["late_s"] or 0.0)
        for one in comparison.get("link_events", ())
        if one["label"] == label
    ]
    return sorted(found, key=lambda mark: (mark.iteration, mark.at_s))
