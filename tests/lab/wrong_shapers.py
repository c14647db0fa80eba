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

gate.QUIET_LIMIT_S = 1.0  # type: ignore[attr-defined]
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


class WrongFromTheStart(RelayShaper):
    """The first link has the delays of its two directions the wrong way round: round trips are right.

    The second link's way there has nine tenths of its rate.
    """

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        super().build(links)
        swap_delays(self, links, 0)
        self.change(2, rate_bps=0.9 * links[1].forward.asked.rate_bps)


def swap_delays(shaper: RelayShaper, links: Sequence[ShapedLink], number: int) -> None:
    """The directions of a link change places, in their delays only."""
    link = links[number]
    shaper.change(2 * number, delay_s=link.reverse.asked.delay_s)
    shaper.change(2 * number + 1, delay_s=link.forward.asked.delay_s)


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


class OneFaultAfterAnother(_Later):
    """Of the second link, another one for every schedule: one fault is mended before the next one comes.

    Its rate, its delays swapped, packets of it lost; then what goes between the first two datacenters takes the first
    link instead, whatever the plan says.
    """

    def build(self, links: Sequence[ShapedLink]) -> None:
        """See Shaper."""
        super().build(links)
        self.to_come = [self.slow, self.swapped, self.lossy, self.detour]

    def spoil(self) -> None:
        """See _Later."""
        for number, asked in enumerate((self.links[1].forward.asked, self.links[1].reverse.asked), start=2):
            self.change(number, rate_bps=asked.rate_bps, delay_s=asked.delay_s, loss=asked.loss)
        self.to_come.pop(0)()

    def slow(self) -> None:
        self.change(2, rate_bps=0.8 * self.links[1].forward.asked.rate_bps)

    def swapped(self) -> None:
        swap_delays(self, self.links, 1)

    def lossy(self) -> None:
        self.change(2, loss=0.02)

    def detour(self) -> None:
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


class LongerLater(_Later):
    """The first link takes 100 ms more, either way."""

    def spoil(self) -> None:
        """See _Later."""
        for number, asked in enumerate((self.links[0].forward.asked, self.links[0].reverse.asked)):
            self.change(number, delay_s=asked.delay_s + 0.1)
