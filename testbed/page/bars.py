"""Stacked bars as SVG, with a legend. Colours are classes of the style sheet: they follow light and dark."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from testbed.page.markup import Markup, tag

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
    return tag(
        "svg",
        tag("title", title),
        *inside,
        viewBox=f"0 0 {_WIDTH:g} {max(1, len(bars)) * _ROW:g}",
        role="img",
        aria_label=title,
        class_="bars",
    )


def _length(bar: Bar) -> float:
    return sum(part for part in bar.parts if part > 0)


def _row(bar: Bar, top: float, scale: float, names: Sequence[str]) -> list[Markup]:
    drawn = [tag("text", bar.name, x="0", y=f"{top + 10:g}", class_="bar-name")]
    left = 0.0
    for index, part in enumerate(bar.parts):
        width = part * scale
        if width >= _LEAST:
            box = tag("title", f"{bar.name}: {names[index]}")
            drawn.append(
                tag(
                    "g",
                    box,
                    tag(
                        "rect",
                        x=f"{left:.2f}",
                        y=f"{top + 13:g}",
                        width=f"{max(width - 0.6, 0.4):.2f}",
                        height=f"{_BAR - 3:g}",
                        class_=f"part-{index}",
                    ),
                )
            )
        left += max(width, 0.0)
    if bar.mark is not None:
        x = min(bar.mark * scale, _WIDTH - 1)
        drawn.append(tag("line", x1=f"{x:.2f}", x2=f"{x:.2f}", y1=f"{top + 11:g}", y2=f"{top + 28:g}", class_="mark"))
    if bar.said:
        drawn.append(tag("text", bar.said, x=f"{_WIDTH:g}", y=f"{top + 10:g}", class_="bar-said"))
    return drawn
