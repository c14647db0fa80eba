"""Nodes' network cards: what leaves a node shaped on its own interface, by netem, else by tbf, which knows no delay."""

from __future__ import annotations

from typing import Any, Protocol

from testbed.errors import MachineLacks
from testbed.lab.shaping import LinkCounters, ShapedDirection, netem, tbf
from testbed.units import show_time

_REMEDY = "modprobe sch_netem (or sch_tbf), leave `inside` out, or use --vm or --clock virtual"


class CardShaper(Protocol):
    """Shapes interfaces that exist already. All methods raise RunFailed naming the refused request."""

    name: str

    def shape(self, direction: ShapedDirection, gso: int) -> None:
        """Shape the direction's source interface, over which super-packets are of `gso` bytes at most; read it back."""

    def counters(self) -> list[LinkCounters]:
        """One reading per direction, in the order in which they were shaped."""

    def change(self, direction: int, **values: float) -> None:
        """Change a live direction, by its index."""

    def describe(self) -> list[dict[str, Any]]:
        """Per direction, what is in force."""


class NetemCards(netem.NetemShaper):
    """Cards shaped by netem: rate and delay."""

    def shape(self, direction: ShapedDirection, gso: int) -> None:
        """See CardShaper."""
        self.shape_existing(direction)


def choose() -> CardShaper:
    """Netem where the kernel has it, else tbf. Raises MachineLacks where it has neither."""
    without_netem = netem.available()
    if without_netem is None:
        return NetemCards()
    without_tbf = tbf.available()
    if without_tbf is None:
        return tbf.Buckets()
    raise MachineLacks(
        f"`inside` cannot be shaped: this kernel has no netem qdisc ({without_netem}) and no tbf qdisc "
        f"({without_tbf}); {_REMEDY}"
    )


def delay_note(shaper: str, asked_s: float, taken_s: float | None) -> str | None:
    """What is to be said about a card's delay, when `taken_s` was measured; None when it is simply as asked."""
    took = "the host itself takes an unknown time" if taken_s is None else f"{show_time(taken_s)} were measured"
    if shaper != NetemCards.name and asked_s > 0:
        return f"the card's delay of {show_time(asked_s)} is in the model only, {shaper} has none: {took}"
    if taken_s is not None and taken_s > 2 * asked_s > 0:
        return f"the card's delay of {show_time(asked_s)} is less than what the host itself takes: {took}"
    return None
