"""Which queues acknowledgements wait in, link by link, from which they go on to which, and who has to look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from testbed.grouping import grouped
from testbed.model.frames import Frame
from testbed.model.network import NO_QUEUE, Ints
from testbed.pipeline.link import Stream
from testbed.pipeline.problem import Route

Answered = Mapping[tuple[Route, Route], int]
"""(route, route back) -> how many rows a queue needs for what is acknowledged over it."""

_LAST, _FROM, _ON = 0, 1, 2


class _Queue(NamedTuple):
    """Sorted, those of a link follow each other."""

    link: int
    kind: int
    """_LAST: of what is over behind this link, or a stream, which is never empty; _FROM another link; _ON to one."""
    ways: Route
    """What of its kind is in this queue: that came by this route; from this link; over this link, and goes on to this
    one."""
    stream: int = NO_QUEUE


class QueuesOfLinks:
    """The queues of a program's links."""

    def __init__(
        self, answered: Answered, streams: Sequence[Stream], changing: frozenset[int], *, in_parts: bool
    ) -> None:
        """`changing`: the links that do not stay as they are; `in_parts`: whether messages are sent in parts.

        Of two links acknowledgements are in queues where nothing else that goes on from a link, as an event, may come
        before them at one instant; and where no link has queues of two kinds, so that what comes to a first link does
        not depend on what has come from one: it is looked at one link ahead, and not two.
        """
        self._answered, self._streams, self._changing = answered, streams, changing
        backs = {back for _, back in answered}
        by_place = [{back[0] for back in backs if len(back) == 1}]
        by_place += [{back[place] for back in backs if len(back) == 2} for place in (0, 1)]
        apart = all(one.isdisjoint(other) for one, other in combinations(by_place, 2))
        self._go_on = apart and max(map(len, backs), default=0) <= 2 and not (streams or changing or in_parts)
        rows: dict[_Queue, int] = {}
        for (there, back), count in answered.items():
            for queue in self._of(there, back):
                rows[queue] = rows.get(queue, 0) + count
        for number, stream in enumerate(streams):
            if len(stream.route) == 1 and changing.isdisjoint(stream.route):
                rows[_Queue(stream.route[0], _LAST, (), number)] = len(stream.spans)
        self._number = {queue: number for number, queue in enumerate(sorted(rows))}
        self._rows = rows

    def _of(self, there: Route, back: Route) -> tuple[_Queue, ...]:
        """The queues that what is acknowledged over a route back waits in, one after the other."""
        if len(back) == 1:
            return (_Queue(back[0], _LAST, there),)
        if len(back) == 2 and self._go_on:
            return _Queue(back[0], _ON, (there[-1], back[1])), _Queue(back[1], _FROM, back[:1])
        return ()

    def of_frames(self, frames: Sequence[Frame]) -> list[int]:
        """Per kind of messages the first queue of what acknowledges one, or NO_QUEUE: each is an event."""
        first = {
            (there, back): next((self._number[queue] for queue in self._of(there, back)), NO_QUEUE)
            for there, back in self._answered
            if self._changing.isdisjoint(there + back)
        }
        return [first.get((frame.route, frame.back), NO_QUEUE) if frame.acks else NO_QUEUE for frame in frames]

    def of_streams(self) -> Ints:
        """Per stream, its queue or NO_QUEUE."""
        numbers = {queue.stream: number for queue, number in self._number.items() if queue.stream != NO_QUEUE}
        return np.array([numbers.get(number, NO_QUEUE) for number in range(len(self._streams))], np.int64)

    def columns(self, n_links: int) -> dict[str, Any]:
        """As in `Program`."""
        queues = list(self._number)
        links = np.array([queue.link for queue in queues], np.int64)
        before = grouped(sorted((queue.link, queue.ways[0]) for queue in queues if queue.kind == _FROM))
        looks = {link: [*before.get(link, ()), link] for link in sorted({queue.link for queue in queues})}
        counts = [len(looks.get(link, ())) for link in range(n_links)]
        return {
            "queue_start": _starts(np.bincount(links, minlength=n_links)),
            "queue_link": links,
            "queue_onward": np.array([self._onward(queue) for queue in queues], np.int64),
            "look_start": _starts(counts),
            "looks": np.array([link for each in looks.values() for link in each], np.int64),
            "acknowledgements": np.array([self._rows[queue] for queue in queues], np.int64),
        }

    def _onward(self, queue: _Queue) -> int:
        return self._number[_Queue(queue.ways[1], _FROM, (queue.link,))] if queue.kind == _ON else NO_QUEUE


def _starts(lengths: Sequence[int] | Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
