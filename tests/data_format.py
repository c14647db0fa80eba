"""What docs/data-format.md says that files of a run hold, and docs/json-output.md of what commands print."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/data-format.md"


def documented(heading: str, page: Path = PAGE) -> set[str]:
    """The names in the first column of the table under the heading that begins so. Raises LookupError without one."""
    sections = re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    section = next((section for section in sections if section.startswith(heading)), None)
    if section is None:
        raise LookupError(heading)
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])}
