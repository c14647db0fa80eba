"""The picture of a job that adapts: every iteration beside other jobs', what happened, and what was believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from testbed.plotting import COLOURS, GRID, INK, PALE_INK, plain, save

_ROOM = 0.9
"""Below the curves, of their own height, for what is said of events."""

_JOB_INCHES = 1.4
"""High is what is drawn of each of several jobs."""

NEVER, ORACLE, CONTROLLER = "never adapting", "oracle", "controller"
_LINES = {NEVER: (PALE_INK, 3.0), ORACLE: (COLOURS[2], 2.2), CONTROLLER: (COLOURS[0], 1.4)}
"""Colour and width of a job's line; the widest lies below the others."""


class AdaptationCurves(NamedTuple):
    """What is drawn of a job; every sequence has an entry for each iteration, from the first on."""

    heading: str
    times_s: Mapping[str, Sequence[float]]
    """Of an iteration, by job: NEVER, ORACLE or CONTROLLER, and what else there is to say of it in brackets."""
    swaps: Sequence[int]
    """Iterations after which it goes on with another schedule."""
    seen: Sequence[int]
    """Those in which it sees a change."""
    believed: Mapping[str, Sequence[float]]
    """By what it is of, what was believed after each iteration, as a share of what was planned."""
    happens: Sequence[tuple[int, Sequence[str]]]
    """Iterations in which something changes, and in words what; no words where that has been said."""
    jobs: Mapping[str, Mapping[str, Sequence[float]]] = MappingProxyType({})
    """Of several jobs, by name, the same as `times_s`, which is then their mean."""


def draw_curves(curves: AdaptationCurves, path: Path) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`)."""
    size = 9.0, 6.2 + _JOB_INCHES * len(curves.jobs)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1), facecolor="white")
    heights = 3.0, *(_JOB_INCHES for _ in curves.jobs), 2.0
    times, *of_jobs, beliefs = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for axis in (times, *of_jobs, beliefs):
        axis.spines["top"].set_visible(False)
        axis.spines["right"].set_visible(False)
        axis.grid(color=GRID)
        axis.set_axisbelow(True)
    _draw_times(times, curves)
    for axis, (name, times_s) in zip(of_jobs, curves.jobs.items(), strict=True):
        for label, seconds in times_s.items():
            _draw_line(axis, label, seconds)
        axis.set_ylabel(plain(f"{name} [s]"))
    _draw_beliefs(beliefs, curves)
    for axis in (times, *of_jobs, beliefs):
        _mark_events(axis, curves, said=axis is times)
    figure.suptitle(plain(curves.heading), x=0.02, ha="left", color=INK, fontsize=11)
    beliefs.set_xlabel("iteration")
    save(figure, path)


def _draw_line(axis: Axes, label: str, seconds: Sequence[float]) -> None:
    colour, width = _LINES[label.split(" (")[0]]
    axis.step(range(len(seconds)), seconds, where="mid", color=colour, linewidth=width, label=label)


def _draw_times(axis: Axes, curves: AdaptationCurves) -> None:
    mine: Sequence[float] = ()
    for label, seconds in curves.times_s.items():
        _draw_line(axis, label, seconds)
        mine = seconds if label.split(" (")[0] == CONTROLLER else mine
    blue = _LINES[CONTROLLER][0]
    if curves.swaps:
        decided = [mine[place] for place in curves.swaps]
        axis.plot(curves.swaps, decided, "o", color=blue, markersize=5, label="decides to swap")
    if curves.seen:
        saw = [mine[place] for place in curves.seen]
        axis.plot(curves.seen, saw, "|", label="sees a change", color=COLOURS[1], markersize=14, markeredgewidth=2)
    axis.set_ylabel("mean of all jobs [s]" if curves.jobs else "iteration [s]")
    every = [each for line in curves.times_s.values() for each in line]
    least, most = min(every), max(every)
    axis.set_ylim(least - _ROOM * (most - least) - 0.02 * least, most + 0.02 * most)
    axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= axis.get_ylim()[1]])
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, ncols=5, columnspacing=1.2)


def _draw_beliefs(axis: Axes, curves: AdaptationCurves) -> None:
    """As so many times what was planned; only what ever changes."""
    shown = {label: ratios for label, ratios in curves.believed.items() if any(ratio != 1.0 for ratio in ratios)}
    for number, (label, ratios) in enumerate(shown.items()):
        style = ("solid", "dashed", "dotted")[number % 3]
        colour = COLOURS[number % len(COLOURS)]
        axis.step(range(len(ratios)), ratios, where="mid", linestyle=style, color=colour, label=label)
    if shown:
        axis.legend(loc="best", fontsize=8, frameon=False, ncols=2)
    axis.axhline(1.0, color=PALE_INK, linewidth=0.8)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("believed / planned")


def _mark_events(axis: Axes, curves: AdaptationCurves, *, said: bool) -> None:
    """A line where anything changes, and in words what."""
    for iteration, words in curves.happens:
        begin = iteration - 0.5
        axis.axvline(begin, color=COLOURS[1], linewidth=0.8, linestyle=(0, (4, 3)))
        if said and words:
            axis.annotate(
                plain("\n".join(words)),
                (begin, 0.02),
                (3, 0),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                rotation=90,
                fontsize=7,
                color=COLOURS[1],
                va="bottom",
            )
