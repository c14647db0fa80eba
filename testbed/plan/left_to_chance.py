"""What a network leaves to chance and no model foretells: how late jitter makes a packet, and how many are lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from testbed.plan.framing import ETHERNET_HEADER, MTU
from testbed.plan.network_state import planned
from testbed.plan.plan import Case, Plan, Route
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.timeline import LinkEvent


class Chance(NamedTuple):
    """Of packets on one way, at the worst time of a training."""

    jitter_s: float
    """By so much one may come later, or earlier, than the model has it."""
    loss: float
    """Share that is lost."""

    def touches(self, wire_bytes: float, together_bytes: float = 0.0) -> float:
        """The share of messages of so many bytes whose time losses change, at most: those that have a packet lost, or
        follow one that has, and wait for it or for TCP's window. All, where the window may stay too small for one. Of
        messages that count with their mean, all `together_bytes` have to arrive."""
        window = math.inf if not self.loss else math.sqrt(1.5 / self.loss)
        if math.ceil(wire_bytes / _PACKET_BYTES) > _SHARE_OF_WINDOW * window:
            return 1.0
        packets = math.ceil(max(wire_bytes, together_bytes) / _PACKET_BYTES)
        return 1 - (1 - self.loss) ** (2 * packets)


_PACKET_BYTES = MTU + ETHERNET_HEADER


_SHARE_OF_WINDOW = 0.5
"""Of TCP's mean window in packets under a steady loss, sqrt(3 / 2p) (Mathis et al., 1997): by so much it is halved."""


def left_to_chance(plan: Plan, events: Sequence[LinkEvent]) -> bool:
    """Whether a network loses or delays any packets by chance, as it is planned or by what happens to its links."""
    planned_ones = planned(plan.network).everything
    return any(one.loss or one.jitter_s for one in planned_ones) or any(event.by_chance for event in events)


def chances_of_pairs(
    plan: Plan, case: Case, pairs: Iterable[tuple[int, int]], events: Sequence[LinkEvent]
) -> list[Chance]:
    """Per (source rank, target rank), of its way there in a case; `events`: what happens to links in it."""
    route_of = RankRoutes(plan, case)
    directions = route_of.network.everything
    most_s, losses = ({number: [getattr(one, name)] for number, one in enumerate(directions)} for name in _LEFT)
    for event in events:
        if event.jitter_s is not None:
            most_s[event.direction].append(event.jitter_s)
        if event.loss is not None:
            losses[event.direction].append(event.loss)

    def on(route: Route) -> Chance:
        arrives = math.prod(1 - max(losses[index]) for index in route)
        return Chance(sum(max(most_s[index]) for index in route), 1 - arrives)

    return [on(route_of(*pair)) for pair in pairs]


def touched_at(touched: Iterable[float], ways: Iterable[Sequence[str]]) -> dict[str, float]:
    """By direction, the largest share of messages that losses touch of any flow that crosses it, of flows on these
    ways: what is sent again, or later, passes there at another time than others expect."""
    at: dict[str, float] = {}
    for share, way in zip(touched, ways, strict=True):
        for direction in way:
            at[direction] = max(at.get(direction, 0.0), share)
    return at


_LEFT = ("jitter_s", "loss")
"""Of a direction."""
