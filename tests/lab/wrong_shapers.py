"""Shapers that give one direction something else than the topology says: --shaper tests/lab/wrong_shapers.py:NAME."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.lab.shaping import ShapedLink
from testbed.lab.shaping.relay import RelayShaper


class SlowWayBack(RelayShaper):
    """The first link's way back takes 3 ms more."""

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        super().build(links)
        self.change(1, delay_s=links[0].reverse.asked.delay_s + 3e-3)


class NoWayBack(RelayShaper):
    """Nothing comes back over the first link."""

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        super().build(links)
        self.change(1, loss=1.0)
