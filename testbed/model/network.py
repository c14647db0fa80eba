"""The meaning of a link, once: who occupies it and how long, what waits, what comes back as acknowledgement.

A message occupies a link for its bytes' time on the wire, first come, first served, and comes out one delay later; the
delay occupies nothing (CrossPipe, section 3.5). Several links are cut through: a message may leave a router while its
tail still comes in. Where a message travels in super-packets, each of them is stored, queued and forwarded by itself,
so what a router's own site sends meanwhile comes between them. What arrives is acknowledged over the way back, where
acknowledgements slip in behind whatever occupies the link.

Plain functions on arrays: interpreted as they are, or compiled (compile.py). Simpler views elsewhere, on purpose:
`greedy` reserves windows of links out of turn (Algorithm 1's bw_model); `cp_model` and `bounds` keep a message together
and leave acknowledgements out; `closed_form` knows formulas. All of them take no longer than this, or say so.
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

COMPILED = ("idle", "carry_acknowledgements", "occupy", "acknowledge")
"""What compile.py compiles of this module."""


class Wires(NamedTuple):
    """All links and what is on them. The last four change as time goes on."""

    delay_s: Floats
    """Per link, one way."""
    seconds_per_byte: Floats
    """Per link."""
    free_s: Floats
    """Per link, until when it is occupied."""
    queued: Floats
    """Acknowledgements under way, a row each: from, until, seconds that they occupy their link; link after link."""
    head: Ints
    """Per link, the first of its acknowledgements that it has not carried yet."""
    tail: Ints
    """Per link, where its next acknowledgement goes."""


def idle(delay_s: Floats, seconds_per_byte: Floats, acknowledgements: Ints) -> Wires:
    """Idle links with room for so many acknowledgements each."""
    begin = np.concatenate((np.zeros(1, np.int64), np.cumsum(acknowledgements)))
    queued = np.zeros((int(begin[-1]), 3))
    return Wires(delay_s, seconds_per_byte, np.zeros(len(delay_s)), queued, begin[:-1].copy(), begin[:-1].copy())


def idle_links(links: Sequence[LinkCost], free_s: Sequence[float]) -> Wires:
    """The links of a problem, free from these times on, for a view that leaves acknowledgements out."""
    costs = [np.array([link[place] for link in links], dtype=np.float64) for place in (0, 1)]
    wires = idle(costs[0], costs[1], np.zeros(len(links), np.int64))
    wires.free_s[:] = free_s
    return wires


def carry_acknowledgements(wires: Wires, link: int, now: float) -> None:
    """Have a link carry what acknowledgements have come to it until now, behind what occupies it."""
    head = wires.head[link]
    free = wires.free_s[link]
    while head < wires.tail[link] and wires.queued[head, 0] <= now:
        begin, end, busy = wires.queued[head, 0], wires.queued[head, 1], wires.queued[head, 2]
        until = min(end, now)
        share = (until - begin) / (end - begin) if end > begin else 1.0
        if free > begin:  # those that find the link idle are in nobody's way
            free += busy * (share if free >= until else (free - begin) / (end - begin))
        if until < end:
            wires.queued[head, 0], wires.queued[head, 2] = until, busy * (1 - share)
            break
        head += 1
    wires.free_s[link], wires.head[link] = free, head


def occupy(wires: Wires, link: int, size: float, now: float, last_bit: float) -> float:
    """Put `size` wire bytes on a link whose first bit is there now, the last one at `last_bit`; returns their start.

    They leave it at `wires.free_s[link]`.
    """
    begin: float = max(now, wires.free_s[link])
    wires.free_s[link] = max(begin + size * wires.seconds_per_byte[link], last_bit)
    return begin


def acknowledge(wires: Wires, route: Ints, size: float, begin: float, end: float) -> None:
    """Send `size` wire bytes of acknowledgements, spread evenly from `begin` to `end`, over the links of a route."""
    first, last = begin, end
    for link in route:
        place = wires.tail[link]
        wires.tail[link] = place + 1
        wires.queued[place, 0], wires.queued[place, 1] = first, last
        wires.queued[place, 2] = size * wires.seconds_per_byte[link]
        first, last = first + wires.delay_s[link], last + wires.delay_s[link]
