"""Makespans in closed form, each with the domain it holds on: oracles for the generators and the event model.

Formulas from the papers that introduced the schedules, or derived from their orders; domains found by enumeration.
Uniform stages; f, i, w are the times of forward, input and weight gradient of a rank, P ranks, M microbatches.
T is the time from the common start to the last end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


def gpipe(p: int, m: int, f: float, i: float, w: float, c: float = 0.0) -> float:
    """(M+P-1)(f+i+w) + 2(P-1)c, c the one-way delay of every hop. Any M."""
    return (m + p - 1) * (f + i + w) + 2 * (p - 1) * c


def one_f_one_b(p: int, m: int, f: float, i: float, w: float) -> float:
    """(M+P-1)(f+i+w), without delay. M >= P."""
    return (m + p - 1) * (f + i + w)


def one_f_one_b_delay(p: int, m: int, c: float) -> float:
    """What a one-way delay c on every hop adds to 1F1B. M >= P."""
    q, s = divmod(m - p, p)
    return 2 * c * ((2 * p - 3) + q * (p - 1) + s - (s >= 2))


def one_f_one_b_slow_boundary(p: int, m: int, d: int, c: float) -> float:
    """What a one-way delay c between stages d-1 and d alone adds to 1F1B: a round trip per two microbatches.

    M >= P, 1 <= d <= P-1.
    """
    return 2 * c * math.ceil((m - (p - 1 - d)) / 2)


def zb_h1(p: int, m: int, f: float, i: float, w: float) -> float:
    """M(f+i+w) + (P-1)(f + max(0, i-w)), without delay. M >= P, w <= f."""
    return m * (f + i + w) + (p - 1) * (f + max(0.0, i - w))


def zb_h2(p: int, m: int, f: float, i: float, w: float) -> float:
    """M(f+i+w) + (P-1) max(f, f+i-2w), without delay. M >= 2P-1, w <= min(f, i)."""
    return m * (f + i + w) + (p - 1) * max(f, f + i - 2 * w)


def zb_h2_span(p: int, m: int, f: float, i: float, w: float) -> float:
    """From a rank's first start to its last end, the longest: M(f+i+w) + (P-1)(f+i-2w). Domain as `zb_h2`."""
    return m * (f + i + w) + (p - 1) * (f + i - 2 * w)


def interleaved_1f1b(p: int, m: int, f: float, i: float, w: float, v: int = 2) -> float:
    """(M + (P-1)/v)(f+i+w), without delay, v chunks per rank. P divides M."""
    return m * (f + i + w) + (p - 1) * (f + i + w) / v


def looped_bfs(p: int, m: int, f: float, i: float, w: float, v: int = 2) -> float:
    """(M + (P-1)/v)(f+i+w), without delay, v chunks per rank. M >= P."""
    return interleaved_1f1b(p, m, f, i, w, v)


def zb1p(p: int, m: int, f: float, i: float, w: float) -> float:
    """M(f+i+w) + (P-1)(f+i-w)/2, without delay, two chunks per rank. P divides M, w <= min(f, i)."""
    return m * (f + i + w) + (p - 1) * (f + i - w) / 2


def zb_v(p: int, m: int, f: float) -> float:
    """3Mf + (P-1)f/2, without delay, f = i = w; the span is 3Mf on every rank: no bubble. M >= 2P-1."""
    return 3 * m * f + (p - 1) * f / 2


def dualpipe_v(p: int, m: int, f: float, i: float, w: float) -> float:
    """M(f+i+w) + (P-1)(f+i-w)/2, without delay, F then B in sequence. M >= 2P, w <= i <= f <= i+w."""
    return m * (f + i + w) + (p - 1) * (f + i - w) / 2


def geopipe(p: int, m: int, f: float, i: float, w: float, total_c: float) -> float:
    """(M+P-1)(f+i+w) + 2 total_c, total_c the sum over the cuts of delay and time on the wire.

    With dN = ceil(2c / (f+i+w)) at every cut: each is paid for once, in fill and drain. M >= P, time on the wire of
    a message <= f+i+w; enumerated for one cut and two, beside each other and apart, c from 0.2 to 4.5 (f+i+w).
    """
    return (m + p - 1) * (f + i + w) + 2 * total_c


class Cut(NamedTuple):
    """A boundary between two neighbouring ranks that crosses a wide-area link."""

    rank: int
    """Of the stage before it."""
    round_trip_s: float
    """A message there and one back, delay and time on the wire of both."""
    wire_s: float
    """Time on the wire of one message, of the slower direction."""
    ahead: int = 0
    """dN: warm-up forwards beyond those of 1F1B on every rank before the cut."""


def overlap_period(tau: float, cuts: Sequence[Cut]) -> float:
    """Seconds per microbatch in the steady state of 1F1B or GeoPipe, tau = f+i+w on every rank.

        max{ tau, max wire, max over groups of neighbouring cuts of (n tau + round trips) / (n + sum of dN) }

    n = 2 + the ranks from a group's first cut to its last: 1F1B has that many microbatches between the stages around
    them, dN adds to them, and each passes all n stages' F and B and every round trip. Our derivation; the paper
    (GeoPipe, arXiv 2510.12064) describes the overlap without a formula. Uniform stages, full duplex, no jitter; M large
    enough for a steady state. `cuts` in the order of their ranks.
    """
    period = max([tau, *(cut.wire_s for cut in cuts)])
    for begin in range(len(cuts)):
        for end in range(begin + 1, len(cuts) + 1):
            group = cuts[begin:end]
            held = 2 + group[-1].rank - group[0].rank
            credit = held + sum(cut.ahead for cut in group)
            period = max(period, (held * tau + sum(cut.round_trip_s for cut in group)) / credit)
    return period
