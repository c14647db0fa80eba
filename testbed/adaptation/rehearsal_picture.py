"""The picture of a rehearsal: every iteration of the three jobs, what happened, and what the controller believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from testbed.adaptation.estimates import Belief, named
from testbed.adaptation.rehearsal import OVER, Rehearsal
from testbed.plotting import COLOURS, GRID, INK, PALE_INK, plain, save

_ROOM = 0.9
"""Below the curves, of their own height, for what is said of events."""

_NEVER, _ADAPTED, _ORACLE = PALE_INK, COLOURS[0], COLOURS[2]


def draw(rehearsal: Rehearsal, planned: Belief, message_bytes: float, path: Path, heading: str) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`)."""
    figure = Figure(figsize=(9.0, 6.2), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1), facecolor="white")
    times, beliefs = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axis in (times, beliefs):
        axis.spines["top"].set_visible(False)
        axis.spines["right"].set_visible(False)
        axis.grid(color=GRID)
        axis.set_axisbelow(True)
    _draw_times(times, rehearsal)
    _draw_beliefs(beliefs, rehearsal, planned, message_bytes)
    for axis in (times, beliefs):
        _mark_events(axis, rehearsal, said=axis is times)
    figure.suptitle(plain(heading), x=0.02, ha="left", color=INK, fontsize=11)
    beliefs.set_xlabel("iteration")
    save(figure, path)


def _draw_times(axis: Axes, rehearsal: Rehearsal) -> None:
    rows = rehearsal.rows
    places = [row.iteration for row in rows]
    lines: tuple[tuple[str, Sequence[float], str, float], ...] = (
        ("never adapting", [row.never_s for row in rows], _NEVER, 3.0),
        ("oracle", [row.oracle_s for row in rows], _ORACLE, 2.2),
        ("controller", [row.adapted_s for row in rows], _ADAPTED, 1.4),
    )
    for label, seconds, colour, width in lines:
        axis.step(places, seconds, where="mid", color=colour, linewidth=width, label=label)
    decided = [row for row in rows if row.step.swapped_to is not None]
    if decided:
        where = [row.iteration for row in decided], [row.adapted_s for row in decided]
        axis.plot(*where, "o", color=_ADAPTED, markersize=5, label="decides to swap")
    seen = [row for row in rows if row.step.learnt.alarms]
    if seen:
        where = [row.iteration for row in seen], [row.adapted_s for row in seen]
        axis.plot(*where, "|", color=COLOURS[1], markersize=14, markeredgewidth=2, label="sees a change")
    axis.set_ylabel("iteration [s]")
    every = [seconds for _, line, _, _ in lines for seconds in line]
    least, most = min(every), max(every)
    axis.set_ylim(least - _ROOM * (most - least) - 0.02 * least, most + 0.02 * most)
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, ncols=5)


def _draw_beliefs(axis: Axes, rehearsal: Rehearsal, planned: Belief, message_bytes: float) -> None:
    """What is believed of messages and ranks, as so many times what was planned; only what ever changes."""

    def way(pair: tuple[str, str]) -> Callable[[Belief], float]:
        return lambda belief: belief.paths[pair].crossing_s(message_bytes)

    def rank(number: int) -> Callable[[Belief], float]:
        return lambda belief: sum(slot.value for which, slot in belief.slots.items() if which[0] == number)

    curves = {f"message {named(pair)}": way(pair) for pair in planned.paths}
    curves |= {f"rank {number}": rank(number) for number in sorted({which[0] for which in planned.slots})}
    places, shown = [row.iteration for row in rehearsal.rows], 0
    for label, of in curves.items():
        usual = of(planned)
        ratios = [of(row.step.belief) / usual if usual else 1.0 for row in rehearsal.rows]
        if any(ratio != 1.0 for ratio in ratios):
            style = ("solid", "dashed", "dotted")[shown % 3]
            axis.step(places, ratios, where="mid", linestyle=style, color=COLOURS[shown % len(COLOURS)], label=label)
            shown += 1
    if shown:
        axis.legend(loc="best", fontsize=8, frameon=False, ncols=2)
    axis.axhline(1.0, color=PALE_INK, linewidth=0.8)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("believed / planned")


def _mark_events(axis: Axes, rehearsal: Rehearsal, *, said: bool) -> None:
    """A line where anything changes, and in words what, the first time."""
    known: set[str] = set()
    for row in rehearsal.rows:
        if not row.happens:
            continue
        begin = row.iteration - 0.5
        axis.axvline(begin, color=COLOURS[1], linewidth=0.8, linestyle=(0, (4, 3)))
        words = [what for what in row.happens if what not in known and not what.startswith(OVER)]
        known.update(words)
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
