"""The times of baselines over their checks as a picture: a panel per baseline, changes in per cent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.baseline.history import CheckRecord, Series
from testbed.baseline.regression import CheckVerdict
from testbed.errors import BadInput
from testbed.grouping import grouped
from testbed.plotting import COLOURS, GRID, plain, save

_COLUMNS = 3
_PANEL_INCHES = (4.6, 2.4)
_LEAST_PERCENT = 0.05
"""A panel shows at least this much to either side, so that a nanosecond is no mountain."""

_MOST_COMMITS = 12
"""Labels below a panel that do not run into each other."""


def draw(records: Sequence[CheckRecord], series: Sequence[Series], path: Path) -> None:
    """Draw how far every schedule is from its first check; `path` ends in .svg or .png.

    Raises BadInput where no check has a time.
    """
    timed = [one for one in series if any(seconds is not None for seconds in one.times_s)]
    if not timed:
        raise BadInput.of("--picture", "checks", len(records), "at least one in which a schedule has a time")
    panels = grouped(((one.mode, one.points[0].record.baseline), one) for one in timed)
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    places = {id(record): number for number, record in enumerate(records)}
    for axis, ((mode, baseline), members) in zip(axes, panels.items(), strict=False):
        axis.set_title(plain(f"{baseline} ({mode.in_words})"), loc="left", fontsize=9)
        for number, one in enumerate(members):
            _line(axis, one, places, COLOURS[number % len(COLOURS)])
        _scale(axis, records)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    save(figure, path)


def _line(axis: Axes, one: Series, places: dict[int, int], colour: str) -> None:
    known = [(point, seconds) for point, seconds in zip(one.points, one.times_s, strict=True) if seconds is not None]
    first_s = known[0][1]
    numbers = [places[id(point.check)] for point, _ in known]
    changes = [(seconds / first_s - 1) * 100 for _, seconds in known]
    record = known[0][0].record
    label = plain(record.schedule + (f" ({record.job})" if record.job else ""))
    axis.plot(numbers, changes, marker=".", markersize=5, linewidth=1.4, color=colour, label=label)
    outside = [number for number, (point, _) in enumerate(known) if point.record.verdict is not CheckVerdict.same]
    axis.plot(
        [numbers[index] for index in outside],
        [changes[index] for index in outside],
        linestyle="none",
        marker="o",
        markerfacecolor="none",
        color=colour,
    )


def _scale(axis: Axes, records: Sequence[CheckRecord]) -> None:
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, -_LEAST_PERCENT), max(high, _LEAST_PERCENT))
    axis.set_xlim(-0.5, len(records) - 0.5)
    step = math.ceil(len(records) / _MOST_COMMITS)
    shown = range(0, len(records), step)
    names = [records[number].commit_name for number in shown]
    axis.set_xticks(list(shown), names, fontsize=6, rotation=45, ha="right")
    axis.tick_params(axis="y", labelsize=7)
    axis.set_ylabel("% from the first", fontsize=7)
    axis.grid(axis="y", color=GRID)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=6, frameon=False)
