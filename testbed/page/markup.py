"""HTML and SVG as text in which whatever came from a file is escaped: only `tag` makes markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

_EMPTY = frozenset({"meta", "link", "img"})
"""Elements of HTML that hold nothing, and have no end."""


_MOST_OPEN = 6
"""Figures that are shown at once."""

_MOST_ROWS = 24
"""A table of more scrolls in its frame."""


class Markup(str):
    """Text that is markup already: `tag` takes it as it is, and escapes all other."""

    __slots__ = ()


def tag(name: str, /, *inside: object, **attributes: Any) -> Markup:
    """An element. In names of attributes `_` stands for `-`, but at the end for nothing (`class_`).

    An attribute that is None or False is left out, one that is True has no value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value not in (None, False))
    end = "" if name in _EMPTY else f"{joined(inside)}</{name}>"
    return Markup(f"<{name}{written}>{end}")


def joined(parts: Iterable[object]) -> Markup:
    """One after the other; what is None is left out, what is no markup is escaped."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def escaped(part: object) -> str:
    """As it can stand in an element or, quoted, in an attribute."""
    return part if isinstance(part, Markup) else html.escape(str(part), quote=True)


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(str(value))}"'


def table(
    caption: str, heads: Sequence[object], rows: Iterable[Sequence[object]], *, text: int = 1, class_: str = ""
) -> Markup:
    """A table in a frame that scrolls sideways where it is wider than the page.

    The first cell of a row names it; the first `text` columns are set as text, the others as numbers.
    """
    head = [tag("th", cell, scope="col", class_=None if index < text else "number") for index, cell in enumerate(heads)]
    body = []
    for first, *others in rows:
        cells = [tag("th", first, scope="row")]
        cells += [
            tag("td", cell, class_=None if index < text else "number") for index, cell in enumerate(others, start=1)
        ]
        body.append(tag("tr", *cells))
    made = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *body), class_=class_ or None
    )
    frame = "scrolls tall" if len(body) > _MOST_ROWS else "scrolls"
    return tag("div", made, class_=frame, tabindex="0", role="region", aria_label=caption)


def pictures(figures: Sequence[Markup]) -> Markup:
    """Figures beside each other; of many, most are folded."""
    shown, folded = figures[:_MOST_OPEN], figures[_MOST_OPEN:]
    more = None
    if folded:
        more = tag("details", tag("summary", f"{len(folded)} more"), tag("div", *folded, class_="pictures"))
    return joined([tag("div", *shown, class_="pictures"), more])


def note(text: object) -> Markup:
    """A sentence in the place of what is not there, with the reason."""
    return tag("p", text, class_="note")
