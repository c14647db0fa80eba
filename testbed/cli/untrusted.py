"""Why what a sweep measured cannot be trusted, in lines below its tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.text import Text


def why_untrusted(measured: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Text]:
    """A line for every entry of comparison.json that is not trusted, by its name here; its results have all reasons."""
    for name, row in measured:
        if row["trusted"]:
            continue
        first, *others = row.get("reasons") or ["not every check could be taken"]
        more = f" (and {len(others)} more)" if others else ""
        yield Text(f"{name} untrusted: {first}{more}", style="red")
