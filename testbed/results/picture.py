"""Traces as a picture: predicted over measured, a lane per rank, so that a person sees where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from testbed.errors import BadInput
from testbed.results.contents import table_of
from testbed.results.load import load_run, load_traces
from testbed.trace.tables import KINDS, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"F": "#4c78c8", "B": "#3a9a63", "I": "#45b5a0", "W": "#e0a83c"}
"""Forward, full backward, input gradient, weight gradient."""

MEANINGS = {"F": "forward", "B": "full backward", "I": "input gradient", "W": "weight gradient"}
_IDLE = "#eef0f3"
_INK = "#20242b"
_CUT = "#c0392b"
_LANE_INCHES = 0.27


class Panel(NamedTuple):
    """One schedule in the picture."""

    title: str
    traces: Sequence[tuple[str, Trace]]
    """(label such as "predicted", trace of one iteration)"""


def draw(panels: Sequence[Panel], path: Path, *, cuts: Sequence[int], lanes: Sequence[str], heading: str) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`).

    `cuts` are ranks whose successor is in another datacenter, `lanes` the label of every rank.
    All panels share one time axis, so lengths can be compared between schedules.
    """
    strips = [(panel, label, trace) for panel in panels for label, trace in panel.traces]
    longest = max(float(trace.makespans()[0]) for _, _, trace in strips)
    n_ranks = len(lanes)
    strip_inches = n_ranks * _LANE_INCHES
    height = len(strips) * (strip_inches + 0.42) + 1.35
    figure = Figure(figsize=(13, height), layout="constrained", facecolor="white")
    axes = figure.subplots(len(strips), 1, squeeze=False)[:, 0]
    for axis, (panel, label, trace) in zip(axes, strips, strict=True):
        _strip(axis, trace, n_ranks, cuts, lanes)
        axis.set_xlim(0, longest * 1e3 * 1.01)
        makespan = float(trace.makespans()[0]) * 1e3
        bubble = float(trace.bubble_ratios()[0])
        axis.set_title(
            f"{panel.title} - {label}: {makespan:.1f} ms, bubble {bubble:.1%}", loc="left", fontsize=9, color=_INK
        )
    axes[-1].set_xlabel("ms since the start of the iteration", fontsize=9, color=_INK)
    used = [k for k in COLOURS if any((t.actions["kind"] == KINDS.index(_kind(k))).any() for _, _, t in strips)]
    handles = [Patch(facecolor=COLOURS[k], label=f"{k}  {MEANINGS[k]}") for k in used]
    handles.append(Patch(facecolor=_IDLE, label="idle"))
    if cuts:
        handles.append(Patch(facecolor="none", edgecolor=_CUT, linestyle="--", label="datacenter boundary"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False)
    figure.suptitle(heading, fontsize=11, color=_INK, x=0.01, ha="left")
    # text as text (small, searchable); no date and no random ids: the same traces give the same file
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "testbed", "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_run(directory: Path, path: Path) -> None:
    """Write the picture of a run from its data files: every schedule predicted over measured.

    Of an incomplete run it shows the schedules that are finished, of the measured iterations the one whose time is
    nearest to their median. Raises BadInput where there is none.
    """
    run, traces = load_run(directory), load_traces(directory)
    if not run.schedules:
        raise BadInput.of(str(directory), "schedules", 0, "at least one that is finished")
    nodes = run.manifest.get("nodes", [])
    iterations = table_of(directory / "iterations.parquet", ["schedule", "warmup", "makespan_s", "iteration"])
    measured = iterations[~iterations["warmup"].astype(bool)]
    panels = []
    for row in run.comparison["schedules"]:
        name, median_s = row["label"], row["measured_s"]
        mine = measured[measured["schedule"] == name]
        for source in ("predicted", "measured"):
            if mine.empty or (name, source) not in traces:
                raise BadInput.of(
                    str(directory), "tables", f"no {source} {name}", "rows of every schedule that is finished"
                )
        typical = mine.loc[(mine["makespan_s"] - median_s).abs().idxmin(), "iteration"]
        strips = [
            ("predicted", traces[name, "predicted"]),
            ("measured", traces[name, "measured"].of_iteration(int(typical))),
        ]
        panels.append(Panel(name, strips))
    sites = [node.split("/")[0] for node in nodes]
    cuts = [rank for rank, (site, following) in enumerate(pairwise(sites)) if site != following]
    lanes = [f"{rank} {node}" for rank, node in enumerate(nodes)]
    draw(panels, path, cuts=cuts, lanes=lanes, heading=run.comparison["name"])


def _kind(letter: str) -> object:
    return next(kind for kind in KINDS if str(kind) == letter)


def _strip(axis: Axes, trace: Trace, n_ranks: int, cuts: Sequence[int], lanes: Sequence[str]) -> None:
    makespan_ms = float(trace.makespans()[0]) * 1e3
    axis.barh(range(n_ranks), makespan_ms, height=0.86, color=_IDLE)
    for row in trace.actions:
        left, width = float(row["start_s"]) * 1e3, float(row["end_s"] - row["start_s"]) * 1e3
        kind = str(KINDS[row["kind"]])
        axis.barh(row["rank"], width, left=left, height=0.86, color=COLOURS[kind], edgecolor="white", linewidth=0.4)
        if width > makespan_ms * 0.012:
            text = str(row["microbatch"])
            axis.text(left + width / 2, row["rank"], text, ha="center", va="center", fontsize=5.5, color="white")
    for cut in cuts:
        axis.axhline(cut + 0.5, color=_CUT, linewidth=0.9, linestyle=(0, (4, 3)))
    axis.set_ylim(n_ranks - 0.5, -0.5)
    axis.set_yticks(range(n_ranks), lanes, fontsize=7.5, color=_INK)
    axis.tick_params(axis="x", labelsize=7.5, colors=_INK, length=2)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#c9ced6")
