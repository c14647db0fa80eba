"""Traces as a picture: predicted over measured, a lane per rank, so that a person sees where the time went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb

from testbed.errors import BadInput
from testbed.judge.comparison import jobs_of
from testbed.plotting import GRID, INK, Figure, Patch, save
from testbed.results.box_numbers import BoxNumbers
from testbed.results.load import Run, load_run, load_traces
from testbed.results.merged_lanes import FINEST_POINTS, merged
from testbed.results.run_tables import has_table, table_of
from testbed.results.typical import typical_iteration
from testbed.trace.predictions import prediction_of
from testbed.trace.tables import ALL_GATHER, ALL_REDUCE, KINDS, REDUCE_SCATTER, Table, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"F": "#4c78c8", "B": "#3a9a63", "I": "#45b5a0", "W": "#e0a83c"}
"""Forward, full backward, input gradient, weight gradient."""

MEANINGS = {"F": "forward", "B": "full backward", "I": "input gradient", "W": "weight gradient"}
_FAINT = "#c9ced6"
_CUT = "#c0392b"
_EVENT = "#d6278f"
_COLLECTIVE = "#8e5ea2"
_LANE_INCHES = 0.31
_TITLE_INCHES = 0.26
_HEAD_INCHES = 1.2
"""For heading, a row of the legend and axis, at the top of every page."""

_EDGE_INCHES = 0.1
_LETTER_INCHES = 0.65 * 7.5 / 72
"""Of a lane's name, as generous as _DIGIT_INCHES. All places are worked out here: matplotlib would draw twice."""

_LEGEND_INCHES = 2.0
_LEGEND_ROW_INCHES = 0.2
"""What an entry of the legend takes at most."""

_PAGE_INCHES = 22.0
"""A page is no higher, unless one schedule is."""

_NARROWEST_INCHES, _WIDEST_INCHES = 13.0, 26.0
_LANES_SHARE = 0.88
"""Of the width, what the lanes have beside their names."""

_NUMBER_POINTS = 5.5
_DIGIT_INCHES = 0.75 * _NUMBER_POINTS / 72
"""Generous: whoever shows the SVG may take a wider font."""

_BORDERS = {"replica": 1.1, "job": 2.6}
"""How thick the line is between one and the next, by column of the trace."""

_LIGHTEST = 0.55
"""How far the last chunk of a rank is on the way from its colour to white."""


class Panel(NamedTuple):
    """One schedule in the picture."""

    title: str
    traces: Sequence[tuple[str, Trace]]
    """(label such as "predicted", trace of one iteration)"""
    jobs: Sequence[str] = ()
    """Their names, where the traces are of several."""
    events_s: Mapping[str, Sequence[float]] = {}
    """By label, when links changed."""


class _Scale(NamedTuple):
    """What all strips have in common."""

    longest_ms: float
    inches: float
    """Width of the picture."""
    lanes: Sequence[str]
    cuts: Sequence[int]

    def points(self, width_ms: float) -> float:
        """How wide that is in the picture."""
        return 72 * width_ms * _LANES_SHARE * self.inches / self.longest_ms

    def has_room(self, width_ms: float, number: str) -> bool:
        """Whether a box holds its number."""
        return width_ms * _LANES_SHARE * self.inches / self.longest_ms > len(number) * _DIGIT_INCHES


def draw(panels: Sequence[Panel], path: Path, *, cuts: Sequence[int], lanes: Sequence[str], heading: str) -> list[Path]:
    """Write the picture (SVG or PNG, by the ending of `path`); returns its pages: `path`, and path-2, path-3 ...

    `cuts` are ranks whose successor is in another datacenter, `lanes` the label of every rank.
    All panels share one time axis, so lengths can be compared between schedules.
    """
    traces = [trace for panel in panels for _, trace in panel.traces]
    longest_ms = max(float(trace.makespans()[0]) for trace in traces) * 1e3 * 1.01 or 1.0
    scale = _Scale(longest_ms, _width(traces, longest_ms), lanes, cuts)
    events = any(any(panel.events_s.values()) for panel in panels)
    merges = any(_merges(trace, scale) for trace in traces)
    pages = _pages(panels, len(lanes))
    written = []
    for number, page in enumerate(pages, start=1):
        title = heading if len(pages) == 1 else f"{heading}, page {number} of {len(pages)}"
        figure = _page(page, scale, title, _legend(traces, cuts, events=events, merges=merges))
        target = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        save(figure, target)
        written.append(target)
    return written


def draw_run(directory: Path, path: Path) -> list[Path]:
    """Write the picture of a run from its data files: every schedule predicted over measured; returns its pages.

    Of an incomplete run it shows the schedules that are finished, of the measured iterations the one whose time is
    nearest to their median. Raises BadInput where there is none.
    """
    run = load_run(directory)
    if not run.schedules:
        raise BadInput.of(str(directory), "schedules", 0, "at least one that is finished")
    nodes = run.manifest.get("nodes", [])
    iterations = table_of(directory / "iterations.parquet", ["schedule", "warmup", "makespan_s", "iteration"])
    measured: dict[str, list[Mapping[str, Any]]] = {name: [] for name in run.schedules}
    for row in iterations.to_pylist():
        if not row["warmup"] and row["schedule"] in measured:
            measured[row["schedule"]].append(row)
    names = [job.name for job in jobs_of(run.comparison)]
    shown = {name: _shown(directory, run, name, rows) for name, rows in measured.items()}
    numbers = {one.typical for one in shown.values()} | {one.changes.iteration for one in shown.values() if one.changes}
    traces, panels = load_traces(directory, run.schedules, numbers), []
    for name, (typical, changes) in shown.items():
        for source in ("predicted", "measured"):
            if (name, source) not in traces:
                raise _lacks_rows(directory, source, name)
        nearest = "the nearest to all jobs' medians" if names else "the nearest to the median"
        strips = [
            ("predicted", prediction_of(traces[name, "predicted"], typical)),
            (f"measured, iteration {typical} ({nearest})", traces[name, "measured"].of_iteration(typical)),
        ]
        if changes:
            number = changes.iteration
            said = f"predicted, iteration {number}", f"measured, iteration {number}, in which links change"
            strips.append((said[0], prediction_of(traces[name, "predicted"], number)))
            strips.append((said[1], traces[name, "measured"].of_iteration(number)))
            panels.append(Panel(name, strips, names, dict(zip(said, changes[1:], strict=True))))
        else:
            panels.append(Panel(name, strips, names))
    sites = [node.split("/")[0] for node in nodes]
    cuts = [rank for rank, (site, following) in enumerate(pairwise(sites)) if site != following]
    lanes = [f"{rank} {node}" for rank, node in enumerate(nodes)]
    return draw(panels, path, cuts=cuts, lanes=lanes, heading=run.comparison["name"])


def _lacks_rows(directory: Path, source: str, name: str) -> BadInput:
    return BadInput.of(str(directory), "tables", f"no {source} {name}", "rows of every schedule that is finished")


def _shown(directory: Path, run: Run, name: str, measured: Sequence[Mapping[str, Any]]) -> _Shown:
    """The iterations of a schedule that the picture has, of those that were `measured`. Raises BadInput without any."""
    if not measured:
        raise _lacks_rows(directory, "measured", name)
    rows = [row for row in run.comparison["schedules"] if row["label"] == name]
    typical = typical_iteration(measured, rows, [job.name for job in jobs_of(run.comparison)])
    return _Shown(typical, _iteration_with_events(directory, name, measured))


class _WithEvents(NamedTuple):
    """An iteration in which links changed."""

    iteration: int
    at_s: Sequence[float]
    """When they were to ..."""
    happened_s: Sequence[float]
    """... and when they did."""


class _Shown(NamedTuple):
    """Of a schedule, by number."""

    typical: int
    changes: _WithEvents | None
    """One in which links changed."""


def _iteration_with_events(directory: Path, schedule: str, measured: Sequence[Mapping[str, Any]]) -> _WithEvents | None:
    """The shortest measured one of a schedule; None without any."""
    path = directory / "link_events.parquet"
    if not has_table(path):
        return None
    every = table_of(path, ["schedule", "iteration", "at_s", "happened_s"]).to_pylist()
    events = [row for row in every if row["schedule"] == schedule]
    changed = {row["iteration"] for row in events}
    among = [row for row in measured if row["iteration"] in changed]
    if not among:
        return None
    number = int(min(among, key=lambda row: row["makespan_s"])["iteration"])
    mine = [row for row in events if row["iteration"] == number]
    happened_s = [row["happened_s"] for row in mine if row["happened_s"] is not None]
    return _WithEvents(number, [row["at_s"] for row in mine], [one for one in happened_s if not math.isnan(one)])


# --- pages ---------------------------------------------------------------------------------------


def _width(traces: Sequence[Trace], longest_ms: float) -> float:
    """Inches in which the box of a typical action holds its number, as far as that is reasonable."""
    widths = np.concatenate([trace.actions["end_s"] - trace.actions["start_s"] for trace in traces]) * 1e3
    digits = max(len(str(trace.actions["microbatch"].max())) for trace in traces)
    typical_ms = float(np.median(widths)) or longest_ms
    needed = 1.05 * digits * _DIGIT_INCHES * longest_ms / (typical_ms * _LANES_SHARE)
    return min(max(_NARROWEST_INCHES, needed), _WIDEST_INCHES)


def _panel_inches(panel: Panel, n_ranks: int) -> float:
    return len(panel.traces) * (n_ranks * _LANE_INCHES + _TITLE_INCHES)


def _pages(panels: Sequence[Panel], n_ranks: int) -> list[list[Panel]]:
    """As many schedules on every page as it holds."""
    pages: list[list[Panel]] = [[]]
    left = _PAGE_INCHES - _HEAD_INCHES
    for panel in panels:
        inches = _panel_inches(panel, n_ranks)
        if pages[-1] and inches > left:
            pages.append([])
            left = _PAGE_INCHES - _HEAD_INCHES
        pages[-1].append(panel)
        left -= inches
    return pages


def _page(panels: Sequence[Panel], scale: _Scale, heading: str, handles: Sequence[Patch]) -> Figure:
    strips = [(panel, label, trace) for panel in panels for label, trace in panel.traces]
    columns = min(len(handles), int(scale.inches / _LEGEND_INCHES))
    head = _HEAD_INCHES + (-(-len(handles) // columns) - 1) * _LEGEND_ROW_INCHES
    height = sum(_panel_inches(panel, len(scale.lanes)) for panel in panels) + head + _EDGE_INCHES
    figure = Figure(figsize=(scale.inches, height), facecolor="white")
    names, lanes = max(map(len, scale.lanes)) * _LETTER_INCHES + _EDGE_INCHES, len(scale.lanes) * _LANE_INCHES
    for number, (panel, label, trace) in enumerate(strips):
        foot = height - head - (number + 1) * (_TITLE_INCHES + lanes) + _TITLE_INCHES
        place = names, foot, scale.inches - names - _EDGE_INCHES, lanes
        axis = figure.add_axes(tuple(np.divide(place, (scale.inches, height) * 2).tolist()))
        _strip(axis, trace, scale, with_times=number == 0)
        for at_s in panel.events_s.get(label, ()):
            axis.axvline(at_s * 1e3, color=_EVENT, linewidth=1.4)
        words = f"{panel.title} - {label}: {_times(trace, panel.jobs)}"
        # above what is written above the first strip; elsewhere nothing is, and looking for it takes a tenth of all
        above = None if number == 0 else 1.0
        axis.set_title(words, loc="left", fontsize=9, color=INK, y=above)
    figure.legend(
        handles=list(handles),
        loc="upper left",
        ncols=columns,
        fontsize=9,
        frameon=False,
        title=heading,
        title_fontsize=11,
        alignment="left",
    )
    return figure


def _times(trace: Trace, jobs: Sequence[str]) -> str:
    """How long it took, and how idle its ranks were; of several jobs, from the common start on."""
    if not jobs:
        return f"{float(trace.makespans()[0]) * 1e3:.1f} ms, bubble {float(trace.bubble_ratios()[0]):z.1%}"
    said = []
    for job in sorted(set(trace.actions["job"].tolist())):  # those at work
        ranks = trace.actions["rank"][trace.actions["job"] == job]
        part = trace.of_job(job, range(int(ranks.min()), int(ranks.max()) + 1))
        said.append(f"{jobs[job]} {_times(part, ())}")
    return "; ".join(said)


def _legend(traces: Sequence[Trace], cuts: Sequence[int], *, events: bool, merges: bool) -> list[Patch]:
    kinds = {str(KINDS[code]) for trace in traces for code in np.unique(trace.actions["kind"])}
    handles = [Patch(facecolor=COLOURS[kind], label=f"{kind}  {MEANINGS[kind]}") for kind in COLOURS if kind in kinds]
    chunks = max(len(stages) for trace in traces for stages in _stages(trace).values())
    if chunks > 1:
        handles += [
            Patch(facecolor=_shade("#7a7f87", chunk, chunks), label=f"chunk {chunk} of a rank")
            for chunk in range(chunks)
        ]
    handles.append(Patch(facecolor=GRID, label="idle"))
    if merges:
        handles.append(Patch(facecolor="none", edgecolor="none", label="colours mixed: actions within a point"))
    if any(len(_collectives(trace)) for trace in traces):
        handles.append(Patch(facecolor=_COLLECTIVE, label="from another replica, on its way"))
    for column, width in _BORDERS.items():
        if any(_ends(trace, column) for trace in traces):
            handles.append(Patch(facecolor="none", edgecolor=INK, linewidth=width, label=f"next {column}"))
    if cuts:
        handles.append(Patch(facecolor="none", edgecolor=_CUT, linestyle="--", label="datacenter boundary"))
    if events:
        handles.append(Patch(facecolor=_EVENT, label="a link changes"))
    return handles


# --- strips --------------------------------------------------------------------------------------


def _stages(trace: Trace) -> dict[int, list[int]]:
    """Per rank, the stages that it has, in ascending order: its chunks."""
    actions = trace.actions
    return {
        int(rank): sorted(map(int, np.unique(actions["stage"][actions["rank"] == rank])))
        for rank in np.unique(actions["rank"])
    }


def _ends(trace: Trace, column: str) -> list[int]:
    """The last rank of every job or replica but the last one."""
    of = dict(zip(trace.actions["rank"].tolist(), trace.actions[column].tolist(), strict=True))
    return [rank for rank, following in pairwise(sorted(of)) if of[rank] != of[following]]


def _collectives(trace: Trace) -> Table:
    """The messages between replicas."""
    messages = trace.messages
    return messages[np.isin(messages["kind"], (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE))]


def _shade(colour: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    """The colour of a chunk: the later, the lighter."""
    towards_white = _LIGHTEST * chunk / (chunks - 1) if chunks > 1 else 0.0
    red, green, blue = (part + (1 - part) * towards_white for part in to_rgb(colour))
    return red, green, blue


def _strip(axis: Axes, trace: Trace, scale: _Scale, *, with_times: bool) -> None:
    n_ranks, makespan_ms = len(scale.lanes), float(trace.makespans()[0]) * 1e3
    axis.barh(range(n_ranks), makespan_ms, height=0.86, color=GRID)
    if _merges(trace, scale):
        _merged_boxes(axis, trace, scale)
    else:
        _all_boxes(axis, trace, scale)
    _under_lanes(axis, _collectives(trace))
    ends = []
    for column, width in _BORDERS.items():
        ends += _ends(trace, column)
        for end in _ends(trace, column):
            axis.axhline(end + 0.5, color=INK, linewidth=width)
    for cut in (cut for cut in scale.cuts if cut not in ends):
        axis.axhline(cut + 0.5, color=_CUT, linewidth=0.9, linestyle=(0, (4, 3)))
    axis.set_xlim(0, scale.longest_ms)
    axis.set_ylim(n_ranks - 0.5, -0.5)
    axis.set_yticks(range(n_ranks), scale.lanes, fontsize=7.5, color=INK)
    axis.tick_params(axis="y", length=0)
    # one artist for all of them: a tick with its line and label for each of a strip took a tenth of the time
    axis.vlines(axis.get_xticks(), n_ranks - 0.5, -0.5, color=_FAINT, linewidth=0.5, zorder=0.5)
    axis.xaxis.set_visible(with_times)
    if with_times:
        axis.tick_params(axis="x", top=True, bottom=False, labeltop=True, labelbottom=False, labelsize=7.5, length=2)
        axis.xaxis.set_label_position("top")
        axis.set_xlabel("ms since the start of the iteration", fontsize=9, color=INK)
    axis.set_axisbelow(True)
    for side in ("bottom", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["top"].set_color(_FAINT)


def _all_boxes(axis: Axes, trace: Trace, scale: _Scale) -> None:
    """Every action of every rank, with the number of its microbatch where there is room."""
    numbers = dict[str, list[tuple[tuple[float, float], str]]]()
    for rank, stages in _stages(trace).items():
        for chunk, stage in enumerate(stages):
            mine = trace.actions[(trace.actions["rank"] == rank) & (trace.actions["stage"] == stage)]
            colours = {kind: _shade(colour, chunk, len(stages)) for kind, colour in COLOURS.items()}
            numbers.setdefault("white" if chunk == 0 else INK, []).extend(_boxes(axis, mine, rank, colours, scale))
    for ink, placed in numbers.items():
        axis.add_artist(BoxNumbers([place for place, _ in placed], [word for _, word in placed], _NUMBER_POINTS, ink))


def _merges(trace: Trace, scale: _Scale) -> bool:
    """Whether half of the boxes would be too narrow to be seen."""
    widths = (trace.actions["end_s"] - trace.actions["start_s"]) * 1e3
    return len(widths) > 0 and scale.points(float(np.median(widths))) < FINEST_POINTS


def _merged_boxes(axis: Axes, trace: Trace, scale: _Scale) -> None:
    """Lanes as a picture of points, each in the mean colour of what its rank does meanwhile."""
    n_ranks, columns = len(scale.lanes), int(scale.points(scale.longest_ms) / FINEST_POINTS)
    stages = _stages(trace)
    colours = {
        (rank, stage, code): _shade(COLOURS[str(kind)], chunk, len(mine))
        for rank, mine in stages.items()
        for chunk, stage in enumerate(mine)
        for code, kind in enumerate(KINDS)
        if str(kind) in COLOURS
    }
    picture = merged(trace, n_ranks, np.linspace(0.0, scale.longest_ms / 1e3, columns + 1), colours, to_rgb(GRID))
    extent = (0, scale.longest_ms, n_ranks - 0.5, -0.5)
    # bytes, and as they are: an SVG needs no points between these
    axis.imshow(np.rint(255 * picture).astype(np.uint8), extent=extent, aspect="auto", interpolation="none", zorder=1.5)
    for lane in range(n_ranks + 1):
        axis.axhline(lane - 0.5, color="white", linewidth=2.0)


def _under_lanes(axis: Axes, messages: Table) -> None:
    """At the foot of the lane that takes it, a line for every message between replicas, while it is on its way."""
    for rank in np.unique(messages["target_rank"]).tolist():
        mine = messages[messages["target_rank"] == rank]
        until = np.where(np.isnan(mine["arrived_s"]), mine["taken_s"], mine["arrived_s"])
        spans = list(zip((mine["sent_s"] * 1e3).tolist(), ((until - mine["sent_s"]) * 1e3).tolist(), strict=True))
        axis.broken_barh(spans, (rank + 0.33, 0.1), facecolors=_COLLECTIVE, linewidth=0)


def _boxes(
    axis: Axes, actions: Table, rank: int, colours: Mapping[str, tuple[float, float, float]], scale: _Scale
) -> list[tuple[tuple[float, float], str]]:
    """One chunk of one rank: a box per action. Returns where there is room for the number of its microbatch."""
    left, width = actions["start_s"] * 1e3, (actions["end_s"] - actions["start_s"]) * 1e3
    faces = [colours[str(KINDS[code])] for code in actions["kind"]]
    spans = list(zip(left.tolist(), width.tolist(), strict=True))
    axis.broken_barh(spans, (rank - 0.43, 0.86), facecolors=faces, edgecolor="white", linewidth=0.4)
    every = zip(spans, map(str, actions["microbatch"]), strict=True)
    return [
        ((begin + wide / 2, float(rank)), number) for (begin, wide), number in every if scale.has_room(wide, number)
    ]
