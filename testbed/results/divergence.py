"""Where two runs part: the first action and the first message of which they measured another time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from testbed.errors import BadInput
from testbed.planning import file
from testbed.results.contents import json_of
from testbed.results.destination import is_complete
from testbed.results.load import has_traces, load_traces
from testbed.trace.tables import KINDS, MESSAGE_KINDS, Table, Trace

if TYPE_CHECKING:
    import pandas as pd

ACTION_KEY = ("job", "iteration", "replica", "rank", "stage", "kind", "microbatch", "part_begin")
MESSAGE_KEY = ("job", "iteration", "kind", "stage", "microbatch", "source_rank", "target_rank")
"""What tells the rows of a case from each other; equal ones are told by their order."""

INPUTS = (
    *("topology", "workload", "clock", "vm", "iterations", "workload_seed", "shaper", "transport", "kernel", "source"),
    *("python", "packages"),
)
"""Fields of a manifest that are input: of two runs that differ in none, virtual time gives the same nanoseconds."""

_WITHIN_CASE = "number_in_key"
_IN_ONE = "in one run only"


@dataclass(frozen=True)
class RowDifference:
    """The first row of a table that differs, by case, iteration and time."""

    schedule: str
    """The label of the case."""
    row: Mapping[str, int | str]
    """Its key: job, iteration, ranks, stage, kind, microbatch."""
    column: str
    """The column that differs first; "in one run only" for a row that the other run does not have."""
    instant_s: float
    """Since its iteration began: the earlier of the two times that differ; nan where no time is known."""
    one: float | None
    other: float | None
    """What each run has there; times in s. None: nothing."""

    @property
    def by_s(self) -> float | None:
        """The other's time less the one's; None where it is no time, or not of both."""
        if not self.column.endswith("_s") or self.one is None or self.other is None:
            return None
        return self.other - self.one


@dataclass(frozen=True)
class Divergence:
    """What two runs have measured differently; times are compared in whole nanoseconds."""

    action: RowDifference | None
    message: RowDifference | None
    actions: int
    """How many of all actions differ ..."""
    messages: int
    """... and how many messages."""
    schedules_in_one: tuple[str, ...]
    """Cases that only one of the runs has: they are compared with nothing."""
    inputs: tuple[str, ...]
    """Fields of the manifests that are input and differ; "plan" for plan.json."""

    @property
    def identical(self) -> bool:
        """Whether every time of every case is the same in both."""
        return not self.actions and not self.messages and not self.schedules_in_one

    def as_json(self) -> dict[str, Any]:
        """JSON-able: what is not known is null."""
        return {
            "identical": self.identical,
            "action": _as_json(self.action),
            "message": _as_json(self.message),
            "actions": self.actions,
            "messages": self.messages,
            "schedules_in_one": list(self.schedules_in_one),
            "inputs": list(self.inputs),
        }


def diverge(one: Path, other: Path) -> Divergence:
    """Compare what two results directories hold of the same cases, in the order of `one`.

    Raises BadInput for a directory that holds no run, files that cannot be read, or runs without a case in common.
    """
    measured = [_measured(directory) for directory in (one, other)]
    both = [label for label in measured[0] if label in measured[1]]
    if not both:
        has = f"measured schedules {', '.join(measured[1]) or 'none'}"
        raise BadInput.of(str(other), "schedules", has, f"one of those of {one}: {', '.join(measured[0]) or 'none'}")
    first: dict[str, RowDifference] = {}
    counts = {"actions": 0, "messages": 0}
    for label in both:
        tables = (("actions", ACTION_KEY, list(map(str, KINDS))), ("messages", MESSAGE_KEY, list(MESSAGE_KINDS)))
        for name, key, kinds in tables:
            pair = [getattr(of[label], name) for of in measured]
            found, count = _first_difference(label, pair[0], pair[1], key, kinds)
            counts[name] += count
            if found is not None:
                first.setdefault(name, found)
    alone = (*(x for x in measured[0] if x not in measured[1]), *(x for x in measured[1] if x not in measured[0]))
    rows = first.get("actions"), first.get("messages")
    return Divergence(*rows, counts["actions"], counts["messages"], alone, _inputs(one, other))


def _measured(directory: Path) -> dict[str, Trace]:
    """By label, what was measured of its cases. Raises BadInput, also for a run that ended before it had any."""
    if (directory / "manifest.json").is_file() and not is_complete(directory) and not has_traces(directory):
        raise BadInput.of(str(directory), "finished schedules", 0, "one or more: this run is incomplete")
    return {label: trace for (label, source), trace in load_traces(directory).items() if source == "measured"}


def _first_difference(
    label: str, one: Table, other: Table, key: Sequence[str], kinds: Sequence[str]
) -> tuple[RowDifference | None, int]:
    """The first of the rows that differ, and how many there are."""
    frames = [_keyed(table, key) for table in (one, other)]
    index = frames[0].index.union(frames[1].index)
    left, right = (frame.reindex(index) for frame in frames)
    same = (left == right) | (left.isna() & right.isna())
    known = [index.isin(frame.index) for frame in frames]
    differs = ~same.all(axis=1).to_numpy() | (known[0] != known[1])
    if not differs.any():
        return None, 0
    names = [name for name in left.columns if name.endswith("_s")]
    earlier = np.fmin(left[names].to_numpy(), right[names].to_numpy())
    marked = np.where(same[names].to_numpy(), np.inf, np.where(np.isnan(earlier), np.inf, earlier))
    instants = marked.min(axis=1)
    # a row of one run, or with other bytes at the same times: when it was first heard of
    heard_of = np.where(np.isnan(earlier), np.inf, earlier).min(axis=1)
    instants = np.where(np.isinf(instants), heard_of, instants)
    places = np.flatnonzero(differs)
    iterations = index.get_level_values("iteration").to_numpy()
    place = int(places[np.lexsort((instants[places], iterations[places]))[0]])
    row = {str(name): int(value) for name, value in zip(index.names, index[place], strict=True) if name != _WITHIN_CASE}
    row_key: dict[str, int | str] = {**row, "kind": kinds[row["kind"]]}
    instant_s = float(instants[place]) / 1e9 if np.isfinite(instants[place]) else float("nan")
    if known[0][place] != known[1][place]:
        there = (1.0 if each[place] else None for each in known)
        return RowDifference(label, row_key, _IN_ONE, instant_s, *there), len(places)
    columns = [name for name in left.columns if not same[name].iloc[place]]
    times = {name: at for name, at in zip(names, marked[place], strict=True) if name in columns}
    column = min(times, key=lambda name: times[name]) if times else columns[0]
    values = (_value(column, frame[column].iloc[place]) for frame in (left, right))
    return RowDifference(label, row_key, column, instant_s, *values), len(places)


def _keyed(table: Table, key: Sequence[str]) -> pd.DataFrame:
    """Its rows by their key, times in whole nanoseconds."""
    import pandas as pd

    frame = pd.DataFrame(table)
    for name in frame.columns:
        if name.endswith("_s"):
            frame[name] = np.rint(frame[name] * 1e9)
        elif name not in key:
            frame[name] = frame[name].astype("float64")
    frame[_WITHIN_CASE] = frame.groupby(list(key)).cumcount()
    return frame.set_index([*key, _WITHIN_CASE])


def _value(column: str, found: float) -> float | None:
    if np.isnan(found):
        return None
    return float(found) / 1e9 if column.endswith("_s") else float(found)


def _inputs(one: Path, other: Path) -> tuple[str, ...]:
    manifests = [json_of(directory / "manifest.json") or {} for directory in (one, other)]
    names = [name for name in INPUTS if manifests[0].get(name) != manifests[1].get(name)]
    plans = [_text(directory / file.NAME) for directory in (one, other)]
    return (*names, "plan") if plans[0] != plans[1] else tuple(names)


def _text(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _as_json(found: RowDifference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    document = asdict(found) | {"by_s": found.by_s}
    return document | {"instant_s": None if np.isnan(found.instant_s) else found.instant_s}
