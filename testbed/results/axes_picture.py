"""A comparison of axes as a picture: over delay and rate of the link, which axis should cross it, and the gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from testbed.plan.axes import Compared
from testbed.units import show_rate, show_time

_CELL_INCHES = 0.95
_PALER = 1.5
"""So that words can be read on the strongest colour."""

_LEAST_SPAN = 0.05
"""Of log2 of the gain, so that a map without differences has a colour."""


def draw(points: Sequence[Compared], path: Path, *, heading: str, measured: Sequence[Compared] = ()) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`); points that were `measured` have a frame.

    In every cell: time with data parallelism over the link, over that with the pipeline over it.
    """
    delays = sorted({one.point.delay_s for one in points})
    rates = sorted({one.point.rate_bps for one in points})
    by_point = {one.point: one for one in points}
    framed = {one.point for one in measured}
    gains = [[math.nan] * len(rates) for _ in delays]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "testbed", "font.size": 9}):
        figure = Figure((2.4 + _CELL_INCHES * len(rates), 1.6 + 0.55 * len(delays)), layout="constrained")
        axes = figure.subplots()
        for point, one in by_point.items():
            row, column = delays.index(point.delay_s), rates.index(point.rate_bps)
            gains[row][column] = math.log2(one.gain)
            words = f"{one.gain:.2f}\n{one.pipeline.best if one.winner == 'pipeline' else one.data.best}"
            axes.text(column, row, words, ha="center", va="center", fontsize=6.5)
            if point in framed:
                axes.plot(
                    [column - 0.46, column + 0.46, column + 0.46, column - 0.46, column - 0.46],
                    [row - 0.44, row - 0.44, row + 0.44, row + 0.44, row - 0.44],
                    color="#20242b",
                    linewidth=1.4,
                )
        span = max(_LEAST_SPAN, *(abs(gain) for row in gains for gain in row if not math.isnan(gain)))
        axes.imshow(
            gains, cmap="RdYlBu", norm=TwoSlopeNorm(0.0, -_PALER * span, _PALER * span), aspect="auto", alpha=0.75
        )
        axes.set_xticks(range(len(rates)), [show_rate(rate) for rate in rates])
        axes.set_yticks(range(len(delays)), [show_time(delay) for delay in delays])
        axes.set_xlabel("rate of the link, each direction")
        axes.set_ylabel("delay, one way")
        axes.set_title(heading, loc="left", fontsize=9)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)
