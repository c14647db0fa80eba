"""The meaning of a link, once: who occupies it and how long, what waits, what comes back as acknowledgement.

A message occupies a link for its bytes' time on the wire, first come, first served, and comes out one delay later; the
delay occupies nothing (CrossPipe, section 3.5). Several links are cut through: a message may leave a router while its
tail still comes in. Where a message travels in super-packets, each of them is stored, queued and forwarded by itself,
so what a router's own site sends meanwhile comes between them. Every super-packet is acknowledged as it arrives;
acknowledgements take their turn on the links of the route back: over one link they are carried when somebody next looks
at it, over two when somebody looks at either, where nothing may come between (ack_queues.py); else each is an event at
every link, since what else comes to the next one is not known before.

What others send, datagrams at equal distances, takes its turn as acknowledgements do: over one link that stays as it is
they are carried when somebody next looks at it, over several links or one that changes each is an event at every link.

A link may change: what is not on its way yet goes at the new rate, the rest of a packet that is being sent as well, and
waits while there is none; what has left the wire comes out as it would have, and nothing overtakes it. Or, where
packets are stamped as they come (netem): each keeps rate and delay as the link has them then, however long it waits;
what comes while there is no rate is as if it came when there is one again.

Plain functions on arrays: interpreted as they are, or compiled (compile.py). Simpler views elsewhere, on purpose:
`greedy` reserves windows of links out of turn (Algorithm 1's bw_model); `cp_model` and `bounds` keep a message together
and leave acknowledgements out; `benchmarks/oracles/closed_form.py` knows formulas. All of them take no longer than
this, or say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.pipeline.link import LinkCost

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

COMPILED = ("idle", "carry_what_is_left")
NO_QUEUE = -1
"""In the place of a queue."""

INLINED = (
    "carry_acknowledgements",
    "carry_over",
    "comes_before",
    "comes_by",
    "is_one",
    "carry_one",
    "taken",
    "occupy",
    "acknowledge",
    "acknowledge_onward",
    "changes_of",
    "stamp_of",
    "kept_until",
    "sent_by",
    "delay_after",
)
"""What compile.py compiles of this module, and what becomes part of the functions that call it."""


class LinkChanges(NamedTuple):
    """What becomes of links, in order of time."""

    start: Ints
    """Per link (and one more), where its changes begin in the others."""
    at_s: Floats
    delay_s: Floats
    seconds_per_byte: Floats


class LinkOccupancy(NamedTuple):
    """Links and what is on them: `free_s`, `out_s`, `queued`, `head` and `tail` change as time goes on.

    Acknowledgements that come to a link by different routes have a queue each there, so that each is in order of time.
    From some queues they go on to one of another link.
    """

    delay_s: Floats
    """Per link, one way."""
    seconds_per_byte: Floats
    """Per link."""
    free_s: Floats
    """Per link, until when it is occupied."""
    out_s: Floats
    """Per link, when what occupied it last is at its end."""
    changes: LinkChanges
    stamped: bool
    """Whether a packet keeps what its link is as it comes there."""
    queue_start: Ints
    """Per link (and one more), where its queues of acknowledgements begin."""
    link: Ints
    """Per queue, its link."""
    onward: Ints
    """Per queue, the one of another link that its acknowledgements go on to, or NO_QUEUE."""
    look_start: Ints
    """Per link (and one more), where in `looks` those begin that are to be seen to before anything is put on it: those
    from which acknowledgements go on to it, and itself."""
    looks: Ints
    queued: Floats
    """Acknowledgements under way, a row for those of a message or piece: when the next one comes, seconds from one to
    the next, when the last one comes at the latest, how many are left, seconds that each occupies the link. In a queue
    from which they go on each has a row of its own: when it comes, its event's number, nothing, nothing, its bytes."""
    due_s: Floats
    """Per link, when the next one of its queues comes; endless where there is none."""
    begin: Ints
    """Per queue, its first row."""
    head: Ints
    """Per queue, its first row that is not carried yet."""
    tail: Ints
    """Per queue, where its next row goes."""


class AckQueues(NamedTuple):
    """The queues of acknowledgements, link by link; as in `LinkOccupancy`."""

    start: Ints
    link: Ints
    onward: Ints
    look_start: Ints
    looks: Ints
    rows: Ints
    """Per queue, how many it has room for."""


def idle(
    delay_s: Floats, seconds_per_byte: Floats, changes: LinkChanges, stamped: bool, queues: AckQueues
) -> LinkOccupancy:
    """Idle links."""
    begin = np.concatenate((np.zeros(1, np.int64), np.cumsum(queues.rows)))
    queued, free_s, out_s = np.empty((int(begin[-1]), 5)), np.zeros(len(delay_s)), np.zeros(len(delay_s))
    head, tail = begin[:-1].copy(), begin[:-1].copy()
    links = delay_s, seconds_per_byte, free_s, out_s, changes, stamped
    ways = queues.start, queues.link, queues.onward, queues.look_start, queues.looks
    return LinkOccupancy(*links, *ways, queued, np.full(len(delay_s), np.inf), begin, head, tail)


def steady(n_links: int) -> LinkChanges:
    """Of links that stay as they are."""
    nothing = np.zeros(0)
    return LinkChanges(np.zeros(n_links + 1, np.int64), nothing, nothing, nothing)


def no_queues(n_links: int) -> AckQueues:
    """Of links on which nothing is acknowledged."""
    none, of_links = np.zeros(0, np.int64), np.zeros(n_links + 1, np.int64)
    return AckQueues(of_links, none, none, of_links, none, none)


def idle_links(links: Sequence[LinkCost], free_s: Sequence[float]) -> LinkOccupancy:
    """The links of a problem, free from these times on, for a view that leaves acknowledgements out."""
    costs = [np.array([link[place] for link in links], dtype=np.float64) for place in (0, 1)]
    wires = idle(costs[0], costs[1], steady(len(links)), False, no_queues(len(links)))
    wires.free_s[:] = free_s
    return wires


def carry_acknowledgements(wires: LinkOccupancy, link: int, now: float) -> None:
    """Have a link carry what acknowledgements have come to it until now, also those that went over another one."""
    for place in range(wires.look_start[link], wires.look_start[link + 1]):
        carry_over(wires, wires.looks[place], now)


def carry_what_is_left(wires: LinkOccupancy) -> None:
    """At the end, those acknowledgements that go over two links: on the first ones, then on the second ones."""
    for queue in range(len(wires.link)):
        if wires.onward[queue] != NO_QUEUE and wires.head[queue] < wires.tail[queue]:
            carry_over(wires, wires.link[queue], wires.queued[wires.tail[queue] - 1, 0])
    for queue in range(len(wires.link)):
        last = wires.onward[queue]
        if last != NO_QUEUE and wires.head[last] < wires.tail[last]:
            carry_over(wires, wires.link[last], wires.queued[wires.tail[last] - 1, 0])


def carry_over(wires: LinkOccupancy, link: int, now: float) -> None:
    """Have a link carry what acknowledgements are in its queues until now, in the order in which they came."""
    while wires.due_s[link] <= now:
        chosen, until, alone, later = -1, now, True, np.inf
        for queue in range(wires.queue_start[link], wires.queue_start[link + 1]):
            head = wires.head[queue]
            if head == wires.tail[queue]:
                continue
            if wires.queued[head, 0] > until:
                later = min(later, wires.queued[head, 0])
                continue
            if chosen >= 0:  # from where the other queue goes on
                until, alone = max(wires.queued[head, 0], wires.queued[wires.head[chosen], 0]), False
            if chosen < 0 or comes_before(wires, queue, chosen):
                chosen = queue
        if chosen < 0:
            wires.due_s[link] = later
            return
        if is_one(wires, chosen):
            more = True
            while more:
                carry_one(wires, link, chosen)
                more = wires.head[chosen] < wires.tail[chosen] and comes_by(wires, chosen, until, alone)
                more = more and is_one(wires, chosen)
            continue
        head, free = wires.head[chosen], wires.free_s[link]
        first, step, end = wires.queued[head, 0], wires.queued[head, 1], wires.queued[head, 2]
        left, busy = wires.queued[head, 3], wires.queued[head, 4]
        # the last one comes at `end`, before its turn in steps; until then at least that one is left
        come = left if until >= end else min(left - 1, np.floor((until - first) / step) + 1)
        last = end if come == left else first + (come - 1) * step
        # they end behind what was there before, or one after the other from where the link last waited for one: the
        # first, the last, or the last but one, which the last may follow sooner than the others did each other
        done = max(free + come * busy, first + come * busy, last + busy)
        if come > 1:
            done = max(done, first + (come - 2) * step + 2 * busy)
        wires.free_s[link] = done
        if come < left:
            # the last one at its end exactly: a sum that is rounded to less would be waited for without end
            coming = end if come + 1 == left else min(first + come * step, end)
            wires.queued[head, 0], wires.queued[head, 3] = coming, left - come
        else:
            taken(wires, chosen)


def comes_before(wires: LinkOccupancy, queue: int, other: int) -> bool:
    """Whether the next acknowledgement in a queue comes before that in another one of the link, which is listed before
    it: of two at one instant that go on to other links the one that was scheduled first, as events are."""
    mine, theirs = wires.head[queue], wires.head[other]
    if wires.queued[mine, 0] != wires.queued[theirs, 0]:
        return bool(wires.queued[mine, 0] < wires.queued[theirs, 0])
    both_go_on = wires.onward[queue] != NO_QUEUE and wires.onward[other] != NO_QUEUE
    return bool(both_go_on and wires.queued[mine, 1] < wires.queued[theirs, 1])


def is_one(wires: LinkOccupancy, queue: int) -> bool:
    """Whether the next row of a queue is one acknowledgement."""
    head = wires.head[queue]
    last = wires.queued[head, 3] == 1 and wires.queued[head, 0] == wires.queued[head, 2]
    return bool(wires.onward[queue] != NO_QUEUE or last)


def comes_by(wires: LinkOccupancy, queue: int, until: float, alone: bool) -> bool:
    """Whether the next row of a queue comes before another queue goes on, or by then where there is none."""
    when = wires.queued[wires.head[queue], 0]
    return bool(when < until or (alone and when == until))


def carry_one(wires: LinkOccupancy, link: int, queue: int) -> None:
    """Have a link carry the next row in one of its queues, which is one acknowledgement. No link changes where any go
    on from one."""
    head, onward = wires.head[queue], wires.onward[queue]
    begin = max(wires.free_s[link], wires.queued[head, 0])
    taken(wires, queue)
    if onward == NO_QUEUE:
        wires.free_s[link] = begin + wires.queued[head, 4]
        return
    size = wires.queued[head, 4]
    wires.free_s[link] = begin + size * wires.seconds_per_byte[link]
    there = wires.free_s[link] + wires.delay_s[link]
    wires.out_s[link] = max(wires.out_s[link], there)
    acknowledge(wires, onward, size, (there, 0.0, there), 1)


def taken(wires: LinkOccupancy, queue: int) -> None:
    """The next row of a queue is done with; one that has become empty begins anew."""
    wires.head[queue] += 1
    if wires.head[queue] == wires.tail[queue]:
        wires.head[queue] = wires.tail[queue] = wires.begin[queue]


def occupy(wires: LinkOccupancy, link: int, size: float, now: float, last_bit: float) -> float:
    """Put `size` wire bytes on a link whose first bit is there now, the last one at `last_bit`; returns their start.

    They leave it at `wires.free_s[link]`, and are at its end at `wires.out_s[link]`.
    """
    free, came = wires.free_s[link], now
    if wires.stamped and changes_of(wires, link) > 0:  # behind what came before, which may have another delay
        free, came = wires.out_s[link] - delay_after(wires, link, now, now), kept_until(wires, link, now)
    begin: float = max(came, free)
    wires.free_s[link] = max(sent_by(wires, link, begin, size, now), last_bit)
    out = wires.free_s[link] + delay_after(wires, link, wires.free_s[link], now)
    wires.out_s[link] = max(wires.out_s[link], out)
    return begin


def changes_of(wires: LinkOccupancy, link: int) -> int:
    """How many changes of a link there are."""
    return int(wires.changes.start[link + 1] - wires.changes.start[link])


def stamp_of(wires: LinkOccupancy, link: int, came: float) -> int:
    """The place of the change by which a link stamps what `came` to it: the last one before that, or in an outage the
    one that ends it; one less than the first where there is none."""
    found, kept, until = wires.changes.start[link] - 1, False, -1.0
    for place in range(wires.changes.start[link], wires.changes.start[link + 1]):
        at = wires.changes.at_s[place]
        if at < came or kept or at == until:
            found, kept = place, wires.changes.seconds_per_byte[place] == np.inf
            until = max(until, at) if at >= came else until
    return int(found)


def kept_until(wires: LinkOccupancy, link: int, came: float) -> float:
    """When a link that stamps what `came` to it does: at once, or when an outage is over."""
    place = stamp_of(wires, link, came)
    return float(came if place < wires.changes.start[link] else max(came, wires.changes.at_s[place]))


def sent_by(wires: LinkOccupancy, link: int, begin: float, size: float, came: float) -> float:
    """When `size` wire bytes have left that `came` to a link, which begins to send them at `begin`: at the rates that
    it has meanwhile, or at the one that it had as they came."""
    at, left, per_byte = begin, size, wires.seconds_per_byte[link]
    if wires.stamped:
        place = stamp_of(wires, link, came)
        if place >= wires.changes.start[link]:
            per_byte = wires.changes.seconds_per_byte[place]
        return float(at + left * per_byte)
    for place in range(wires.changes.start[link], wires.changes.start[link + 1]):
        until = wires.changes.at_s[place]
        if until > at:
            if per_byte < np.inf:
                done = at + left * per_byte
                if done <= until:
                    return float(done)
                left -= (until - at) / per_byte
            at = until
        per_byte = wires.changes.seconds_per_byte[place]
    return float(at + left * per_byte)


def delay_after(wires: LinkOccupancy, link: int, left: float, came: float) -> float:
    """The delay of what `came` to a link and leaves the wire at `left`."""
    delay = wires.delay_s[link]
    if wires.stamped:
        place = stamp_of(wires, link, came)
        return float(delay if place < wires.changes.start[link] else wires.changes.delay_s[place])
    for place in range(wires.changes.start[link], wires.changes.start[link + 1]):
        if wires.changes.at_s[place] < left:
            delay = wires.changes.delay_s[place]
    return float(delay)


def acknowledge(wires: LinkOccupancy, queue: int, size: float, times: tuple[float, float, float], count: int) -> None:
    """Put `count` acknowledgements of `size` wire bytes each into a queue, for its link to carry.

    `times` are when the first one is there, seconds from one to the next, and when the last one is at the latest.
    """
    place = wires.tail[queue]
    wires.tail[queue] = place + 1
    wires.queued[place, 0], wires.queued[place, 1], wires.queued[place, 2] = times
    link = wires.link[queue]
    wires.queued[place, 3], wires.queued[place, 4] = count, size * wires.seconds_per_byte[link]
    wires.due_s[link] = min(wires.due_s[link], times[0])


def acknowledge_onward(wires: LinkOccupancy, queue: int, size: float, when: float, number: int) -> None:
    """Put an acknowledgement of `size` wire bytes that comes `when` into a queue from which it goes on; `number` is
    that of its event, if it were one."""
    place = wires.tail[queue]
    wires.tail[queue] = place + 1
    wires.queued[place, 0], wires.queued[place, 1], wires.queued[place, 4] = when, number, size
    wires.due_s[wires.link[queue]] = min(wires.due_s[wires.link[queue]], when)
