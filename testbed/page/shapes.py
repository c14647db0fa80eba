"""What the page's pictures are made of, as SVG: colours are classes of the style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.page.markup import Markup, tag


def picture(title: str, inside: Sequence[object], view: Sequence[float], class_: str, **attributes: Any) -> Markup:
    """An SVG that is read out as `title`; `view` is left, top, width and height of what it shows."""
    return tag(
        "svg",
        tag("title", title),
        *inside,
        viewBox=" ".join(map(_number, view)),
        role="img",
        aria_label=title,
        class_=class_,
        **attributes,
    )


def rectangle(left: float, top: float, width: float, height: float, class_: str, **attributes: Any) -> Markup:
    """Parallel to the axes."""
    x, y, wide, high = map(_number, (left, top, width, height))
    return tag("rect", x=x, y=y, width=wide, height=high, class_=class_, **attributes)


def line(start: tuple[float, float], end: tuple[float, float], class_: str) -> Markup:
    """From point to point."""
    (x1, y1), (x2, y2) = start, end
    return tag("line", x1=_number(x1), x2=_number(x2), y1=_number(y1), y2=_number(y2), class_=class_)


def words(text: object, x: float, y: float, class_: str) -> Markup:
    """Text that begins, ends or is centred at a place, as the style sheet says of its class."""
    return tag("text", text, x=_number(x), y=_number(y), class_=class_)


def _number(value: float) -> str:
    """To a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
