"""What one direction of a link costs."""

from __future__ import annotations

from typing import NamedTuple


class LinkCost(NamedTuple):
    """One direction of a link."""

    delay_s: float
    """One-way; it does not occupy the link."""
    seconds_per_byte: float
    """Time on the wire per wire byte, which occupies the link; 0 for an infinite rate."""
