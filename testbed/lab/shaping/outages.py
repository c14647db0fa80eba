"""Outages for a shaper that gives packets their time as they come: it has to know the end of one as that begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.errors import RunFailed
from testbed.lab.shaping import TimedChange


def ends_known(changes: Sequence[TimedChange]) -> list[TimedChange]:
    """The same, each in its place, without `sends`: the one that begins an outage has `keeps_until_s` and all that
    becomes of its direction by then, and those within are empty. What comes in an outage is so sent as if it came at
    its end, and outages that overlap or follow at once are one.

    Raises RunFailed for an outage whose end is not among them.
    """
    found = [replace(one, sends=None) for one in changes]
    for direction in dict.fromkeys(one.direction for one in changes):
        mine = [place for place, one in enumerate(changes) if one.direction == direction]
        mine.sort(key=lambda place: changes[place].at_s)
        for places in _outages(changes, mine):
            first, *others = places
            found[first] = _together([found[place] for place in places], changes[places[-1]].at_s)
            for place in others:
                found[place] = TimedChange(changes[place].at_s, direction)
    return found


def _outages(changes: Sequence[TimedChange], mine: Sequence[int]) -> list[list[int]]:
    """Of a direction, the places of all changes from the beginning to the end of each outage; those at the instant at
    which it ends as well."""
    found, down, ended_s = list[list[int]](), 0, -1.0
    for place in mine:
        one = changes[place]
        if down or (found and one.at_s == ended_s):
            found[-1].append(place)
        elif one.sends is False:
            found.append([place])
        down = max(0, down + {None: 0, False: 1, True: -1}[one.sends])
        if not down and found and place == found[-1][-1]:
            ended_s = one.at_s
    if down:
        began_s, direction = changes[found[-1][0]].at_s, changes[mine[0]].direction
        raise RunFailed(f"direction {direction}: netem has to know the end of an outage at {began_s} s")
    return found


def _together(outage: Sequence[TimedChange], until_s: float) -> TimedChange:
    """What becomes of a direction by the end of an outage."""
    found = replace(outage[0], keeps_until_s=until_s)
    for one in outage[1:]:
        found = replace(
            found,
            delay_s=found.delay_s if one.delay_s is None else one.delay_s,
            rate_bps=found.rate_bps if one.rate_bps is None else one.rate_bps,
            loss=found.loss if one.loss is None else one.loss,
            jitter_s=found.jitter_s if one.jitter_s is None else one.jitter_s,
        )
    return found
