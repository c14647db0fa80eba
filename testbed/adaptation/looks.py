"""Looks at routes that a job has left: when one pays, how large it is, and what it shows.

A look is a train, packets sent back to back, there and back along a route. What the first one takes tells the delay;
how much later the last one comes tells the rate of the slowest link, as messages do. It goes beside an iteration where
the route shares no link with what the job sends, and nobody waits but whoever else is on that route; else between two
iterations, and the job waits.

When: whatever has lasted for n iterations is expected to last as long again, since nobody knows more, so that it ends
in the next one with a chance of 1 in n. Who looks every T iterations pays c / T in each of them for looks and, once the
route is worth g an iteration again, loses T / 2 of them unseen: least in all for T = sqrt(2 c n / g), as Young's
formula (1974) has it for checkpoints, with n in place of the time between failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.adaptation.estimates import RECOGNISED, Belief, vouched_for
from testbed.adaptation.sightings import PROBE_BYTES, Path

LEAST_PACKETS = 10
"""Of a train, however short that makes it."""

MOST_TAKEN = 0.005
"""Share of all time that a job may wait for looks."""

WAITS = 2.0
"""So many times as long as it is believed to take a look is waited for: what takes longer has not recovered."""


class Look(NamedTuple):
    """One at a route, there and back at once."""

    paths: tuple[Path, ...]
    packets: int
    """Of each train, of PROBE_BYTES each."""
    beside: bool
    """Whether it goes beside an iteration; else between two."""
    costs_s: float
    """What it is taken to cost: as long as the job waits; of one beside an iteration as long as the route is busy with
    it, which is the time of whoever else is there."""
    waits_s: float
    """Between two iterations, after so long what has not come is given up."""

    @property
    def wire_bytes(self) -> float:
        """Of each train."""
        return self.packets * PROBE_BYTES


class Hope(NamedTuple):
    """A route that the job does not use, and would if it were as planned."""

    paths: tuple[Path, ...]
    gain_s: float
    """Of an iteration."""


def packets_of(rate_bps: float, noise_s: float, message_bytes: float) -> int:
    """As many as show a rate: times that are off by `noise_s` may move what is read by no more than what counts as the
    same (RECOGNISED). Never more bytes than those of a message, which nobody needs to know better.
    """
    needed = rate_bps * noise_s / RECOGNISED / 8 if math.isfinite(rate_bps) else 0.0
    return max(LEAST_PACKETS, math.ceil(min(needed, message_bytes) / PROBE_BYTES))


def hopes(belief: Belief, planned: Belief, used: Collection[Path], gain_s: Callable[[Belief], float]) -> list[Hope]:
    """Routes that are not used and believed to be others than planned, each with what a job would gain (`gain_s`) if
    that one were so again, and with it whatever else its links vouch for; those that bring something.
    """
    found, done = list[Hope](), set[Path]()
    for path, estimate in belief.paths.items():
        if path in used or path in done or estimate == planned.paths[path]:
            continue
        ends = path.pair, path.pair[::-1]
        both = tuple(one for one in belief.paths if one.pair in ends and one.over == path.over and one not in used)
        done.update(both)
        hoped = replace(belief, paths={**belief.paths, **{one: planned.paths[one] for one in both}})
        also = {one: planned.paths[one] for one in vouched_for(hoped, planned, {*used, *both})}
        if (gained_s := gain_s(replace(hoped, paths={**hoped.paths, **also}))) > 0:
            found.append(Hope(both, gained_s))
    return found


class Looks:
    """Which look comes next, if any."""

    def __init__(self, planned: Belief, message_bytes: float) -> None:
        """`message_bytes`: of the longest message on the wire, as planned."""
        self._planned, self._message_bytes = planned, message_bytes
        self._believed = planned.paths
        self._lasts = dict.fromkeys(planned.paths, 0)
        """Iterations after which the same was believed of a path."""
        self._unseen = dict.fromkeys(planned.paths, 0)
        """Iterations since it was seen last."""
        self._trained_s, self._taken_s = 0.0, 0.0

    def ended(self, belief: Belief, seen: Collection[Path], iteration_s: float) -> None:
        """An iteration that took so long, after which this is believed; these paths were seen with it."""
        for path, estimate in belief.paths.items():
            self._lasts[path] = self._lasts[path] + 1 if estimate == self._believed[path] else 1
            self._unseen[path] = 0 if path in seen else self._unseen[path] + 1
        self._believed = belief.paths
        self._trained_s += iteration_s

    def took(self, seconds: float) -> None:
        """The job has waited so long for a look."""
        self._taken_s += seconds

    def next(
        self,
        hoped: Sequence[Hope],
        noise_s: Callable[[Path], float],
        doubted: Collection[Path],
        in_the_way: Callable[[Collection[Path]], bool],
    ) -> Look | None:
        """What to look at now, of all that is due what brings most, and of as much what costs least.

        Of a path that is `doubted` one look has said what another one has to confirm. What goes along paths may be
        `in_the_way` of what the job sends.
        """
        due = list[tuple[float, float, Look]]()
        for hope in hoped:
            look = self._look(hope.paths, noise_s, beside=not in_the_way(hope.paths))
            lasts, unseen = (min(known[path] for path in hope.paths) for known in (self._lasts, self._unseen))
            every = math.sqrt(2 * look.costs_s * lasts / hope.gain_s)
            afforded = look.beside or self._taken_s + look.waits_s <= MOST_TAKEN * self._trained_s
            if afforded and (unseen + 1 >= every or any(path in doubted for path in hope.paths)):
                due.append((hope.gain_s, -look.costs_s, look))
        return max(due, key=lambda one: one[:2])[-1] if due else None

    def _look(self, paths: tuple[Path, ...], noise_s: Callable[[Path], float], *, beside: bool) -> Look:
        planned, believed = self._planned.paths, self._believed
        packets = max(packets_of(planned[path].rate_bps.value, noise_s(path), self._message_bytes) for path in paths)
        size = packets * PROBE_BYTES
        waited_s = max(believed[path].crossing_s(size) for path in paths)
        busy_s = max(8 * size / believed[path].rate_bps.value for path in paths)
        return Look(paths, packets, beside, busy_s if beside else waited_s, WAITS * waited_s)
