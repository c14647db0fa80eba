"""What becomes of links while a case is trained: each event when the model has it, and when that really was."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from testbed.lab.shaping import TimedChange
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.planning.training_prediction import PlacedEvent
from testbed.units import show_time


class ChangingLinks(Protocol):
    """Links that can be changed while they carry traffic: a lab's."""

    def schedule_changes(self, changes: Sequence[TimedChange]) -> None:
        """See Lab."""

    def changes_happened(self) -> list[float]:
        """See Lab."""


class PlayedEvent(NamedTuple):
    """A row of link_events.parquet: what became of a direction, and when."""

    iteration: int
    """The round, warm-up counted."""
    at_s: float
    """When it was to come, from the common start of that iteration ..."""
    happened_s: float
    """... and when it came; nan for what did not come any more."""
    label: str
    """The direction."""
    event: str
    """As somebody wrote it."""
    delay_s: float
    """nan, as the next one, where that stayed."""
    rate_bps: float
    sends: str
    """"yes" or "no" where that changed, else ""."""
    loss: float
    """nan, as the next one, where that stayed."""
    jitter_s: float


class EventPlayer:
    """Plays what a case's training has of them."""

    def __init__(self, links: ChangingLinks, plan: Plan, placed: Sequence[PlacedEvent]) -> None:
        self._links, self._placed = links, placed
        self._scheduled: list[PlacedEvent | None] = []
        """What the links were told to become, in this order; None: what is so between two iterations, or no more."""
        self._planned, self._warmup = planned(plan.network).links, plan.jobs[0].workload.warmup
        self._starts_s: dict[int, float] = {}

    def expect(self, placed: Sequence[PlacedEvent]) -> None:
        """Another schedule goes on, in whose iterations what is still to come comes elsewhere."""
        self._placed = placed

    def announce(self, number: int, start_s: float) -> None:
        """The round of a number begins at this instant of the monotonic clock: until then links that send nothing do,
        since seconds count while jobs train, and what came between two rounds is in nobody's way. Raises RunFailed.
        """
        self._starts_s[number] = start_s
        mine, held = [one for one in self._placed if one.round == number], self._held_before(number)
        changes = [TimedChange(time.monotonic(), direction, sends=True) for direction in held]
        changes += [TimedChange(start_s, direction, sends=False) for direction in held]
        self._scheduled += [*[None] * len(changes), *mine]
        changes += [_change(one, start_s) for one in mine]
        if changes:
            self._links.schedule_changes(changes)

    def _held_before(self, number: int) -> list[int]:
        """The directions that send nothing as a round begins, each as often as there are outages of it."""
        held = list[int]()
        for one in sorted(self._placed, key=lambda one: (one.round, one.seconds)):
            if one.round < number and one.event.sends is False:
                held.append(one.event.direction)
            elif one.round < number and one.event.sends and one.event.direction in held:
                held.remove(one.event.direction)
        return held

    def down(self) -> str:
        """Which directions send nothing now, since when (as events count iterations) and why, in words; "" where all
        send."""
        now, begun = time.monotonic(), dict[int, list[PlacedEvent]]()
        for one in sorted(self._placed, key=lambda one: (one.round, one.seconds)):
            if one.event.sends is None or self._starts_s.get(one.round, math.inf) + one.seconds > now:
                continue
            mine = begun.setdefault(one.event.direction, [])
            if one.event.sends is False:
                mine.append(one)
            elif mine:
                mine.pop()
        found = {direction: mine[0] for direction, mine in begun.items() if mine}
        if not found:
            return ""
        first = next(iter(found.values()))
        labels = ", ".join(self._planned[direction].label for direction in found)
        sends = "sends" if len(found) == 1 else "send"
        when = f"{show_time(first.seconds)} into measured iteration {first.round - self._warmup}"
        return f"{labels} {sends} nothing since {when} ({first.event.said})"

    def end(self) -> list[PlayedEvent]:
        """What came, and all links as planned again. Raises RunFailed."""
        asked = [one for one in self._scheduled if one is not None]
        if not asked:
            return []
        last_s = max(self._starts_s[one.round] + one.seconds for one in asked)
        time.sleep(max(0.0, last_s - time.monotonic()))
        happened = [*self._links.changes_happened(), *[math.nan] * len(self._scheduled)]
        now = time.monotonic()
        directions = {one.event.direction for one in asked}
        back = [self._as_planned(now, number) for number in sorted(directions)]
        # of an outage whose end comes after the training
        over = [TimedChange(now, one.event.direction, sends=True) for one in asked if one.event.sends is False]
        self._links.schedule_changes(back + over)
        self._links.changes_happened()
        pairs = zip(self._scheduled, happened, strict=False)
        return [self._played(one, instant) for one, instant in pairs if one is not None]

    def _as_planned(self, now_s: float, number: int) -> TimedChange:
        link = self._planned[number]
        return TimedChange(now_s, number, link.delay_s, link.rate_bps, loss=link.loss, jitter_s=link.jitter_s)

    def _played(self, one: PlacedEvent, instant: float) -> PlayedEvent:
        event = one.event
        return PlayedEvent(
            one.round,
            one.seconds,
            instant - self._starts_s[one.round],
            self._planned[event.direction].label,
            event.said,
            math.nan if event.delay_s is None else event.delay_s,
            math.nan if event.rate_bps is None else event.rate_bps,
            "" if event.sends is None else ("yes" if event.sends else "no"),
            math.nan if event.loss is None else event.loss,
            math.nan if event.jitter_s is None else event.jitter_s,
        )


def _change(one: PlacedEvent, start_s: float) -> TimedChange:
    event = one.event
    when_s, becomes = start_s + one.seconds, (event.delay_s, event.rate_bps, event.sends, event.loss, event.jitter_s)
    return TimedChange(when_s, event.direction, *becomes)
