"""What the timelines of a page are drawn from: every action and message of its runs, in blocks of one iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from testbed.judge.comparison import BASELINE, jobs_at_work
from testbed.page.columns import packed, time_unit, unit_of, whole
from testbed.page.subject import Subject
from testbed.results.event_marks import EventMark, event_marks
from testbed.results.load import load_traces
from testbed.results.run_tables import frame_of
from testbed.results.typical import typical_iteration
from testbed.trace.predictions import predicted_numbers
from testbed.trace.tables import KINDS, MESSAGE_KINDS, Table, Trace
from testbed.units import finite

MOST_ACTIONS = 2_000_000
"""On a page: beyond that, a case shows fewer of its iterations. A browser opens some ten megabytes without a pause."""

_NEEDED = ("manifest.json", "actions.parquet", "messages.parquet", "iterations.parquet")

AddBlock = Callable[[str], str]
"""Puts a text of `packed` columns on the page; returns what it is found by."""


def timelines_of(subject: Subject, most_actions: int, add: AddBlock) -> dict[str, Any]:
    """The lanes and cases of a run, for the page's script; `cases` is empty where it has no traces.

    Raises BadInput for tables that cannot be read.
    """
    nodes = list(subject.run.manifest.get("nodes", ()))
    found: dict[str, Any] = {"name": subject.name, "nodes": nodes, "jobs": subject.jobs, "cases": []}
    found["first"] = first_case(subject)
    if not subject.run.schedules or subject.lacks(*_NEEDED):
        return found
    traces = load_traces(subject.directory)
    iterations = frame_of(subject.directory / "iterations.parquet", ["schedule", "warmup", "makespan_s", "iteration"])
    labels = [
        label for label in subject.run.schedules if (label, "measured") in traces and (label, "predicted") in traces
    ]
    for label in labels:
        mine = iterations[iterations["schedule"] == label]
        counted = mine[~mine["warmup"].astype(bool)]
        if counted.empty:
            continue
        typical = typical_iteration(counted.to_dict("records"), subject.compared(label), subject.jobs)
        measured, predicted = traces[label, "measured"], traces[label, "predicted"]
        shown = kept(counted, measured, typical, most_actions // len(labels))
        warmups = set(mine["iteration"][mine["warmup"].astype(bool)].tolist())
        stand_for = predicted_numbers(predicted, shown).tolist()
        marks = event_marks(subject.run.comparison, label)
        found["cases"].append(
            {
                "label": label,
                "typical": typical,
                "left_out": len(measured.iterations()) - len(shown),
                "predicted": {
                    str(number): _strip(predicted.of_iteration(number), subject.jobs, add)
                    | {"events": _events(marks, number, late=False)}
                    for number in sorted(set(stand_for))
                },
                "measured": [
                    {
                        "iteration": number,
                        "warmup": number in warmups,
                        "predicted": str(of),
                        "events": _events(marks, number, late=True),
                        **_strip(measured.of_iteration(number), subject.jobs, add),
                    }
                    for number, of in zip(shown, stand_for, strict=True)
                ],
            }
        )
    return found


def _events(marks: Sequence[EventMark], iteration: int, *, late: bool) -> list[tuple[float, str]]:
    """Seconds into an iteration, and what happens then: as it was to be, or so much `late` as it was."""
    return [
        (seconds + mark.late_s * late, mark.said)
        for mark in marks
        if mark.iteration == iteration
        for seconds in mark.instants_s
    ]


def first_case(subject: Subject) -> list[str]:
    """The case that is looked at first, the fastest of those that can be trusted; and what to compare it with.

    Of several jobs, one in which most of them are at work.
    """
    at_work = jobs_at_work(subject.rows)
    most = max((len(jobs) for jobs in at_work.values()), default=0)
    known = [row for row in subject.rows if len(at_work[row.label]) == most]
    among = [row for row in known if row.trusted] or known
    if not among:
        return []
    seconds = {label: max(row.measured_s for row in among if row.label == label) for label in {r.label for r in among}}
    fastest = min((row.label for row in among), key=lambda label: seconds[label])
    others = [row.label for row in known if row.schedule == BASELINE and row.label != fastest]
    return [fastest, *others[:1]]


def kept(counted: pd.DataFrame, measured: Trace, typical: int, most_actions: int) -> list[int]:
    """The iterations of a case that are shown: all, or the typical, fastest and slowest, and others evenly spread."""
    numbers: list[int] = measured.iterations().tolist()
    room = max(3, most_actions * len(numbers) // max(1, len(measured.actions)))
    if room >= len(numbers):
        return numbers
    times = counted.sort_values("makespan_s")["iteration"].tolist()
    first = [typical, times[0], times[-1]]
    spread = [numbers[index] for index in np.linspace(0, len(numbers) - 1, room).astype(int).tolist()]
    return sorted(list(dict.fromkeys([*first, *spread]))[:room])


def _strip(trace: Trace, jobs: Sequence[str], add: AddBlock) -> dict[str, Any]:
    return {
        "times": [[job, finite(makespan_s), finite(bubble)] for job, makespan_s, bubble in _times(trace, jobs)],
        "actions": _actions(trace.actions, add),
        "messages": _messages(trace.messages, add),
    }


def _times(trace: Trace, jobs: Sequence[str]) -> Iterable[tuple[str, float, float]]:
    """Per job at work its name ("" of one), seconds from the common start, and idle share."""
    if not jobs:
        yield "", float(trace.makespans()[0]), float(trace.bubble_ratios()[0])
        return
    for job in sorted(set(trace.actions["job"].tolist())):
        ranks = trace.actions["rank"][trace.actions["job"] == job]
        part = trace.of_job(job, range(int(ranks.min()), int(ranks.max()) + 1))
        yield jobs[job], float(part.makespans()[0]), float(part.bubble_ratios()[0])


def _actions(table: Table, add: AddBlock) -> dict[str, Any]:
    """By rank, in order of their starts."""
    rows = table[np.lexsort((table["start_s"], table["rank"]))]
    unit = time_unit(*(rows[name] for name in ("reached_s", "ready_s", "start_s", "end_s")))
    start, end = whole(rows["start_s"], unit), whole(rows["end_s"], unit)
    numbers = ("rank", "stage", "microbatch", "job", "replica", "part_begin", "part_end", "part_of")
    columns = {name: whole(rows[name]) for name in numbers} | {
        "kind": whole(rows["kind"]),
        "start": start,
        "end": end,
        "wait": whole(np.maximum(rows["start_s"] - rows["reached_s"], 0.0), unit),
        "work": whole(rows["computed_s"] - rows["start_s"], unit),
    }
    return _block(columns, unit, [str(kind) for kind in KINDS], add)


def _messages(table: Table, add: AddBlock) -> dict[str, Any]:
    """In order of their being sent."""
    rows = table[np.argsort(table["sent_s"], kind="stable")]
    unit = time_unit(*(rows[name] for name in ("sent_s", "arrived_s", "taken_s")))
    columns = {name: whole(rows[name]) for name in ("stage", "microbatch", "source_rank", "target_rank", "kind")}
    columns["awaited"] = whole(rows["awaited"].astype(np.int32))
    for name in ("sent", "arrived", "taken"):
        columns[name] = whole(rows[f"{name}_s"], unit)
    size = unit_of(rows["payload_bytes"])
    columns["size"] = whole(rows["payload_bytes"], size)
    return _block(columns, unit, list(MESSAGE_KINDS), add) | {"size_unit": size}


def _block(columns: dict[str, NDArray[np.int32]], unit: float, kinds: list[str], add: AddBlock) -> dict[str, Any]:
    varying = {name: column for name, column in columns.items() if len(column) and (column != column[0]).any()}
    constant = {name: int(column[0]) if len(column) else 0 for name, column in columns.items() if name not in varying}
    return {
        "block": add(packed(varying)),
        "rows": len(next(iter(columns.values()))),
        "columns": list(varying),
        "constant": constant,
        "unit": unit,
        "kinds": kinds,
    }
