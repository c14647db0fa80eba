"""The network drawn under each policy: every direction an arrow, as wide and as dark as it is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from testbed.plan.network_state import NetworkState
from testbed.plotting import INK, save
from testbed.routing.curves import ASPECT, Arrow, arrows, places_at, short_name
from testbed.routing.policy_comparison import PolicyOutcome
from testbed.units import show_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY, _FAINT = "#8a919c", "#d9dde3"
_PANEL_INCHES = 5.2
_WIDEST_POINTS = 7.0
_ACROSS = 3
"""Panels beside each other."""


def draw(network: NetworkState, outcomes: Sequence[PolicyOutcome], path: Path) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`), a panel for each outcome, on one scale.

    Load is the time that an iteration's bytes occupy the direction, at its rate.
    """
    busy_ms = [
        [8e3 * size / link.rate_bps for size, link in zip(outcome.wire_bytes.tolist(), network.links, strict=False)]
        for outcome in outcomes
    ]
    scale = Normalize(0.0, max((max(mine, default=0.0) for mine in busy_ms), default=0.0) or 1.0)
    columns = min(_ACROSS, math.ceil(math.sqrt(len(outcomes))))
    lines = math.ceil(len(outcomes) / columns)
    figure = Figure(
        figsize=(_PANEL_INCHES * columns + 1.2, _PANEL_INCHES * 0.86 * lines + 0.4),
        layout="constrained",
        facecolor="white",
    )
    panels = figure.subplots(lines, columns, squeeze=False).reshape(-1)
    for panel in panels[len(outcomes) :]:
        panel.set_visible(False)
    colours = _colours()
    for panel, outcome, mine in zip(panels, outcomes, busy_ms, strict=False):
        _panel(panel, network, outcome, mine, scale, colours)
    bar = figure.colorbar(ScalarMappable(scale, colours), ax=panels.tolist(), shrink=0.7, aspect=30, pad=0.01)
    bar.set_label("ms of an iteration that a direction is occupied", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8)
    save(figure, path, dpi=110)


def _colours() -> LinearSegmentedColormap:
    """Without the lightest colours, which nobody sees on white."""
    whole = colormaps["viridis_r"]
    return LinearSegmentedColormap.from_list("load", [whole(0.12 + 0.88 * step / 20) for step in range(21)])


def _panel(
    panel: Axes,
    network: NetworkState,
    outcome: PolicyOutcome,
    busy_ms: Sequence[float],
    scale: Normalize,
    colours: LinearSegmentedColormap,
) -> None:
    at = places_at(network)
    widest = max(map(len, at))
    size = 8.5 if widest * len(at) < 90 else 6.5
    half_widths = {name: 0.0011 * size * (len(short_name(name, at)) + 1.5) for name in at}
    placed = arrows(network.links, at, half_widths)
    used_links = {direction.link for direction, ms in zip(network.links, busy_ms, strict=False) if ms > 0}
    for index, (direction, bent) in enumerate(zip(network.links, placed, strict=True)):
        share = float(scale(busy_ms[index]))
        used = busy_ms[index] > 0
        arrow = FancyArrowPatch(
            at[direction.source],
            at[direction.target],
            connectionstyle=f"arc3,rad={bent.bend}",
            arrowstyle="-|>" if used else "-",
            mutation_scale=7 + 7 * share,
            shrinkA=11,
            shrinkB=11,
            linewidth=0.7 + (_WIDEST_POINTS - 0.7) * share if used else 0.7,
            color=colours(share) if used else _FAINT,
            zorder=2 + share if used else 1,
        )
        panel.add_patch(arrow)
        if bent.label and (used or (direction.link not in used_links and index % 2 == 0)):  # an idle link's name once
            _name(panel, bent, used=used)
    for name, (x, y) in at.items():
        frame = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": INK, "linewidth": 0.8}
        panel.text(x, y, short_name(name, at), ha="center", va="center", fontsize=size, color=INK, bbox=frame, zorder=5)
    metric = outcome.metric
    worst = metric.vector()[0] if len(metric.job_rates_bps) else math.inf
    rate = show_rate(worst) if math.isfinite(worst) else "-"
    most = metric.most_flows
    said = f"{most} flow{'s' * (most != 1)} on a link, worst job {rate}"
    panel.set_title(f"{outcome.label}\n{said}", loc="left", fontsize=9.5, color=INK)
    panel.set_xlim(-0.05, 1.05)
    panel.set_ylim(-0.12, 0.88)
    panel.set_aspect(ASPECT)
    panel.axis("off")


def _name(panel: Axes, arrow: Arrow, *, used: bool) -> None:
    """The name of one of parallel links, of an idle one behind what is used."""
    frame = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    (x, y), colour, layer = arrow.label_at, INK if used else _GREY, 4.0 if used else 1.5
    panel.text(x, y, arrow.label, ha="center", va="center", fontsize=5.5, color=colour, bbox=frame, zorder=layer)
