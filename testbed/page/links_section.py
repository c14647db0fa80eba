"""The links of a run: asked and measured before it, and what they carried during every schedule."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from testbed.errors import BadInput
from testbed.page.markup import Markup, joined, note, table, tag
from testbed.page.subject import Subject
from testbed.results.contents import json_of
from testbed.results.run_tables import frame_of
from testbed.units import show_change, show_rates, show_sizes, show_times

_COUNTED = ("label", "wire_bytes", "planned_bytes", "dropped", "queue_high_water_bytes", "lateness_p99_s")


def links(subject: Subject) -> Markup:
    """Asked and measured, a row per direction; then traffic by schedule, folded. Raises BadInput for damaged files."""
    return joined([_gate(subject), _traffic(subject)])


def _gate(subject: Subject) -> Markup:
    path = subject.directory / "links.json"
    document = json_of(path)
    if document is None:
        return note("Not shown: this run has no links.json.")
    found = document["links"]
    if not isinstance(found, list):
        raise BadInput.of(str(path), "links", found, "a list of the directions")
    if not found:
        return note("There are no links in this network.")
    measured = [link["measured"] or {} for link in found]
    delays = show_times([s for link, seen in zip(found, measured, strict=True) for s in _delays(link["asked"], seen)])
    rates = show_rates([bps for link, seen in zip(found, measured, strict=True) for bps in _rates(link["asked"], seen)])
    body = []
    for index, (link, seen) in enumerate(zip(found, measured, strict=True)):
        passed = tag("span", "yes", class_="good") if link["ok"] else tag("span", "NO", class_="bad")
        body.append(
            [
                link["label"],
                *delays[4 * index : 4 * index + 4],
                *rates[2 * index : 2 * index + 2],
                _change(*_rates(link["asked"], seen)),
                seen.get("dropped", "-"),
                link["attempts"],
                joined([passed, *(tag("small", reason) for reason in link["reasons"])]),
            ]
        )
    heads = [
        "direction",
        "delay asked",
        "measured",
        "RTT asked",
        "measured",
        "rate asked",
        "measured",
        "off",
        "dropped",
        "attempts",
        "as asked",
    ]
    return table("Links as asked and as measured before the run (medians; delays one way)", heads, body)


def _delays(asked: dict[str, Any], seen: dict[str, Any]) -> tuple[float | None, ...]:
    one_way, rtt = seen.get("one_way_s") or {}, seen.get("rtt_s") or {}
    return asked["delay_s"], one_way.get("median"), asked["rtt_s"], rtt.get("median")


def _rates(asked: dict[str, Any], seen: dict[str, Any]) -> tuple[float | None, float | None]:
    return asked["rate_bps"], seen.get("rate_bps")


def _change(asked: float | None, measured: float | None) -> str:
    return "-" if not asked or measured is None else show_change(measured / asked - 1, 2)


def _traffic(subject: Subject) -> Markup:
    if subject.lacks("links.parquet"):
        return Markup("")
    frame = frame_of(subject.directory / "links.parquet", ["schedule", *_COUNTED])
    tables = [_of_schedule(str(label), mine) for label, mine in frame.groupby("schedule", sort=False)]
    return tag("details", tag("summary", "What every direction carried during each schedule"), *tables)


def _of_schedule(label: str, mine: pd.DataFrame) -> Markup:
    carried, planned, queued = (
        show_sizes(_known(mine[name])) for name in ("wire_bytes", "planned_bytes", "queue_high_water_bytes")
    )
    late = show_times(_known(mine["lateness_p99_s"]))
    body = [
        [direction, wire, due, _change(expected, counted), queue, lateness, "-" if lost is None else f"{lost:g}"]
        for direction, wire, due, expected, counted, queue, lateness, lost in zip(
            mine["label"],
            carried,
            planned,
            _known(mine["planned_bytes"]),
            _known(mine["wire_bytes"]),
            queued,
            late,
            _known(mine["dropped"]),
            strict=True,
        )
    ]
    heads = ["direction", "carried", "planned", "off", "longest queue", "late (99 %)", "dropped"]
    return table(f"{label}: traffic, warm-up included", heads, body)


def _known(column: Any) -> list[float | None]:
    return [None if value is None or math.isnan(float(value)) else float(value) for value in column]
