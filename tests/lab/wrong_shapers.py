"""Shapers that give a lab something else than was asked for: --shaper tests/lab/wrong_shapers.py:NAME.

The first ones are wrong from the beginning, when links are measured; the `Later` ones become wrong when the first
schedule is about to be trained: counters are read then, with `reset_peaks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from testbed.lab import addresses, gate
from testbed.lab.netlink import Netlink
from testbed.lab.shaping import LinkCounters, ShapedLink
from testbed.lab.shaping.relay import RelayShaper

gate.QUIET_LIMIT_S = 1.0
"""A machine that runs tests is never quiet, and no link of these becomes right by waiting."""


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


class SlowRate(RelayShaper):
    """The first link's way there has nine tenths of its rate."""

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        super().build(links)
        self.change(0, rate_bps=0.9 * links[0].forward.asked.rate_bps)


class SwappedDelays(RelayShaper):
    """The first link has the delays of its two directions the wrong way round: round trips are right."""

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        super().build(links)
        forward, reverse = links[0].forward.asked.delay_s, links[0].reverse.asked.delay_s
        self.change(0, delay_s=reverse)
        self.change(1, delay_s=forward)


class _Later(RelayShaper, ABC):
    """Right while links are measured, wrong when a schedule is trained."""

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        super().build(links)
        self.links = links

    def counters(self, *, reset_peaks: bool = False) -> list[LinkCounters]:
        """See Shaper."""
        if reset_peaks:
            self.spoil()
        return super().counters(reset_peaks=reset_peaks)

    @abstractmethod
    def spoil(self) -> None:
        """Make it wrong."""


class SlowRateLater(_Later):
    """As SlowRate."""

    def spoil(self) -> None:
        """See _Later."""
        self.change(0, rate_bps=0.8 * self.links[0].forward.asked.rate_bps)


class SwappedDelaysLater(_Later):
    """As SwappedDelays."""

    def spoil(self) -> None:
        """See _Later."""
        forward, reverse = self.links[0].forward.asked.delay_s, self.links[0].reverse.asked.delay_s
        self.change(0, delay_s=reverse)
        self.change(1, delay_s=forward)


class LossLater(_Later):
    """Some packets of what crosses the first link are lost."""

    def spoil(self) -> None:
        """See _Later."""
        self.change(0, loss=0.02)


class DetourLater(_Later):
    """What goes between the first two datacenters takes the first link, whatever the plan says."""

    def spoil(self) -> None:
        """See _Later."""
        link, ends = self.links[0].forward, addresses.link_subnet(0)
        for here, target, gateway in ((link.source, 1, ends.second), (link.target, 0, ends.first)):
            with Netlink(here.pid, here.border) as netlink:
                oif = netlink.index(here.interface)
                netlink.ask("route", "add", dst="default", gateway=gateway, oif=oif, table=777)
                netlink.ask("rule", "add", dst=addresses.datacenter_network(target), table=777, priority=10)


class UnpinnedLater(_Later):
    """Routers forget the first flow that they were to send another way than by default."""

    def spoil(self) -> None:
        """See _Later."""
        for link in self.links:
            with Netlink(link.forward.source.pid, link.forward.source.border) as netlink:
                for rule in netlink.ask("get_rules", family=2):
                    if rule.get_attr("FRA_DST") and rule.get_attr("FRA_SRC"):
                        table, priority = rule.get_attr("FRA_TABLE"), rule.get_attr("FRA_PRIORITY")
                        pair = {"src": f"{rule.get_attr('FRA_SRC')}/32", "dst": f"{rule.get_attr('FRA_DST')}/32"}
                        netlink.ask("rule", "del", **pair, table=table, priority=priority)
                        return
