"""Stacked bars as SVG, with a legend. Colours are classes of the style sheet: they follow light and dark."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from testbed.page.markup import Markup, tag
from testbed.page.shapes import line, picture, rectangle, words

_WIDTH, _ROW, _BAR, _LEAST = 640.0, 30.0, 16.0, 0.4


class Bar(NamedTuple):
    """One row of a chart."""

    name: str
    parts: Sequence[float]
    """One for each entry of the legend; what is not above 0 is not drawn."""
    mark: float | None = None
    """Where a line crosses the bar."""
    said: str = ""
    """What the bar says, in words."""


def legend(names: Sequence[str], mark: str = "", shown: Collection[int] | None = None) -> Markup:
    """What the colours stand for (of the entries `shown`, by number; default: all), and the line that crosses bars."""
    items = [
        tag("li", tag("span", class_=f"swatch part-{index}"), name)
        for index, name in enumerate(names)
        if shown is None or index in shown
    ]
    if mark:
        items.append(tag("li", tag("span", class_="swatch mark"), mark))
    return tag("ul", *items, class_="legend")


def chart(title: str, bars: Sequence[Bar], names: Sequence[str]) -> Markup:
    """Bars under each other, the longest as wide as the chart."""
    longest = max((max(_length(bar), bar.mark or 0.0) for bar in bars), default=0.0) or 1.0
    inside = [row for index, bar in enumerate(bars) for row in _row(bar, index * _ROW, _WIDTH / longest, names)]
    return picture(title, inside, (0, 0, _WIDTH, max(1, len(bars)) * _ROW), "bars")


def _length(bar: Bar) -> float:
    return sum(part for part in bar.parts if part > 0)


def _row(bar: Bar, top: float, scale: float, names: Sequence[str]) -> list[Markup]:
    drawn = [words(bar.name, 0, top + 10, "bar-name")]
    left = 0.0
    for index, part in enumerate(bar.parts):
        width = part * scale
        if width >= _LEAST:
            box = rectangle(left, top + 13, max(width - 0.6, 0.4), _BAR - 3, f"part-{index}")
            drawn.append(tag("g", tag("title", f"{bar.name}: {names[index]}"), box))
        left += max(width, 0.0)
    if bar.mark is not None:
        x = min(bar.mark * scale, _WIDTH - 1)
        drawn.append(line((x, top + 11), (x, top + 28), "mark"))
    if bar.said:
        drawn.append(words(bar.said, _WIDTH, top + 10, "bar-said"))
    return drawn
