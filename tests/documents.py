"""The documentation's commands and files, as tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs/tutorial.md"
PLANNING = ROOT / "docs/planning.md"


def trains(command: str) -> bool:
    """Whether a page's command needs a guest, or what it left: tests/vm has them."""
    return command.startswith(("testbed run ", "testbed report ")) or " --confirm " in command


def write_files(page: Path, directory: Path) -> int:
    """The YAML files that a page shows under their names, as its commands expect them; how many these are."""
    files = [block for block in blocks(page, "yaml") if block.startswith("# my-")]
    for block in files:
        (directory / block.partition("\n")[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    return len(files)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """The commands in a page's shell blocks, without comments, lines that go on put together."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.partition("  #")[0].strip()
            if words.startswith("testbed "):
                yield words
