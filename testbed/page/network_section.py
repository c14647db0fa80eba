"""The network of a run as a picture per case: every direction an arrow, as wide as it was loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from testbed.page.iterations_section import seconds_of_case
from testbed.page.markup import Markup, joined, note, pictures, tag
from testbed.page.shapes import picture, rectangle, words
from testbed.page.subject import Subject
from testbed.plan.network_state import NetworkState, network_at
from testbed.results.run_files import RunFiles
from testbed.results.run_tables import frame_of
from testbed.routing.curves import ASPECT, CurvePoint, arrows, places_at, point, short_name
from testbed.units import show_rate, show_time

_WIDTH, _LEFT, _MARGIN = 420.0, 0.08, 18.0
_WIDEST, _THINNEST, _HEAD = 7.0, 0.8, 6.0
_LETTER = 6.4
"""Width of a letter in a box."""
_NAMED_AT = 0.3
"""Where along an arrow, so that those of a link's two directions lie apart."""
_MOST_NAMED = 12
"""Directions whose load is written beside them."""


def network(subject: Subject) -> Markup:
    """Of every finished case a picture. Raises BadInput for damaged files."""
    missing = subject.lacks("plan.json", "links.parquet")
    if missing or not subject.run.schedules:
        return note(missing or "Not shown: no schedule is finished.")
    files = RunFiles(subject.directory)
    traffic = frame_of(subject.directory / "links.parquet", ["schedule", "label", "wire_bytes"])
    figures = []
    for label in subject.run.schedules:
        mine = traffic[traffic["schedule"] == label]
        carried = dict(zip(mine["label"].astype(str), mine["wire_bytes"].astype(float), strict=True))
        state = network_at(files.plan, files.case(label))
        figures.append(_picture(label, state, carried, seconds_of_case(subject, label)))
    said = "Load: the share of the training's time for which a direction's bytes occupy it, warm-up included."
    return joined([tag("p", said, class_="small"), pictures(figures)])


def _picture(label: str, state: NetworkState, carried: Mapping[str, float], seconds: float) -> Markup:
    at = places_at(state)
    names = {name: short_name(name, at) for name in at}
    half = {name: (0.5 * _LETTER * len(short) + 6) / _WIDTH for name, short in names.items()}
    loads = [8 * carried.get(link.label, 0.0) / link.rate_bps / seconds for link in state.links]
    most = max((load for load in loads if math.isfinite(load)), default=0.0) or 1.0
    heights = [_place(place)[1] for place in at.values()]
    inside: list[Markup] = []
    texts: list[Markup] = []
    for number, (link, arrow) in enumerate(zip(state.links, arrows(state.links, at, half), strict=True)):
        load = loads[number] if math.isfinite(loads[number]) else 0.0
        down = number in state.down
        ends = at[link.source], at[link.target]
        said = f"{link.label}: {show_rate(link.rate_bps)}, {show_time(link.delay_s)} one way, "
        said += "down" if down else f"load {load:.1%}"
        class_ = "link down" if down else "link used" if load > 0 else "link"
        width = _THINNEST + (_WIDEST - _THINNEST) * load / most
        heights.append(_place(point(*ends, arrow.bend, 0.5))[1])
        shapes = _arrow(ends, arrow.bend, half[link.target], width, head=load > 0)
        inside.append(tag("g", tag("title", said), *shapes, class_=class_))
        if load > 0 and sum(one > 0 for one in loads) <= _MOST_NAMED:
            x, y = _place(point(*ends, arrow.bend, _NAMED_AT))
            texts.append(words(f"{load:.0%}", x, y + 4, "load"))
    for name, place in at.items():
        x, y = _place(place)
        wide = 2 * half[name] * _WIDTH
        class_ = "place switch" if name in state.switches else "place"
        inside.append(rectangle(x - wide / 2, y - 11, wide, 22, class_, rx="5"))
        texts.append(words(names[name], x, y + 4, "place-name"))
    said = f"busiest direction {most:.0%}" if max(loads, default=0.0) > 0 else "nothing was sent"
    title = f"{label}: the network and its load, {said}"
    top, bottom = min(heights) - _MARGIN, max(heights) + _MARGIN
    view = -_LEFT * _WIDTH, top, (1 + 2 * _LEFT) * _WIDTH, bottom - top
    drawn = picture(title, [*inside, *texts], view, "network")
    return tag("figure", tag("figcaption", tag("strong", label), f" {said}"), drawn)


def _place(at: CurvePoint) -> CurvePoint:
    x, y = at
    return x * _WIDTH, (0.9 - y) * _WIDTH * ASPECT


def _arrow(ends: Sequence[CurvePoint], bend: float, half: float, width: float, *, head: bool) -> list[Markup]:
    """From box to box along the curve; the tip lies where it meets the target's box."""
    source, target = ends
    steps = [step / 60 for step in range(61)]
    inside = [along for along in steps if _within(point(source, target, bend, along), target, half)]
    end = min(inside, default=1.0)
    tip = _place(point(source, target, bend, end))
    base = _place(point(source, target, bend, max(0.0, end - 0.08)))
    length = math.dist(tip, base) or 1.0
    along_x, along_y = (tip[0] - base[0]) / length, (tip[1] - base[1]) / length
    size = _HEAD + width
    foot = (tip[0] - size * along_x, tip[1] - size * along_y) if head else tip
    curve = [_place(point(source, target, bend, end * step / 24)) for step in range(23)] + [foot]
    line = " ".join(f"{'M' if index == 0 else 'L'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(curve))
    drawn = [tag("path", d=line, stroke_width=f"{width:.2f}")]
    if head:
        across = 0.55 * size
        by_x, by_y = across * along_y, across * along_x
        corners = tip, (foot[0] - by_x, foot[1] + by_y), (foot[0] + by_x, foot[1] - by_y)
        drawn.append(tag("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)))
    return drawn


def _within(at: CurvePoint, box: CurvePoint, half: float) -> bool:
    (x, y), (middle_x, middle_y) = _place(at), _place(box)
    return abs(x - middle_x) < half * _WIDTH + 2 and abs(y - middle_y) < 13
