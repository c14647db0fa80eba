"""What waits in the queues of links: what has no room there is dropped, and sent again later than predicted."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from testbed.errors import few
from testbed.plan.background import background_bps
from testbed.plan.connecting import neighbours_of
from testbed.plan.framing import LARGEST_GSO, WARMUP_ROUNDS, wire_bytes
from testbed.plan.network_state import network_at, planned
from testbed.plan.plan import Case, Plan, Route
from testbed.plan.routes import nodes_of_ranks, routes_of_ranks
from testbed.plan.state_exchange import failed_ranks, restoring, saving, state_bytes
from testbed.planning.prediction import predict_training
from testbed.planning.training_prediction import PlacedEvent, TrainingPrediction
from testbed.units import show_size

CONNECTING, STATES = "while ranks connect", "while states are sent"


def of_queues(plan: Plan, cases: Sequence[Case]) -> list[str]:
    """A line where a queue has no room for what waits in it under one of the cases; else []."""
    directions = planned(plan.network).everything
    if not any(direction.queue_bytes for direction in directions):
        return []
    waiting = {case.label: most_waiting(plan, case) for case in cases}
    for what, most in ((CONNECTING, most_waiting_to_connect), (STATES, most_waiting_of_states)):
        waiting[what] = [max(each) for each in zip(*(most(plan, case) for case in cases), strict=True)]
    full = []
    for index, direction in enumerate(directions):
        over = {label: most[index] for label, most in waiting.items() if 0 < direction.queue_bytes < most[index]}
        if over:
            room, most_bytes = show_size(direction.queue_bytes), show_size(max(over.values()))
            full.append(f"{direction.label} has room for {room}, up to {most_bytes} wait {_when(list(over))}")
    return [f"a queue overflows, which is not in the model ({few(full)}): what is dropped comes later"] if full else []


def _when(over: Sequence[str]) -> str:
    schedules = [label for label in over if label not in (CONNECTING, STATES)]
    return few([*([f"under {few(schedules)}"] if schedules else []), *(each for each in over if each not in schedules)])


_UNCOUNTED = 0.01
"""Acknowledgements, notices and headers that wait beside messages, as a share of them: 0.2 % was too little."""

_MOST_ITERATIONS = 20
"""That differ: all of a long training would take long to look at."""


_MOST_MESSAGES = 200_000
"""Likewise: some seconds."""


class _Message(NamedTuple):
    sent_s: float
    wire_bytes: float
    way: Route
    """The directions that it takes, network cards included."""


def room_needed(plan: Plan, case: Case) -> list[float]:
    """Per direction (network cards after the links), bytes of a queue in which all has room that waits at any time."""
    every = (most_waiting, most_waiting_to_connect, most_waiting_of_states)
    return [max(each) for each in zip(*(most(plan, case) for most in every), strict=True)]


def most_waiting(plan: Plan, case: Case) -> list[float]:
    """Per direction (network cards after the links), the most bytes that the messages of a training leave waiting, with
    what background traffic brings meanwhile, and room for what is not counted (`_UNCOUNTED`).

    Links have the rates that events give them. Of a long training it is that of the first iterations that differ.
    """
    ways, training = _ways(plan, case), predict_training(plan, case, strict=False)
    found = [0.0] * len(planned(plan.network).everything)
    for number, sent in _iterations(training, ways, free=plan.rounds == "free"):
        most = _most_waiting(sent, _wires(plan, case, training.events, number))
        found = [max(pair) for pair in zip(found, most, strict=True)]
    return found


def most_waiting_to_connect(plan: Plan, case: Case) -> list[float]:
    """The same of what ranks send each other when they connect, all at once: every rank to each of its neighbours a
    message, and the next one when theirs have come.

    What is dropped then makes TCP's windows narrow, and the iterations after it longer.
    """
    ways, transit = _ways(plan, case), _Transit(_wires(plan, case, (), 0))
    size, neighbours = dict[int, float](), dict[int, list[int]]()
    for job in plan.jobs:
        for pair in neighbours_of(plan, job):
            for one, other in (pair, pair[::-1]):
                rank = job.mesh.first_rank + one
                size[rank] = wire_bytes(job.workload.message_bytes())
                neighbours.setdefault(rank, []).append(job.mesh.first_rank + other)
    of_number, missing = dict[int, tuple[int, int]](), dict[tuple[int, int], int]()

    def post(rank: int, round_: int, at_s: float) -> None:
        missing.setdefault((rank, round_), len(neighbours[rank]))
        for other in neighbours[rank]:
            message = _Message(at_s, size[rank], ways.get((rank, other), ()))
            of_number[transit.post(message)] = other, round_

    def came(number: int, at_s: float) -> None:
        rank, round_ = of_number[number]
        left = missing.get((rank, round_), len(neighbours[rank])) - 1
        missing[rank, round_] = left
        if not left and round_ + 1 < WARMUP_ROUNDS:
            post(rank, round_ + 1, at_s)

    for rank in neighbours:
        post(rank, 0, 0.0)
    return transit.most_waiting(came)


def most_waiting_of_states(plan: Plan, case: Case) -> list[float]:
    """The same of the states that ranks send each other to keep them, and to have them again behind a failure; zeros
    where they do not."""
    recovery, wires = plan.recovery, _wires(plan, case, (), 0)
    found = [0.0] * len(wires)
    if recovery is None or recovery.checkpoints is None or recovery.checkpoints.memory is None:
        return found
    (job,), ways = plan.jobs, _ways(plan, case)
    sizes = state_bytes(job, case, recovery.checkpoints.memory)
    again = [restoring(job.mesh, sizes, failed_ranks(job, failure)) for failure in recovery.failures]
    for messages in (saving(job.mesh, sizes), *again):
        sent = [
            _Message(0.0, wire_bytes(one.payload_bytes), ways.get((one.source, one.target), ()))
            for one in messages or ()
        ]
        found = [max(pair) for pair in zip(found, _most_waiting(sent, wires), strict=True)]
    return found


def _iterations(
    training: TrainingPrediction, ways: Mapping[tuple[int, int], Route], *, free: bool
) -> Iterator[tuple[int, list[_Message]]]:
    """What is sent in every iteration that differs, by its number; in the whole training, as number 0, where each job
    goes on when it is done itself."""
    begins_s = _begins_s(training) if free else {}
    numbers, messages = training.trace.iterations()[:_MOST_ITERATIONS].tolist(), training.trace.messages
    kept = messages if free else messages[np.isin(messages["iteration"], numbers)]
    rows = [
        (
            0 if free else int(row["iteration"]),
            _Message(
                begins_s.get((int(row["job"]), int(row["iteration"])), 0.0) + float(row["sent_s"]),
                float(row["wire_bytes"]),
                ways.get((int(row["source_rank"]), int(row["target_rank"])), ()),
            ),
        )
        for row in kept[:_MOST_MESSAGES]
    ]
    rows.sort(key=lambda row: row[0])
    for number, mine in groupby(rows, key=lambda row: row[0]):
        yield number, [message for _, message in mine]


def _begins_s(training: TrainingPrediction) -> dict[tuple[int, int], float]:
    """When each job begins each of its iterations, one behind the other."""
    ends_s: dict[tuple[int, int], float] = {}
    for row in training.trace.actions:
        key = int(row["job"]), int(row["iteration"])
        ends_s[key] = max(ends_s.get(key, 0.0), float(row["end_s"]))
    begins_s, at_s = dict[tuple[int, int], float](), dict[int, float]()
    for job, iteration in sorted(ends_s):
        begins_s[job, iteration] = at_s.get(job, 0.0)
        at_s[job] = begins_s[job, iteration] + ends_s[job, iteration]
    return begins_s


_LEAST_BPS = 1.0
"""For messages, where an event leaves a link less than what else it carries."""


class _Wire:
    """What a direction carries over time in an iteration: messages beside traffic of so many bit/s."""

    def __init__(self, delay_s: float, pieces: Sequence[tuple[float, float]], others_bps: float) -> None:
        """Of (from when, bit/s), in order of time; one that would carry nothing for ever carries as at first."""
        self.delay_s, self._others_bps = delay_s, others_bps
        rates = [*pieces[:-1], pieces[-1] if pieces[-1][1] else (pieces[-1][0], pieces[0][1])]
        ends_s = [*(from_s for from_s, _ in rates[1:]), math.inf]
        self._pieces = [(from_s, to_s, rate_bps) for (from_s, rate_bps), to_s in zip(rates, ends_s, strict=True)]

    def done_s(self, begin_s: float, message_bits: float) -> float:
        """When so many are out, of messages that nothing is ahead of but other traffic."""
        for from_s, to_s, rate_bps in self._pieces:
            since_s, left_bps = max(begin_s, from_s), max(_LEAST_BPS, rate_bps - self._others_bps) if rate_bps else 0.0
            if message_bits <= left_bps * (to_s - since_s):
                return since_s + message_bits / left_bps
            message_bits -= max(0.0, left_bps * (to_s - since_s))
        raise AssertionError("the last piece has no end")

    def changes_s(self, after_s: float, before_s: float) -> list[float]:
        """When its rate changes, in between."""
        return [from_s for from_s, _, _ in self._pieces if after_s < from_s < before_s]

    def carried_bits(self, since_s: float, until_s: float) -> float:
        """Between the two, of all that it carries."""
        parts = (rate_bps * (min(until_s, to_s) - max(since_s, from_s)) for from_s, to_s, rate_bps in self._pieces)
        return sum(max(0.0, part) for part in parts)


def _wires(plan: Plan, case: Case, events: Sequence[PlacedEvent], number: int) -> list[_Wire]:
    """Every direction in the iteration of that number, with what these events make of it by then and in it."""
    network = network_at(plan, case)
    others_bps = background_bps(plan, network)
    return [
        _Wire(direction.delay_s, _pieces(direction.rate_bps, index, events, number), others_bps[index])
        for index, direction in enumerate(network.everything)
    ]


def _pieces(rate_bps: float, direction: int, events: Sequence[PlacedEvent], number: int) -> list[tuple[float, float]]:
    """(from when, bit/s) of a direction in an iteration."""
    outages, pieces = 0, [(0.0, rate_bps)]
    for placed in events:
        event = placed.event
        if event.direction != direction or placed.round > number:
            continue
        rate_bps = rate_bps if event.rate_bps is None else event.rate_bps
        outages += {None: 0, False: 1, True: -1}[event.sends]
        pieces.append((placed.seconds if placed.round == number else 0.0, 0.0 if outages > 0 else rate_bps))
    return pieces


class _InTransit(NamedTuple):
    """A message that comes to a hop, or to its end; they are taken in this order."""

    whole_s: float
    """When its first super-packet has come whole: then it can go on."""
    last_s: float
    """When its last bit comes ..."""
    number: int
    hop: int
    message: _Message
    first_s: float
    """... and its first one, at the earliest."""


class _Transit:
    """Messages on their way over directions, first come, first served.

    A message comes to its first direction at once, to the next as the one before lets it out.
    """

    def __init__(self, wires: Sequence[_Wire]) -> None:
        self._wires, self._posted = wires, 0
        self._coming = list[_InTransit]()

    def post(self, message: _Message) -> int:
        """Of those that are sent at the same time the one that is posted first goes first; returns its number."""
        self._posted += 1
        at_s = message.sent_s
        heapq.heappush(self._coming, _InTransit(at_s, at_s, self._posted, 0, message, at_s))
        return self._posted

    def most_waiting(self, came: Callable[[int, float], None] | None = None) -> list[float]:
        """Per direction the most bytes that wait, till all has come; `came` is told of each, and may post others."""
        most, free_s = [0.0] * len(self._wires), [0.0] * len(self._wires)
        while self._coming:
            one = heapq.heappop(self._coming)
            if one.hop == len(one.message.way):
                if came is not None:
                    came(one.number, one.last_s)
                continue
            at = one.message.way[one.hop]
            begin_s, wire, bits = max(one.whole_s, free_s[at]), self._wires[at], 8 * one.message.wire_bytes
            end_s, first_s = max(wire.done_s(begin_s, bits), one.last_s), max(one.first_s, free_s[at])
            waiting = [wire.carried_bits(one.last_s, end_s)]
            for when_s in wire.changes_s(one.first_s, one.last_s):  # more may wait then than when the last bit has come
                come = bits * (when_s - one.first_s) / (one.last_s - one.first_s)
                ahead, gone = wire.carried_bits(when_s, free_s[at]), wire.carried_bits(first_s, when_s)
                waiting.append(come + ahead - gone)
            most[at] = max(most[at], (1 + _UNCOUNTED) * max(waiting) / 8)
            free_s[at] = end_s
            arrives = one.hop + 1 == len(one.message.way)
            whole_s = end_s if arrives else wire.done_s(begin_s, min(bits, 8 * LARGEST_GSO))
            whole_s, last_s, first_s = (each + wire.delay_s for each in (whole_s, end_s, first_s))
            heapq.heappush(self._coming, one._replace(whole_s=whole_s, last_s=last_s, hop=one.hop + 1, first_s=first_s))
        return most


def _most_waiting(sent: Iterable[_Message], wires: Sequence[_Wire]) -> list[float]:
    transit = _Transit(wires)
    for message in sent:
        transit.post(message)
    return transit.most_waiting()


def _ways(plan: Plan, case: Case) -> Mapping[tuple[int, int], Route]:
    """(source rank, target rank) -> the directions between them in a case, the source's network card first."""
    nodes, cards = nodes_of_ranks(plan), network_at(plan, case).card_routes
    return {
        (source, target): cards.get(nodes[source], ()) + route
        for (source, target), route in routes_of_ranks(plan, case).items()
    }
