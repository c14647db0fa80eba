"""Times in ticks: the same problem counted in whole ticks, the same ones whatever unit its times came in.

Sums and comparisons of floats depend on the unit: three times 20 ms is not 60 ms to the last bit, three times 1 s is
3 s. A generator that compares times decides by such bits. In ticks every time is a whole number, small enough that
floats add it exactly, so that equal times are equal; and multiplying all times by a factor changes no tick.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from testbed.pipeline.link import LinkChange, LinkCost, StreamSpan
from testbed.pipeline.problem import Problem

MOST_TICKS = 1 << 32
"""Ticks of a problem's longest time, at most: 2^20 such times after each other are still added exactly by floats."""

LARGEST_DENOMINATOR = 10_000
"""Times that are to the longest one as whole numbers up to this are whole ticks, so that their sums tie exactly."""

_NOISE = 1e-13
"""Ratios this close are one ratio: ten times what a few roundings of a float can do."""


def in_ticks(problem: Problem, tick: float | None = None) -> Problem:
    """The problem with every time a whole number of ticks (a float), and links that take so many ticks per byte.

    Two problems whose times differ by a common factor become one and the same. What is in ticks stays as it is.
    A problem in which nothing takes any time is returned as it is. `tick`, in seconds: of several problems together;
    default: `tick_s` of this one.
    """
    tick = tick_s(problem) if tick is None else tick
    if not tick:
        return problem

    def whole(seconds: float) -> float:
        return float(round(seconds / tick))

    def every(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(map(whole, seconds))

    size = _reference_bytes(problem)
    return replace(
        problem,
        forward_s=every(problem.forward_s),
        input_s=every(problem.input_s),
        weight_s=every(problem.weight_s),
        backward_s=every(problem.backward_s),
        links=_links_in_ticks(problem.links, tick, size),
        changes=tuple(
            LinkChange(
                whole(at_s), link, whole(delay_s), per_byte if math.isinf(per_byte) else whole(per_byte * size) / size
            )
            for at_s, link, delay_s, per_byte in problem.changes
        ),
        streams=tuple(
            stream._replace(spans=tuple(StreamSpan(*(time / tick for time in span)) for span in stream.spans))
            for stream in problem.streams
        ),
        handover_s=whole(problem.handover_s),
        send_s=whole(problem.send_s),
        send_s_per_byte=whole(problem.send_s_per_byte * size) / size,
        wake_s=whole(problem.wake_s),
        begins_s=every(problem.begins_s),
        unnoticed_wait_s=whole(problem.unnoticed_wait_s),
        tie_s=whole(problem.tie_s),
    )


@lru_cache(maxsize=64)
def _links_in_ticks(links: tuple[LinkCost, ...], tick: float, size: float) -> tuple[LinkCost, ...]:
    """What links cost, in ticks; a message of this many bytes takes whole ones. Kept for the next choice of routes."""

    def whole(seconds: float) -> float:
        return float(round(seconds / tick))

    return tuple(LinkCost(whole(link.delay_s), whole(link.seconds_per_byte * size) / size) for link in links)


def tick_s(*problems: Problem) -> float:
    """Seconds per tick, 1 where a problem is in ticks already; 0 where nothing takes any time."""
    times = [time for problem in problems for time in _times(problem)]
    longest_s = max(times, default=0.0)
    return longest_s / ticks_of_longest(time / longest_s for time in times) if longest_s > 0 else 0.0


def ticks_of_longest(ratios: Iterable[float]) -> int:
    """How many ticks the longest time has, given every time's ratio to it: a multiple of their denominators.

    Of ratios that are not ratios of small whole numbers, or of too many different ones, the nearest tick is taken.
    Between MOST_TICKS / 2 and MOST_TICKS, by powers of two, so that halves and quarters of times are whole as well.
    """
    common = 1
    for denominator in sorted({_denominator(ratio) for ratio in ratios}):
        together = math.lcm(common, denominator)
        if together * 8 <= MOST_TICKS:
            common = together
    return int(common << ((MOST_TICKS // common).bit_length() - 1))


@lru_cache(maxsize=4096)
def _denominator(ratio: float) -> int:
    """Of the fraction of small numbers that a ratio is; 1 where it is none."""
    near = Fraction(ratio).limit_denominator(LARGEST_DENOMINATOR)
    return near.denominator if abs(near - Fraction(ratio)) <= _NOISE else 1


def _times(problem: Problem) -> list[float]:
    """All times that the first pipeline meets; others may be longer."""
    routes = (problem.route(*pair) for a, b in pairwise(problem.stage_to_rank) for pair in ((a, b), (b, a)))
    links = [problem.links[index] for index in {index for route in routes for index in route}]
    size = _reference_bytes(problem)
    times = [time for link in links for time in (link.delay_s, link.seconds_per_byte * size)]
    return [*times, *problem.forward_s, *problem.input_s, *problem.weight_s, *problem.backward_s]


def _reference_bytes(problem: Problem) -> float:
    """Wire bytes of a message that takes whole ticks on every link: the largest between stages, or of a collective."""
    collectives = (size for what in (*problem.all_gather, *problem.reductions) for size in what.wire_bytes.values())
    return max(problem.message_bytes, default=0.0) or max(collectives, default=0.0) or 1.0
