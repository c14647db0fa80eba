"""The event model where chance decides who comes first: messages that leave microseconds later than they might.

Messages that come to a link at one instant are ordered by which process the kernel happens to run first, and by
constants that the model has right to some microseconds. Messages that leave a little later come in another order; what
each lost is given back where it arrives, so that nothing but the order changes and nothing adds up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.grouping import grouped
from testbed.model.lower import Load, lower
from testbed.model.network import Floats, Ints
from testbed.model.program import FREE, NONE, Program
from testbed.model.program_columns import RowNames
from testbed.model.simulate import ends_by_job, events_of, jobs_in_ticks, refuse_deadlock, run
from testbed.model.state import Times
from testbed.thresholds import ONE_PREDICTION
from testbed.trace.tables import NOTICE

_SEED = 1


class Order(NamedTuple):
    """What comes of one order; per job."""

    ends_s: tuple[float, ...]
    """From the common start to its last end or reduction."""
    moved_s: tuple[float, ...]
    """By how much the message that changes most is longer or shorter on its way than in the order predicted."""


class Orders:
    """Jobs on one network, run in one order of what comes at the same time after another."""

    def __init__(self, loads: Sequence[Load], within_s: float) -> None:
        """Messages that leave within `within_s` of each other may change places.

        Raises as `simulate_jobs`.
        """
        tick_s, in_ticks = jobs_in_ticks(loads)
        self._run(*lower(in_ticks), tick_s, within_s)
        self._call = max(load.problem.send_s for load in loads) / tick_s
        refuse_deadlock(self._program, self._names, self._times, loads)

    @classmethod
    def of_program(cls, program: Program, names: RowNames, tick_s: float, within_s: float) -> Orders:
        """The same of a program that is made, and can finish: what its names call a job ends by itself."""
        made = cls.__new__(cls)
        made._run(program, names, tick_s, within_s)
        return made

    def _run(self, program: Program, names: RowNames, tick_s: float, within_s: float) -> None:
        self._program, self._names, self._tick_s = program, names, tick_s
        self._within, self._call = within_s / tick_s, 0.0
        self._times = run(program)

    @property
    def events(self) -> int:
        """About how much happens in a run, and so what it costs: actions, and pieces of messages on links."""
        return events_of(self._program)

    def tied(self) -> bool:
        """Whether chance may decide anything: messages come to one link within that time of each other, as predicted,
        or a rank waits just as long as nobody notices.

        Of a message that waits on its way it is only known between which times it comes to a further link.
        """
        times, senders = self._times, self._senders()
        waited = times.ready_s - times.reached_s
        if np.any(np.abs(waited - self._program.unnoticed_wait_s) <= self._within):
            return True
        shared = _shared_links(self._program, senders)
        at = _at_links(self._program, senders, self._leaving(), times, shared) if shared else {}
        return any(_close(coming, self._within) for coming in at.values())

    @property
    def predicted_s(self) -> tuple[float, ...]:
        """Per job, seconds from the common start to its last end or reduction, in the order that is predicted."""
        return self._ends_s(self._times)

    def drawn(self) -> Iterator[Order]:
        """One order after another, without end, each followed by its opposite.

        Drawn are what a thread takes for every message, and what for each by itself, in turns more of the one and of
        the other; and how long a wait stays unnoticed. Where calls take time, threads that send several messages at
        once do so one after the other in two draws of four, and by turns, call by call, in the two that follow. What
        comes of messages that are all late alike is taken off.
        """
        calls = np.minimum(self._call * self._places(), self._within)
        random, senders, numbers_sent = np.random.default_rng(_SEED), self._senders(), self._sending_numbers()
        all_late, number = self._order(np.full(len(senders), self._within / 2), 0.0), 0
        off = [end - predicted for end, predicted in zip(self.predicted_s, all_late.ends_s, strict=True)]
        off = [
            change_s if abs(change_s) < ONE_PREDICTION * end else 0.0
            for change_s, end in zip(off, all_late.ends_s, strict=True)
        ]
        while True:
            of_senders = random.random(senders.max(initial=0) + 1)[senders]
            of_messages = random.random(numbers_sent.max(initial=0) + 1)[numbers_sent]
            share = (0.0, 0.5)[number % 2]
            drawn, waits = (1 - share) * of_senders + share * of_messages, random.random()
            by_turns = calls if number % 4 > 1 else np.zeros(len(calls))
            for lags, unnoticed in ((drawn, waits), (1 - drawn, 1 - waits)):
                order = self._order(lags * self._within + by_turns, (2 * unnoticed - 1) * self._within)
                yield order._replace(ends_s=tuple(end + more for end, more in zip(order.ends_s, off, strict=True)))
            number += 1

    def _order(self, lags: Floats, unnoticed: float) -> Order:
        """With messages that leave so many ticks later, and waits that stay unnoticed for so much longer."""
        program = self._program
        stays = program.local | (np.diff(program.part_start) > 1)  # its parts travel
        lags = np.where(stays, 0.0, np.round(lags))
        behind = self._behind_cards()
        late = program._replace(
            lag_s=np.where(behind, 0.0, lags),
            card_lag_s=np.where(behind, lags, 0.0),
            handover_s=program.handover_s - self._lost(lags),
            unnoticed_wait_s=max(0.0, program.unnoticed_wait_s + unnoticed),
        )
        times, base = run(late), self._times
        taken = (times.arrived_s - times.sent_s) - (base.arrived_s - base.sent_s)
        moved = np.abs(np.nan_to_num(taken)) * self._tick_s
        ends, jobs = self._ends_s(times), self._names.messages["job"]
        return Order(ends, tuple(float(moved[jobs == job].max(initial=0.0)) for job in range(len(ends))))

    def _ends_s(self, times: Times) -> tuple[float, ...]:
        return tuple(self._tick_s * end for end in ends_by_job(self._program, times, self._names))

    def _lost(self, lags: Floats) -> Floats:
        """Per message, by how much later it arrives for these lags, with that of a notice which it waits for; 0 for one
        that others follow at once, which cannot come before it has."""
        program = self._program
        waits = (program.notice >= 0) & (self._leaving() > self._times.sent_s)
        lost = lags + np.where(waits, lags[np.maximum(program.notice, 0)], 0.0)
        whole = np.where(program.part_of == NONE, np.arange(len(lost)), program.part_of)
        travels = np.append(0, np.cumsum(~program.local[program.then]))
        followed = np.diff(travels[program.then_start]) > 0
        compensated: Floats = np.where(followed[whole], 0.0, lost)
        return compensated

    def _behind_cards(self) -> NDArray[np.bool_]:
        """Per message, whether it goes over a network card that tensor ranks use, and on from there."""
        program = self._program
        cards = program.card[program.card != NONE]
        hops = np.diff(program.route_start)
        first = np.append(program.route_links, NONE)[program.route_start[:-1]]
        behind: NDArray[np.bool_] = ((hops > 1) & np.isin(first, cards))[program.route]
        return behind

    def _leaving(self) -> Floats:
        """Per message, when it leaves as predicted: when it is sent, with a late receive not before the notice."""
        notice, times = self._program.notice, self._times
        asked = np.where(notice >= 0, times.arrived_s[np.maximum(notice, 0)], 0.0)
        free = np.where(notice == FREE, times.posted_s, 0.0)
        leaving: Floats = np.maximum(times.sent_s, np.maximum(asked, np.nan_to_num(free)))
        return leaving

    def _senders(self) -> Ints:
        """Per message, a number of the thread that sends it: a rank's own as it begins, ends an action or posts a
        receive, or the one that waits for what comes from others. What one thread sends stays in order."""
        messages, leaving = self._names.messages, self._leaving()
        ends = {*zip(self._names.action_rank.tolist(), self._times.end_s.tolist(), strict=True)}
        own = [one in ends for one in zip(messages["source_rank"].tolist(), leaving.tolist(), strict=True)]
        begins = leaving <= self._program.first_s
        return _numbered((messages["source_rank"], np.array(own) | begins | (messages["kind"] == NOTICE)))

    def _sending_numbers(self) -> Ints:
        """Per message, a number of when its thread sends it: what it sends soon after each other stays in order."""
        senders, leaving = self._senders(), self._leaving()
        order = np.lexsort((leaving, senders))
        anew = (np.diff(senders[order]) > 0) | (np.diff(leaving[order]) > self._within)
        numbers = np.zeros(len(order), np.int64)
        numbers[order[1:]] = np.cumsum(anew)
        return numbers

    def _places(self) -> Ints:
        """Per message, how many its thread sends before it at the same instant."""
        senders, leaving = self._senders(), self._leaving()
        order = np.lexsort((leaving, senders))
        anew = np.append(True, (np.diff(senders[order]) > 0) | (np.diff(leaving[order]) > 0))
        since = np.arange(len(order))
        places = np.zeros(len(order), np.int64)
        places[order] = since - np.maximum.accumulate(np.where(anew, since, 0))
        return places


def _numbered(columns: tuple[NDArray[np.generic], ...]) -> Ints:
    """Per row, a number that rows with equal values share."""
    rows = np.stack([np.asarray(column, np.int64) for column in columns])
    numbers: Ints = np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1)
    return numbers


class _Coming(NamedTuple):
    """When a message comes to a link: not before the one, not after the other; in ticks."""

    earliest: float
    latest: float
    sender: int


def _shared_links(program: Program, senders: Ints) -> set[int]:
    """The links that messages of different senders cross."""
    crossing = grouped(
        (link, sender)
        for route, sender in {*zip(program.route.tolist(), senders.tolist(), strict=True)}
        for link in program.route_links[program.route_start[route] : program.route_start[route + 1]].tolist()
    )
    return {link for link, each in crossing.items() if len({*each}) > 1}


def _at_links(
    program: Program, senders: Ints, leaving: Floats, times: Times, shared: set[int]
) -> dict[int, list[_Coming]]:
    """Per shared link, when every message comes to it."""
    at: dict[int, list[_Coming]] = {link: [] for link in shared}
    routes = program.route.tolist()
    first_bit, last_bit = leaving.tolist(), (times.arrived_s - program.handover_s).tolist()
    links_of = [program.route_links[begin:end].tolist() for begin, end in pairwise(program.route_start.tolist())]
    for message, (sender, route) in enumerate(zip(senders.tolist(), routes, strict=True)):
        links = links_of[route]
        earliest, still = first_bit[message], sum(program.delay_s[link] for link in links)
        for hop, link in enumerate(links):
            # all of it has left a link by when it arrives, less the delays that follow
            size = program.wire_bytes[message] if program.pieces[message] == 0 else 0.0
            latest = last_bit[message] - still - size * program.seconds_per_byte[link] if hop else earliest
            if link in shared:
                at[link].append(_Coming(earliest, max(earliest, latest), sender))
            earliest, still = earliest + program.delay_s[link], still - program.delay_s[link]
    return at


def _close(coming: list[_Coming], within: float) -> bool:
    """Whether two messages of different senders may come within so many ticks of each other."""
    until: dict[int, float] = {}
    for message in sorted(coming):
        if any(latest >= message.earliest - within for sender, latest in until.items() if sender != message.sender):
            return True
        until[message.sender] = max(until.get(message.sender, 0.0), message.latest)
    return False
