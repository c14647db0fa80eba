"""What comes and goes regularly: how long each phase lasted says when the next one begins, before it does.

A square wave of which two phases in a row lasted equally long is taken to go on; one that does not keep its time is
not relied on. What is best over all that is then ahead, swaps paid for, is found by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from testbed.adaptation.candidate import JobCandidate, JobSetting
from testbed.adaptation.swap_costs import SwapCosts

ALIKE = 0.02
"""By so much an iteration may take longer where things are as they were before: estimates are not exact."""

PUNCTUAL = 1
"""Iterations by which phases that last equally long may differ: a change may fall inside of an iteration."""

TURNS = 2
"""So many of them are looked ahead."""


class BelievedPhase(NamedTuple):
    """Iterations in which the same was believed."""

    iterations: int
    predicted_s: Mapping[JobCandidate, float]
    """Of every candidate: what an iteration took, or would have taken."""


def alike(one: BelievedPhase, other: BelievedPhase) -> bool:
    """Whether every candidate takes as long in both."""
    return all(
        abs(seconds - other.predicted_s[candidate]) <= ALIKE * other.predicted_s[candidate]
        for candidate, seconds in one.predicted_s.items()
    )


def turn_since(phases: Sequence[BelievedPhase]) -> list[BelievedPhase]:
    """The phases since things were last as they are now, and this one; empty where they never were."""
    *before, now = phases
    for place in reversed(range(len(before) - 1)):
        if alike(before[place], now):
            return [*before[place + 1 :], now]
    return []


def ahead(phases: Sequence[BelievedPhase]) -> list[BelievedPhase]:
    """What is to be expected from the next iteration on, if phases come and go regularly; empty where they do not.

    A phase lasts as long as the last one that was like it, of which both ends were seen; before there is one, as long
    as the one before it. What lasts longer than that is not regular.
    """
    turn = turn_since(phases)
    if len(turn) != 2:
        return []
    other, now = turn
    whole = phases[1:-1]  # of the first one nobody knows when it began
    mine_before = [phase.iterations for phase in whole if alike(phase, now)]
    others_before = [phase.iterations for phase in whole if alike(phase, other)]
    if any(abs(one - others_before[-1]) > PUNCTUAL for one in others_before[-2:]):
        return []
    if any(abs(one - mine_before[-1]) > PUNCTUAL for one in mine_before[-2:]):
        return []
    mine, theirs = (mine_before or others_before)[-1], others_before[-1]
    left = mine - now.iterations
    if left < 0:
        return []
    turns = [other._replace(iterations=theirs), now._replace(iterations=mine)] * TURNS
    return [now._replace(iterations=left), *turns] if left else turns


def best_next(spans: Sequence[BelievedPhase], running: JobCandidate, costs: SwapCosts) -> JobCandidate:
    """The candidate to run next, of who knows these spans and pays for swaps between them; the running one if it is as
    good.
    """
    remaining_s = dict.fromkeys(spans[0].predicted_s, 0.0)
    for span in reversed(spans):
        least_s = _least_after_swap(remaining_s, costs)
        remaining_s = {
            candidate: span.iterations * span.predicted_s[candidate] + min(after_s, least_s[candidate.setting])
            for candidate, after_s in remaining_s.items()
        }
    with_swap_s = {
        candidate: after_s + costs.between(running.setting, candidate.setting)
        for candidate, after_s in remaining_s.items()
    }
    best = min(with_swap_s, key=with_swap_s.__getitem__)
    return best if with_swap_s[best] < remaining_s[running] else running


def _least_after_swap(after_s: Mapping[JobCandidate, float], costs: SwapCosts) -> dict[JobSetting, float]:
    """By setting of who swaps, the least that is then to come, the swap included."""
    of_setting: dict[JobSetting, float] = {}
    for candidate, seconds in after_s.items():
        of_setting[candidate.setting] = min(seconds, of_setting.get(candidate.setting, seconds))
    return {
        one: min(seconds + costs.between(one, other) for other, seconds in of_setting.items()) for one in of_setting
    }
