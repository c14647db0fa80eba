"""The event model where chance decides who comes first: ends of actions moved by microseconds.

Messages of different ranks that come to a link at one instant are ordered by which process the kernel happens to run
first. Moved ends put them in another order; with every end moved the other way round, each such pair is seen in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.model.columns import Names
from testbed.model.execute import Times
from testbed.model.lower import Load, lower
from testbed.model.program import Program
from testbed.model.simulate import ends_by_job, jobs_in_ticks, run

_SEED = 1


class Orders:
    """Jobs on one network, run in one order of what comes at the same time after another."""

    def __init__(self, loads: Sequence[Load]) -> None:
        """Raises ValueError when the jobs do not have the same links."""
        self._tick_s, in_ticks = jobs_in_ticks(loads)
        self._program, self._names = lower(in_ticks)

    @property
    def events(self) -> int:
        """About how much happens in a run, and so what it costs: actions, and pieces of messages on links."""
        program = self._program
        hops = np.diff(program.route_start)[program.route]
        return len(program.duration_s) + int((np.maximum(program.pieces, 1) * np.maximum(hops, 1)).sum())

    def meet(self, within_s: float) -> bool:
        """Whether messages of two ranks come to one link within so many seconds of each other, as predicted.

        Of a message that waits on its way it is only known between which times it comes to a further link.
        """
        shared = _shared_links(self._program, self._names)
        if not shared:
            return False
        times, within = run(self._program), within_s / self._tick_s
        return any(_close(at, within) for at in _at_links(self._program, self._names, times, shared).values())

    def ends_s(self, shift_s: float) -> Iterator[tuple[float, ...]]:
        """Per job, seconds from the common start to its last end or reduction, in one order after another, without end.

        Every end of an action is drawn up to `shift_s` earlier or later; then all the other way round; then drawn anew.
        What a rank does next is not moved with it, so that nothing adds up along a rank.
        """
        program, random, first = self._program, np.random.default_rng(_SEED), _first_of_ranks(self._program)
        while True:
            moved = random.uniform(-shift_s, shift_s, len(program.duration_s)) / self._tick_s
            longer = np.round(moved - np.where(first, 0.0, np.roll(moved, 1)))
            for each in (longer, -longer):
                late = program._replace(duration_s=np.maximum(program.duration_s + each, 0.0))
                yield tuple(self._tick_s * end for end in ends_by_job(late, run(late), self._names))


class _Coming(NamedTuple):
    """When a message comes to a link: not before the one, not after the other; in ticks."""

    earliest: float
    latest: float
    rank: int


def _first_of_ranks(program: Program) -> NDArray[np.bool_]:
    """Which actions are the first of their rank."""
    first = np.zeros(len(program.duration_s), np.bool_)
    first[program.row_start[:-1][np.diff(program.row_start) > 0]] = True
    return first


def _shared_links(program: Program, names: Names) -> set[int]:
    """The links that messages of different ranks cross."""
    senders: dict[int, set[int]] = {}
    for route, rank in {*zip(program.route.tolist(), names.messages["source_rank"].tolist(), strict=True)}:
        for link in program.route_links[program.route_start[route] : program.route_start[route + 1]].tolist():
            senders.setdefault(link, set()).add(rank)
    return {link for link, ranks in senders.items() if len(ranks) > 1}


def _at_links(program: Program, names: Names, times: Times, shared: set[int]) -> dict[int, list[_Coming]]:
    """Per shared link, when every message comes to it."""
    at: dict[int, list[_Coming]] = {link: [] for link in shared}
    ranks, routes = names.messages["source_rank"].tolist(), program.route.tolist()
    first_bit, last_bit = times.sent_s.tolist(), (times.arrived_s - program.handover_s).tolist()
    links_of = [program.route_links[begin:end].tolist() for begin, end in pairwise(program.route_start.tolist())]
    for message, (rank, route) in enumerate(zip(ranks, routes, strict=True)):
        links = links_of[route]
        earliest, still = first_bit[message], sum(program.delay_s[link] for link in links)
        for hop, link in enumerate(links):
            # all of it has left a link by when it arrives, less the delays that follow
            size = program.wire_bytes[message] if program.pieces[message] == 0 else 0.0
            latest = last_bit[message] - still - size * program.seconds_per_byte[link] if hop else earliest
            if link in shared:
                at[link].append(_Coming(earliest, max(earliest, latest), rank))
            earliest, still = earliest + program.delay_s[link], still - program.delay_s[link]
    return at


def _close(coming: list[_Coming], within: float) -> bool:
    """Whether two messages of different ranks may come within so many ticks of each other."""
    until: dict[int, float] = {}
    for one in sorted(coming):
        if any(latest >= one.earliest - within for rank, latest in until.items() if rank != one.rank):
            return True
        until[one.rank] = max(until.get(one.rank, 0.0), one.latest)
    return False
