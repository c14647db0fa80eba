"""What the model says of a whole training whose links change, or the traffic beside the jobs: of every iteration, one
after the other.

An event's seconds count while jobs train. What has not come by the predicted end of an iteration comes in a later one,
so much earlier there; between iterations time stands still for events. So the model says in which iteration each event
comes, and how far into it, and a lab plays it there. The same of the times at which background traffic has other rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.model.lower import Load
from testbed.model.repeated import Slots
from testbed.model.simulate import simulate_jobs
from testbed.plan.background import rates_change, rates_from, route_of, streams_on
from testbed.plan.network_state import Piece, link_changes, link_costs, planned
from testbed.plan.plan import Case, Plan
from testbed.plan.timeline import LinkEvent
from testbed.trace.predictions import predicted_times_s
from testbed.trace.tables import Trace, concatenate
from testbed.units import show_time


class PlacedEvent(NamedTuple):
    """An event, and where it comes."""

    event: LinkEvent
    round: int
    """Of the training, warm-up counted."""
    seconds: float
    """From the common start of that round."""


class TrainingPrediction(NamedTuple):
    """Of all jobs at work in a case."""

    trace: Trace
    """Iterations that differ from those before them, by the number of the round; see trace/predictions.py."""
    events: tuple[PlacedEvent, ...]
    """That come while the case is trained."""
    loads: Mapping[int, Sequence[Load]]
    """What the jobs put on which network: by number of the round, for all up to the next one."""
    held_s: Mapping[int, float] = MappingProxyType({})
    """By number of the round, for how long some link sends nothing in it; none where all send."""
    endless: PlacedEvent | None = None
    """What has the training never end, in whose round nothing more comes to its end; what is predicted of it and of
    later ones is without it."""
    traffic_s: Mapping[int, float] = MappingProxyType({})
    """By number of the round, how far the time of background traffic that changes has come when it begins; of none
    where that keeps the rates that it has first."""
    by_chance: frozenset[int] = frozenset()
    """The rounds of the training so far in which packets are late by events, or lost in them or in one before: what
    the model has not."""

    def compared(self, rounds: Sequence[int]) -> list[int]:
        """Those of these rounds of which the model has all; every one where it has that of none."""
        return [number for number in rounds if number not in self.by_chance] or list(rounds)

    def usual(self, rounds: Sequence[int]) -> int:
        """The one of these rounds that takes what half of them take at most."""
        times_s = predicted_times_s(self.trace, rounds)
        return rounds[int(np.argsort(times_s, kind="stable")[(len(rounds) - 1) // 2])]

    def loads_of(self, number: int) -> Sequence[Load]:
        """What the jobs put on the network in the round of a number."""
        return self.loads[max(known for known in self.loads if known <= number)]

    def loads_of_job(self, index: int) -> dict[int, Load]:
        """The same of one of the jobs at work, by its place among them: by number of the round."""
        return {number: loads[index] for number, loads in self.loads.items()}


def as_round(trace: Trace, number: int) -> Trace:
    """The same of one iteration, which gets the number of its round."""
    trace.actions["iteration"] = trace.messages["iteration"] = number
    return trace


class Segment(NamedTuple):
    """A part of a training: what is trained until another case goes on with it."""

    rounds: range
    loads: Sequence[Load]
    slots: Callable[[int], Slots]
    """What the jobs' actions take in the round of a number."""
    varies: bool
    """Whether these differ from round to round."""
    changes: frozenset[int] = frozenset()
    """Rounds in which they are others than in the round before; those of the whole training."""
    down: frozenset[int] = frozenset()
    """The directions that are lost by then."""


def link_events_of(plan: Plan, case: Case) -> tuple[LinkEvent, ...]:
    """What happens to links in a case's training; a job by itself trains without."""
    return () if case.alone is not None else tuple(event for event in plan.events if isinstance(event, LinkEvent))


def simulate_training(
    plan: Plan, events: Sequence[LinkEvent], segments: Sequence[Segment], *, ends: bool, strict: bool
) -> TrainingPrediction:
    """The last of the segments, behind the others of the same training; the training `ends` with it, or goes on.

    Raises BadInput, if `strict`, for an event that comes after the training, or that cannot be played in it.
    """
    warmup, last = plan.jobs[0].workload.warmup, segments[-1]
    training = _Training(plan, strict=strict)
    left: list[_Left] = []
    for segment in segments:
        training.begin(segment)
        for number in segment.rounds:
            left += [_Left(event.at.seconds, event) for event in events if warmup + event.at.iteration == number]
            left.sort(key=lambda one: one.seconds)
            left = training.iterate(number, left)
    # the end of an outage, or of a trace, may come too late
    begun = {placed.event.said for placed in training.placed}
    late = next((event for _, event in left if event.said not in begun), None)
    if late is not None and ends and strict:
        shown = f"{show_time(training.ends_s)} in iteration {last.rounds[-1] - warmup}"
        raise BadInput.of("event", "at", late.said, f"a moment before {shown}, when the training is over")
    numbers = [number for number in training.traces if number in last.rounds or number == last.rounds.start]
    placed = tuple(one for one in training.placed if one.round in last.rounds)
    loads = {number: training.loads[number] for number in numbers}
    trace, by_chance = concatenate([training.traces[number] for number in numbers]), training.by_chance
    of_all = training.held_s, training.endless, training.traffic_s, frozenset(by_chance)
    return TrainingPrediction(trace, placed, loads, *of_all)


class _Left(NamedTuple):
    """An event that is to come."""

    seconds: float
    """From the beginning of the next iteration."""
    event: LinkEvent


class _ByChance(NamedTuple):
    """Of a direction, by events; None: as planned."""

    loss: float | None
    jitter_s: float | None


_Rates = tuple[tuple[tuple[float, float], ...], ...]
"""Of each flow of background traffic, (seconds from the beginning of an iteration, rate) until its end."""


class _Training:
    """A training while it is predicted."""

    def __init__(self, plan: Plan, *, strict: bool) -> None:
        """`strict`: whether an event that cannot be played is refused."""
        self._plan, self._warmup, self._strict = plan, plan.jobs[0].workload.warmup, strict
        self._state = self._predicted = planned(plan.network)
        """What links are before the next iteration, and what they are in the last one of the trace."""
        self._traffic_s = 0.0
        """How far the time of background traffic has come before the next iteration."""
        self.traffic_s: dict[int, float] = {}
        self._beside: _Rates = ()
        """The rates of that in the last iteration of the trace."""
        self._segment = Segment(range(0), (), lambda number: (), varies=False)
        self.traces: dict[int, Trace] = {}
        self.loads: dict[int, Sequence[Load]] = {}
        self.placed: list[PlacedEvent] = []
        self.held_s: dict[int, float] = {}
        self.endless: PlacedEvent | None = None
        self.by_chance: set[int] = set()
        """Rounds in which packets are lost or late by events."""
        self._lossy: dict[int, _ByChance] = {}
        """What directions have of that now, by number."""
        self._has_lost = False
        """Whether events have had packets lost."""
        self.ends_s = 0.0
        """When the last iteration of the trace is over."""

    def begin(self, segment: Segment) -> None:
        """Go on with other schedules, or begin."""
        if self._strict:
            self._refuse_lost(segment.down - self._state.down)
        self._segment = segment
        self._state = replace(self._state, down=segment.down)
        self._add(segment.rounds.start, ())

    def iterate(self, number: int, left: Sequence[_Left]) -> list[_Left]:
        """The next iteration, in which these may come, in order of time; returns those that do not."""
        if self.endless is not None:
            return []
        before = self.traces.get(number), self.loads.get(number)
        other = self._segment.varies or number in self._segment.changes or self._predicted != self._state
        other = other or self._beside_in(number) != self._beside
        # what a link that sends nothing keeps is sent once it does, by one of those to come; if nothing waits, by none
        if self._state.held and (other or left):
            self._add(number, left)
        elif other:
            self._add(number, ())
        if left and not self._state.held and left[0].seconds <= self.ends_s:
            self._add(number, left)
        come = [one for one in left if one.seconds <= self.ends_s]
        self._note_held(number, come)
        self._note_chance(number)
        for seconds, event in come:
            self._state = event.on_network(self._state)
            self.placed.append(PlacedEvent(event, number, seconds))
            if event.by_chance:
                was = self._lossy.get(event.direction, _ByChance(None, None))
                now = event.loss, event.jitter_s
                self._lossy[event.direction] = _ByChance(
                    *(b if a is None else a for a, b in zip(now, was, strict=True))
                )
                self._note_chance(number)
        if rates_change(self._plan) and number >= self._warmup:
            self.traffic_s[number] = self._traffic_s
            self._traffic_s += self.ends_s
        if self._strict:
            self._refuse_unended()
        if math.isinf(self.ends_s):
            self._end(number, *before)
        if self._strict:
            self._refuse_waiting()
        return [one._replace(seconds=one.seconds - self.ends_s) for one in left[len(come) :]]

    def _beside_in(self, number: int) -> _Rates:
        """The rates of background traffic in a round that takes as long as the last one of the trace."""
        return tuple(
            tuple((at_s, rate_bps) for at_s, rate_bps in rates_from(flow, self._since_s(number)) if at_s < self.ends_s)
            for flow in self._plan.background
        )

    def _since_s(self, number: int) -> float | None:
        return self._traffic_s if rates_change(self._plan) and number >= self._warmup else None

    def _refuse_unended(self) -> None:
        """Raises BadInput where packets are stamped as they come and an outage is not over as the iteration ends: what
        came in it has its time by then, and only who knows the end can give it one."""
        if self._plan.changes_for == "comers" and self._state.held:
            held = self._state.held
            one = next(one for one in reversed(self.placed) if one.event.direction in held and not one.event.sends)
            expected = "under netem, an outage that is over in the iteration that it begins in; the relay plays others"
            raise BadInput.of("event", "end", one.event.said, expected)

    def _refuse_waiting(self) -> None:
        """Raises BadInput where background traffic waits for a link that sends nothing as the iteration ends: it would
        come in the next one."""
        crossed = {index for flow in self._plan.background for index in route_of(self._state, flow)}
        for one in reversed(self.placed):
            if one.event.direction in crossed.intersection(self._state.held) and one.event.sends is False:
                expected = "an outage that is over in the iteration that it begins in, beside background traffic"
                raise BadInput.of("event", "end", one.event.said, expected)

    def _refuse_lost(self, lost: frozenset[int]) -> None:
        """Raises BadInput where a link is lost that keeps what came in an outage: TCP would send that again."""
        for one in reversed(self.placed):
            if one.event.direction in lost.intersection(self._state.held) and one.event.sends is False:
                expected = "an outage that is over before its link is lost"
                raise BadInput.of("event", "end", one.event.said, expected)

    def _end(self, number: int, trace: Trace | None, loads: Sequence[Load] | None) -> None:
        """A round that never ends has no prediction: what stood for it before stays, if there was anything."""
        held = self._state.held
        self.endless = next(
            one for one in reversed(self.placed) if one.event.sends is False and one.event.direction in held
        )
        self._state = replace(self._state, held=())
        del self.traces[number], self.loads[number]
        if trace is not None and loads is not None:
            self.traces[number], self.loads[number] = trace, loads

    def _note_held(self, number: int, come: Sequence[_Left]) -> None:
        """Note for how long some link sends nothing in a round."""
        now, since_s, total_s = self._state, 0.0, 0.0
        for seconds, event in come:
            total_s += seconds - since_s if now.held else 0.0
            now, since_s = event.on_network(now), seconds
        total_s += self.ends_s - since_s if now.held else 0.0
        if 0.0 < total_s < math.inf:
            self.held_s[number] = total_s

    def _note_chance(self, number: int) -> None:
        """Note a round in which packets are late by chance, or have been lost: TCP's windows are smaller from then on,
        and how fast they grow again the model does not know."""
        links = self._state.links
        for direction, now in self._lossy.items():
            self._has_lost |= now.loss is not None and now.loss > links[direction].loss
            if now.jitter_s is not None and now.jitter_s != links[direction].jitter_s:
                self.by_chance.add(number)
        if self._has_lost:
            self.by_chance.add(number)

    def _add(self, number: int, events: Sequence[_Left]) -> None:
        """An iteration for the trace, in which events come."""
        now, pieces = self._state, list[Piece]()
        for seconds, event in events:
            now = event.on_network(now)
            pieces.append(Piece(seconds, now))
        network = replace(self._state, later=tuple(pieces))
        streams = streams_on(self._plan, network, self._since_s(number))
        links, changes = link_costs(network), link_changes(network)
        loads = [
            load._replace(problem=replace(load.problem, links=links, changes=changes, streams=streams), slots_s=slots_s)
            for load, slots_s in zip(self._segment.loads, self._segment.slots(number), strict=True)
        ]
        trace = as_round(simulate_jobs(loads), number)
        self.traces[number], self.loads[number] = trace, loads
        self.ends_s, self._predicted = float(trace.makespans().max()), network
        self._beside = self._beside_in(number)
