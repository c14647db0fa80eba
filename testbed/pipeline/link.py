"""What one direction of a link costs, and a message that crosses several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class LinkCost(NamedTuple):
    """One direction of a link."""

    delay_s: float
    """One-way; it does not occupy the link."""
    seconds_per_byte: float
    """Time on the wire per wire byte, which occupies the link; 0 for an infinite rate."""


class LinkChange(NamedTuple):
    """What one direction costs from an instant on, until it changes again."""

    at_s: float
    """From the common start of an iteration."""
    link: int
    """Of which of a problem's links."""
    delay_s: float
    """Of what leaves the wire after it; nothing overtakes what has left before."""
    seconds_per_byte: float
    """Of all bytes that are not on their way yet, the rest of a packet that is being sent included; infinite while
    nothing is sent."""


class StreamSpan(NamedTuple):
    """A time in which datagrams are sent at equal distances; times are from the common start of an iteration."""

    first_s: float
    """When the first one is sent."""
    every_s: float
    """From one to the next."""
    before_s: float
    """None is sent at this time or later; infinite of a span without end."""


class Stream(NamedTuple):
    """Datagrams from elsewhere, each stored and forwarded by itself, which nobody acknowledges."""

    route: tuple[int, ...]
    """The links of a problem that they cross, first to last."""
    wire_bytes: float
    """Of each."""
    spans: tuple[StreamSpan, ...]
    """In order of time, none within another one."""


def wire_s(links: Sequence[LinkCost], size: float) -> float:
    """How long a message of so many wire bytes takes on the slowest of idle links: they are cut through."""
    return max((link.seconds_per_byte * size for link in links), default=0.0)


def crossing_s(links: Sequence[LinkCost], size: float) -> float:
    """How long it is on its way over them: all delays, and the slowest one's time on the wire."""
    return sum(link.delay_s for link in links) + wire_s(links, size)
