"""A comparison of axes as a picture: over delay and rate of the link, which axis should cross it, and the gain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from testbed.plotting import INK, save
from testbed.sweep.axes import Compared
from testbed.units import show_rate, show_time

_CELL_INCHES = 1.35
_PALER = 1.6
"""So that words can be read on the strongest colour."""

_LEAST_SPAN = 0.05
"""Of log2 of the gain, so that a map without differences has a colour."""

_Grid = Mapping[tuple[int, int], Compared]
"""(row, column) of the map -> what is there."""


def draw(points: Sequence[Compared], path: Path, *, heading: str, measured: Sequence[Compared] = ()) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`); points that were `measured` have a dot.

    In every cell: the axis that should cross, how many times longer the other one takes, and its fastest schedule. A
    line runs between the cells of one axis and those of the other.
    """
    delays = sorted({compared.point.delay_s for compared in points})
    rates = sorted({compared.point.rate_bps for compared in points})
    grid = {
        (delays.index(compared.point.delay_s), rates.index(compared.point.rate_bps)): compared for compared in points
    }
    dots = {compared.point for compared in measured}
    gains = [
        [math.log2(grid[row, column].gain) if (row, column) in grid else math.nan for column in range(len(rates))]
        for row in range(len(delays))
    ]
    span = max(_LEAST_SPAN, *(abs(gain) for row in gains for gain in row if not math.isnan(gain)))
    with rc_context({"font.size": 9}):
        figure = Figure((2.0 + _CELL_INCHES * len(rates), 1.9 + 0.62 * len(delays)), layout="constrained")
        axes = figure.subplots()
        axes.imshow(gains, cmap="PuOr_r", norm=TwoSlopeNorm(0.0, -_PALER * span, _PALER * span), aspect="auto")
        for (row, column), compared in grid.items():
            _words(axes, row, column, compared)
            if compared.point in dots:
                axes.plot([column + 0.42], [row - 0.36], "o", color=INK, markersize=4)
        _border(axes, grid)
        axes.set_xticks(range(len(rates)), [show_rate(rate) for rate in rates])
        axes.set_yticks(range(len(delays)), [show_time(delay) for delay in delays])
        axes.set_xlabel("rate of the link, each direction" + ("; dot: measured too" if dots else ""))
        axes.set_ylabel("delay, one way")
        axes.set_title(heading, loc="left", fontsize=9)
        save(figure, path, dpi=150)


def _words(axes: Axes, row: int, column: int, compared: Compared) -> None:
    """What is said in a cell."""
    best = compared.data.best if compared.winner == "data" else compared.pipeline.best
    times = max(compared.gain, 1 / compared.gain)
    said = "either" if compared.winner == "either" else f"{compared.winner} {times:.2f}x"
    axes.text(column, row - 0.13, said, ha="center", va="center", fontsize=9, fontweight="bold", color=INK)
    axes.text(column, row + 0.22, best, ha="center", va="center", fontsize=7, color=INK)


def _border(axes: Axes, grid: _Grid) -> None:
    """Between cells with different winners."""
    for (row, column), compared in grid.items():
        right, below = grid.get((row, column + 1)), grid.get((row + 1, column))
        if right is not None and right.winner != compared.winner:
            axes.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color=INK, linewidth=1.6)
        if below is not None and below.winner != compared.winner:
            axes.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, color=INK, linewidth=1.6)
