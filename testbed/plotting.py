"""What all pictures that matplotlib draws have in common: their colours, and that the same data give the same file."""

from __future__ import annotations

from pathlib import Path

from matplotlib import artist, rc_context

from testbed.attributes import replaced

with replaced(artist, "kwdoc", lambda _class: ""):  # what readers of help are told of setters: a third of all
    from matplotlib.figure import Figure as Figure
    from matplotlib.patches import Patch as Patch

COLOURS = ("#4c78c8", "#c0392b", "#3a9a63", "#e0a83c", "#7b5aa6", "#45b5a0", "#8a5a44", "#5b6470")
"""Of schedules, in all pictures with curves."""

INK = "#20242b"
"""Of words, and of lines between things."""

GRID = "#eef0f3"

PALE_INK = "#5b6470"
"""Of what is said beside the curves."""


def plain(text: str) -> str:
    """Words of a user's, without what matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: Path, dpi: float | None = None) -> None:
    """Write a figure (SVG or PNG, by the ending of `path`): text stays text, and nothing in the file is of today."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "testbed", "font.family": "sans-serif"}):
        figure.savefig(path, dpi=dpi or "figure", metadata={"Date": None} if path.suffix == ".svg" else None)
