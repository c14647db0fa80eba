"""The documentation's commands and files, as tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs/tutorial.md"
TRAINED = ("testbed run ", "testbed report ")
"""Commands of the tutorial that need a guest, or what it left: tests/vm has them."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """The commands in a page's shell blocks, without comments, lines that go on put together."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.partition("  #")[0].strip()
            if words.startswith("testbed "):
                yield words
