"""How flow completion times are distributed under each policy, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from testbed.model.network import Floats
from testbed.plotting import COLOURS, GRID, INK, plain, save
from testbed.routing.completion_times import Completions

_LINES = ("-", "--", ":", "-.")
_MOST_FAINT = 100
"""Draws that are drawn by themselves, behind their policy's curve."""

_LOGARITHMIC = 30
"""Longest over shortest, from which on times are drawn on such an axis."""


def draw_distribution(found: Sequence[Completions], path: Path) -> None:
    """Write a picture (SVG or PNG, by the ending of `path`): per policy the share of messages that take at most so
    long, over all draws; behind it, faint, every draw.
    """
    figure = Figure(figsize=(8.0, 4.8), layout="constrained", facecolor="white")
    axes, longest_s, shortest_s = figure.subplots(), 0.0, np.inf
    for number, one in enumerate(found):
        colour, line = COLOURS[number % len(COLOURS)], _LINES[number // len(COLOURS) % len(_LINES)]
        if len(one.draws) > 1:
            for draw in one.draws[:_MOST_FAINT]:
                axes.step(*_curve(draw), where="post", color=colour, alpha=0.2, linewidth=0.6)
        draws = f", {len(one.draws)} seeds" if len(one.draws) > 1 else ""
        label = plain(f"{one.policy}{draws}")
        axes.step(*_curve(one.pooled), where="post", color=colour, linestyle=line, linewidth=1.8, label=label)
        longest_s, shortest_s = max(longest_s, float(one.pooled[-1])), min(shortest_s, float(one.pooled[0]))
    if longest_s > _LOGARITHMIC * shortest_s > 0:
        axes.set_xscale("log")
    axes.set_xlabel("flow completion time of a message, ms", fontsize=9, color=INK)
    axes.set_ylabel("share of messages", fontsize=9, color=INK)
    axes.set_ylim(0.0, 1.02)
    axes.grid(visible=True, color=GRID)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, loc="lower right", frameon=False)
    save(figure, path, dpi=110)


def _curve(times_s: Floats) -> tuple[Floats, Floats]:
    """Milliseconds, and the share that takes at most so long."""
    return np.concatenate((times_s[:1], times_s)) * 1e3, np.arange(len(times_s) + 1) / len(times_s)
