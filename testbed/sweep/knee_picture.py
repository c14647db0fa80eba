"""The picture of `testbed knee`: iteration time over the rate of a link, predicted as lines and measured as points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from testbed.plotting import COLOURS, GRID, PALE_INK, plain, save
from testbed.thresholds import TIE
from testbed.units import show_rate, show_time


class Curve(NamedTuple):
    """One schedule."""

    label: str
    predicted: Sequence[tuple[float, float]]
    """(bit/s, s) in ascending order of rates."""
    measured: Sequence[tuple[float, float]]
    unlimited_s: float
    enough_bps: float | None
    full_bps: float
    ranges: Sequence[tuple[float, float, float]] = ()
    """(bit/s, least s, most s) at every predicted rate, where a prediction is a range at one of them."""

    def slower(self, factor: float) -> Curve:
        """The same with times that are so many times as long."""
        return self._replace(
            predicted=[(rate, factor * seconds) for rate, seconds in self.predicted],
            measured=[(rate, factor * seconds) for rate, seconds in self.measured],
            unlimited_s=factor * self.unlimited_s,
            ranges=[(rate, factor * least, factor * most) for rate, least, most in self.ranges],
        )


DASHES = ("solid", (0, (5, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)))
"""Where curves partly lie on each other, the one below shows in the gaps."""


def draw(
    curves: Sequence[Curve],
    path: Path,
    *,
    heading: str,
    share: float,
    lab_seconds: float | None = None,
    own_bps: Sequence[float] = (),
) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`). Schedules that are equal everywhere share a curve.

    `own_bps` are rates of the topology's own links, which are marked.
    `lab_seconds` of the curves are a second at full scale, which the left axis and the grid then show; the right axis
    the lab.
    """
    figure = Figure(figsize=(9.0, 5.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1), facecolor="white")
    axis = figure.subplots()
    axis.spines["top"].set_visible(False)
    axis.spines["right"].set_visible(lab_seconds is not None)
    coinciding = _coinciding(curves if lab_seconds is None else [member.slower(1 / lab_seconds) for member in curves])
    for number, group in enumerate(coinciding):
        curve, colour, label = group[0], COLOURS[number % len(COLOURS)], " = ".join(member.label for member in group)
        rates, seconds = zip(*curve.predicted, strict=True)
        from_there = "" if curve.enough_bps is None else f", within {share:.0%} from {show_rate(curve.enough_bps)}"
        dashes = DASHES[number % len(DASHES)]
        axis.plot(rates, seconds, color=colour, linestyle=dashes, linewidth=2, label=f"{label}, predicted{from_there}")
        if curve.ranges:
            places, least, most = zip(*curve.ranges, strict=True)
            words = f"{label}, by who comes first of messages that meet"
            axis.fill_between(places, least, most, color=colour, alpha=0.25, linewidth=0, label=words)
        axis.axhline(curve.unlimited_s, color=colour, linewidth=0.7, linestyle=":")
        if points := [point for member in group for point in member.measured]:
            axis.plot(*zip(*points, strict=True), "o", color=colour, label=f"{label}, measured")
        if curve.enough_bps is not None:
            at = curve.unlimited_s * (1 + share)
            axis.plot([curve.enough_bps], [at], "v", color=colour, markersize=9, markeredgecolor="white", zorder=3)
    _mark_rates(axis, curves, own_bps)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: show_rate(rate)))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: show_time(seconds)))
    axis.set_ylim(bottom=0.0)
    axis.set_xlabel("rate of the link (dotted: infinite rate)")
    axis.set_ylabel("iteration" if lab_seconds is None else "iteration at full scale")
    if lab_seconds is not None:
        in_lab = axis.secondary_yaxis("right", functions=(_scaled(lab_seconds), _scaled(1 / lab_seconds)))
        in_lab.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: show_time(seconds)))
        in_lab.set_ylabel("iteration in the lab")
        in_lab.tick_params(colors=PALE_INK)
        in_lab.yaxis.label.set_color(PALE_INK)
    axis.set_title(plain(heading), fontsize=11, loc="left")
    axis.grid(color=GRID)
    axis.legend(fontsize=8, frameon=False, loc="upper right", bbox_to_anchor=(1.0, 0.93))
    save(figure, path, dpi=120)


def _mark_rates(axis: Axes, curves: Sequence[Curve], own_bps: Sequence[float]) -> None:
    """Upright lines where messages fill the link, and at the rates of the topology's own links."""
    by_rate = _by_rate(curves)
    for number, (full, labels) in enumerate(by_rate.items()):
        axis.axvline(full, color="#9aa1ab", linewidth=0.9, linestyle="--")
        whose = f" ({', '.join(labels)})" if len(by_rate) > 1 else ""
        words, height = f" S/(B tau) = 1 at {show_rate(full)}{whose}", 0.985 - 0.045 * number
        axis.text(full, height, words, transform=axis.get_xaxis_transform(), fontsize=8, color=PALE_INK, va="top")
    rates = [rate for curve in curves for rate, _ in curve.predicted]
    for number, rate in enumerate(own_bps):
        axis.axvline(rate, color=PALE_INK, linewidth=0.9)
        side: Literal["left", "right"] = "right" if rates and rate > math.sqrt(min(rates) * max(rates)) else "left"
        words, height = f" the topology's own, {show_rate(rate)} ", 0.015 + 0.045 * number
        axis.text(rate, height, words, transform=axis.get_xaxis_transform(), fontsize=8, color=PALE_INK, ha=side)


def _coinciding(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Curves that are predicted equal at every rate, together."""
    groups: list[list[Curve]] = []
    for curve in curves:
        found = next((group for group in groups if _equal(group[0].predicted, curve.predicted)), None)
        if found is None:
            groups.append([curve])
        else:
            found.append(curve)
    return groups


def _equal(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> bool:
    return len(one) == len(other) and all(
        rate == at and abs(mine / theirs - 1) < TIE for (rate, mine), (at, theirs) in zip(one, other, strict=True)
    )


def _by_rate(curves: Sequence[Curve]) -> Mapping[float, list[str]]:
    """The labels of schedules that fill the link at the same rate."""
    found: dict[float, list[str]] = {}
    for curve in curves:
        rate = next((rate for rate in found if abs(rate / curve.full_bps - 1) < 1e-6), curve.full_bps)
        found.setdefault(rate, []).append(curve.label)
    return found


def _scaled(factor: float) -> Callable[[ArrayLike], NDArray[np.float64]]:
    """Times of one world as those of another."""
    return lambda seconds: np.multiply(np.asarray(seconds, np.float64), factor)
