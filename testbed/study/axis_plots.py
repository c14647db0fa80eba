"""A picture for every axis of a study: iteration time over its values, a line per schedule; a panel per other place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, Formatter, FuncFormatter, MaxNLocator, NullLocator

from testbed.files import saving
from testbed.plotting import COLOURS, GRID, plain, save
from testbed.spec.study import StudyAxis
from testbed.units import show_time, show_times

MARKS = "osD^vP*X"
MOST_PANELS = 12
"""In one picture; of a larger grid the first ones."""
_COLUMNS = 3
_MOST_LETTERS, _MOST_TICKS = 24, 8
"""Below a panel: of words side by side, and values of an axis that have a tick each."""


class Drawn(NamedTuple):
    """A picture, and how much of the grid it has."""

    axis: str
    path: Path
    panels: int
    left_out: int


def draw_axes(axes: Mapping[str, StudyAxis], table: pd.DataFrame, directory: Path, heading: str) -> list[Drawn]:
    """A picture for every axis with several values: plot-AXIS.svg. Raises OSError."""
    drawn, table = [], table.assign(job=table["job"].fillna(""))
    for name, axis in axes.items():
        if table[name].nunique() < 2:
            continue
        fixed = ["topology", "workload", "job", *(other for other in axes if other != name)]
        panels = [
            (
                ", ".join(
                    f"{where}={value}" for where, value in zip(fixed, values, strict=True) if _varies(table, where)
                ),
                rows,
            )
            for values, rows in table.groupby(fixed, sort=False)
        ]
        path = directory / f"plot-{name}.svg"
        with saving(path) as partial:
            _draw(name, axis, panels[:MOST_PANELS], partial, heading)
        drawn.append(Drawn(name, path, min(len(panels), MOST_PANELS), max(0, len(panels) - MOST_PANELS)))
    return drawn


class _TimesInOneUnit(Formatter):
    """Every label of an axis in the same unit."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return show_time(x)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        return show_times(list(values))


def _varies(table: pd.DataFrame, column: str) -> bool:
    return bool(table[column].nunique() > 1)


def _draw(name: str, axis: StudyAxis, panels: Sequence[tuple[str, pd.DataFrame]], path: Path, heading: str) -> None:
    columns = min(len(panels), _COLUMNS)
    rows = ceil(len(panels) / columns)
    size = (9.0 if columns == 1 else 4.2 * columns, 5.2 if rows == 1 else 3.3 * rows)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1), facecolor="white")
    places = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    labels = list(dict.fromkeys(str(label) for _, table in panels for label in table["label"]))
    words = list(dict.fromkeys(str(shown) for _, table in panels for shown in table[name]))
    for place, (title, table) in zip(places, panels, strict=False):
        for number, label in enumerate(labels):
            rows_of = table[table["label"] == label]
            if len(rows_of):
                _curve(place, name, axis, rows_of, words, label, number)
        place.set_title(plain(title), fontsize=9, loc="left")
        place.spines[["top", "right"]].set_visible(False)
        place.grid(color=GRID)
        place.yaxis.set_major_formatter(_TimesInOneUnit())
        _label(place, name, axis, words)
    places[0].set_ylim(bottom=0.0)  # all share one axis, which now spans what every panel has
    for number, unused in enumerate(places[len(panels) :], len(panels)):
        unused.set_visible(False)
        places[number - columns].tick_params(labelbottom=True)  # what stood below has them for all above
    figure.supylabel("iteration", fontsize=10)
    shown = {
        label: handle for place in places for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(shown.values(), map(plain, shown), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(plain(heading), fontsize=11, x=0.01, ha="left")
    save(figure, path, dpi=120)


def _curve(
    place: Axes, name: str, axis: StudyAxis, rows: pd.DataFrame, words: Sequence[str], label: str, number: int
) -> None:
    """Predicted as a line, a range as a band; measured as marks, with bars from least to most; published open."""
    at = [float(words.index(str(shown))) for shown in rows[name]] if axis.kind == "word" else rows[f"{name}_value"]
    ordered = rows.assign(at=at).sort_values("at")
    by_place = ordered.groupby("at")
    colour = COLOURS[number % len(COLOURS)]
    predicted = by_place["predicted_s"].median()
    look: dict[str, Any] = {"color": colour, "label": f"{label}, predicted"}
    if axis.kind == "word" or len(predicted) == 1:  # between words there is nothing
        place.plot(predicted.index, predicted, "_", markersize=16, markeredgewidth=_width(number), **look)
    else:
        place.plot(predicted.index, predicted, linewidth=_width(number), **look)
    published = by_place["published_s"].median().dropna()
    if len(published):
        place.plot(
            published.index,
            published,
            linestyle="none",
            marker=MARKS[number % len(MARKS)],
            markersize=7,
            markerfacecolor="none",
            markeredgecolor=colour,
            label=f"{label}, published",
        )
    low, high = by_place["predicted_low_s"].min(), by_place["predicted_high_s"].max()
    if low.notna().any():
        ends = low.fillna(predicted), high.fillna(predicted)
        if axis.kind == "word":
            place.vlines(predicted.index, *ends, color=colour, alpha=0.2, linewidth=10)
        else:
            place.fill_between(predicted.index, *ends, color=colour, alpha=0.2, linewidth=0)
    if ordered["measured_s"].notna().any():
        middle = by_place["measured_s"].median()
        half = by_place["measured_iqr_s"].max() / 2
        below = (middle - by_place["measured_s"].min()).combine(half, max)
        above = (by_place["measured_s"].max() - middle).combine(half, max)
        place.errorbar(
            middle.index,
            middle,
            yerr=(below, above),
            fmt=MARKS[number % len(MARKS)],
            color=colour,
            markersize=4.5,
            elinewidth=1.0,
            capsize=2.5,
            label=f"{label}, measured",
        )


def _width(number: int) -> float:
    """Of a schedule's line, in points: later ones are narrower, so that one below them is still to be seen."""
    return max(1.2, 2.6 - 0.5 * number)


def _label(place: Axes, name: str, axis: StudyAxis, words: Sequence[str]) -> None:
    place.set_xlabel(name)
    if axis.kind == "word":
        many = len(words) > 4 or sum(map(len, words)) > _MOST_LETTERS
        place.set_xticks(range(len(words)), words, rotation=30 if many else 0, ha="right" if many else "center")
        place.margins(x=0.5 / len(words))
        return
    place.set_xscale(axis.scale)
    numbers = [value.number for value in axis.places() if value.number is not None]
    if axis.scale == "log" and len(numbers) <= _MOST_TICKS:
        place.xaxis.set_major_locator(FixedLocator(numbers))
        place.xaxis.set_minor_locator(NullLocator())
    elif axis.kind == "number" and all(number.is_integer() for number in numbers):
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _: axis.show(value)))
