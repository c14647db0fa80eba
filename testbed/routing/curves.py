"""Where the arrows of a network's picture run: parallel links beside each other, none behind a box that it only passes.

Lengths are in widths of a panel; an arrow is the quadratic curve that matplotlib's "arc3" draws.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from testbed.plan.network_state import NetworkState
from testbed.spec.topology import Direction

CurvePoint = tuple[float, float]

ASPECT = 0.78
"""Height of what is one unit high, over the width of what is one unit wide."""

BOX_HALF_HEIGHT = 0.035
_FIRST, _APART, _MOST = 0.07, 0.13, 0.75
_FINE = 0.02
_STEPS = 40


class Arrow(NamedTuple):
    """A direction of a link as it is drawn."""

    bend: float
    """`rad` of "arc3"; above 0 to the left."""
    label: str
    """The link's name where others join the same places, else empty."""
    label_at: CurvePoint


def places_at(network: NetworkState) -> dict[str, CurvePoint]:
    """Where everything is drawn: switches in a row above what has nodes; without switches all on a circle."""
    ends, switches = network.datacenters, network.switches
    if switches:
        lower = {name: ((number + 0.5) / len(ends), 0.0) for number, name in enumerate(ends)}
        return lower | {name: ((number + 0.5) / len(switches), 0.7) for number, name in enumerate(switches)}
    if len(ends) < 3:
        return {name: (0.1 + 0.8 * number, 0.35) for number, name in enumerate(ends)}
    angles = [math.pi / 2 - 2 * math.pi * number / len(ends) for number in range(len(ends))]
    return {name: (0.5 + 0.42 * math.cos(a), 0.4 + 0.36 * math.sin(a)) for name, a in zip(ends, angles, strict=True)}


def short_name(name: str, everything: Collection[str]) -> str:
    """Without what all names begin with: pod-leaf3 is leaf3 where there is one Clos alone."""
    heads = {link.rpartition("-")[0] for link in everything}
    return name.rpartition("-")[2] if len(heads) == 1 and "" not in heads else name


def arrows(
    directions: Sequence[Direction], at: Mapping[str, CurvePoint], half_widths: Mapping[str, float]
) -> list[Arrow]:
    """One for each direction; `half_widths` are those of the boxes."""
    several = Counter((direction.source, direction.target) for direction in directions)
    taken: dict[tuple[str, str], list[float]] = {}
    found = []
    for direction in directions:
        ends = direction.source, direction.target
        mine, number = taken.setdefault(ends, []), several[ends]
        passed = {name: half for name, half in half_widths.items() if name not in ends}
        bend = _bend(at, ends, passed, mine, min(_APART, 0.4 / number))
        along = 0.3 + 0.4 * (len(mine) + 0.5) / number  # parallel links' names beside, not upon each other
        mine.append(bend)
        label = direction.link if number > 1 else ""
        found.append(Arrow(bend, label, point(at[direction.source], at[direction.target], bend, along)))
    return found


def _bend(
    at: Mapping[str, CurvePoint],
    ends: tuple[str, str],
    passed: Mapping[str, float],
    taken: Sequence[float],
    distance: float,
) -> float:
    """The least bend beyond those taken that passes all other boxes; the plain one where none does."""
    plain = max(taken) + distance if taken else _FIRST
    for step in range(round((_MOST - plain) / _FINE) + 1):
        bend = plain + step * _FINE
        if not hides(at, ends, passed, bend):
            return bend
    return plain


def hides(at: Mapping[str, CurvePoint], ends: tuple[str, str], boxes: Mapping[str, float], bend: float) -> bool:
    """Whether an arrow runs behind one of these boxes."""
    curve = [point(at[ends[0]], at[ends[1]], bend, step / _STEPS) for step in range(1, _STEPS)]
    return any(
        abs(x - at[name][0]) < half and abs(y - at[name][1]) < BOX_HALF_HEIGHT / ASPECT
        for name, half in boxes.items()
        for x, y in curve
    )


def point(source: CurvePoint, target: CurvePoint, bend: float, along: float) -> CurvePoint:
    """Of an arrow, where it is after a share of its parameter."""
    (x0, y0), (x2, y2) = source, target
    middle = (x0 + x2) / 2 + bend * (y2 - y0) * ASPECT, (y0 + y2) / 2 - bend * (x2 - x0) / ASPECT
    shares = (1 - along) ** 2, 2 * along * (1 - along), along**2
    x, y = (
        sum(share * coordinate for share, coordinate in zip(shares, axis, strict=True))
        for axis in zip(source, middle, target, strict=True)
    )
    return x, y
