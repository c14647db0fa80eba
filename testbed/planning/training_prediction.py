"""What the model says of a whole training whose links change: of every iteration, one after the other.

An event's seconds count while jobs train. What has not come by the predicted end of an iteration comes in a later one,
so much earlier there; between iterations time stands still for events. So the model says in which iteration each event
comes, and how far into it, and a lab plays it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.model.lower import Load
from testbed.plan.network_state import NetworkState, Piece, link_changes, link_costs, planned
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
    loads: dict[int, Sequence[Load]]
    """By the same numbers, what the jobs put on which network."""
    events: tuple[PlacedEvent, ...]

    def usual(self, rounds: Sequence[int]) -> int:
        """The one of these rounds that takes what half of them take at most."""
        times_s = predicted_times_s(self.trace, rounds)
        return rounds[int(np.argsort(times_s, kind="stable")[(len(rounds) - 1) // 2])]

    def loads_of(self, number: int) -> Sequence[Load]:
        """What the jobs put on the network in the round of a number."""
        return self.loads[max(known for known in self.loads if known <= number)]


def link_events_of(plan: Plan, case: Case) -> tuple[LinkEvent, ...]:
    """What happens to links in a case's training; a job by itself trains without."""
    return () if case.alone is not None else tuple(event for event in plan.events if isinstance(event, LinkEvent))


def simulate_training(
    plan: Plan, case: Case, loads: Sequence[Load], simulate: Callable[[Sequence[Load]], Trace]
) -> TrainingPrediction:
    """With what the jobs at work put on the network, of which an iteration is to `simulate`.

    Raises BadInput for an event that comes after the training.
    """
    events = link_events_of(plan, case)
    if not events:
        return TrainingPrediction(simulate(loads), {0: loads}, ())
    warmup, total = plan.jobs[0].workload.warmup, plan.jobs[0].workload.iterations
    training = _Training(planned(plan.network), loads, simulate)
    training.add(0, ())
    left: list[_Left] = []
    for iteration in range(total):
        left += [_Left(event.at.seconds, event) for event in events if event.at.iteration == iteration]
        left.sort(key=lambda one: one.seconds)
        left = training.iterate(warmup + iteration, left)
    # the end of an outage, or of a trace, may come too late
    begun = {placed.event.said for placed in training.placed}
    late = next((event for _, event in left if event.said not in begun), None)
    if late is not None:
        expected = f"a moment before {show_time(training.ends_s)} in iteration {total - 1}, when {case.label} is over"
        raise BadInput.of(plan.network.name, "events", late.said, expected)
    return TrainingPrediction(concatenate(list(training.traces.values())), training.loads, tuple(training.placed))


class _Left(NamedTuple):
    """An event that is to come."""

    seconds: float
    """From the beginning of the next iteration."""
    event: LinkEvent


class _Training:
    """A training while it is predicted."""

    def __init__(self, state: NetworkState, loads: Sequence[Load], simulate: Callable[[Sequence[Load]], Trace]) -> None:
        self._loads, self._simulate = loads, simulate
        self._state = self._predicted = state
        """What links are before the next iteration, and what they are in the last one of the trace."""
        self.traces: dict[int, Trace] = {}
        self.loads: dict[int, Sequence[Load]] = {}
        self.placed: list[PlacedEvent] = []
        self.ends_s = 0.0
        """When the last iteration of the trace is over."""

    def add(self, number: int, events: Sequence[_Left]) -> None:
        """An iteration for the trace, in which events come."""
        now, pieces = self._state, list[Piece]()
        for seconds, event in events:
            now = event.on_network(now)
            pieces.append(Piece(seconds, now))
        network = replace(self._state, later=tuple(pieces))
        links, changes = link_costs(network), link_changes(network)
        loads = [load._replace(problem=replace(load.problem, links=links, changes=changes)) for load in self._loads]
        trace = _numbered(self._simulate(loads), number)
        self.traces[number], self.loads[number] = trace, loads
        self.ends_s, self._predicted = float(trace.makespans().max()), network

    def iterate(self, number: int, left: Sequence[_Left]) -> list[_Left]:
        """The next iteration, in which these may come, in order of time; returns those that do not."""
        if not self._state.held and self._predicted != self._state:
            self.add(number, ())
        if left and (self._state.held or left[0].seconds <= self.ends_s):
            self.add(number, left)
        come = [one for one in left if one.seconds <= self.ends_s]
        for seconds, event in come:
            self._state = event.on_network(self._state)
            self.placed.append(PlacedEvent(event, number, seconds))
        return [one._replace(seconds=one.seconds - self.ends_s) for one in left[len(come) :]]


def _numbered(trace: Trace, number: int) -> Trace:
    actions, messages = trace.actions.copy(), trace.messages.copy()
    for table in (actions, messages):
        table["iteration"] = number
    return Trace(actions, messages, trace.n_ranks)
