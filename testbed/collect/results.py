"""The results directory of a run: data files, written as soon as they are known; everything else is drawn from them."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from testbed import source
from testbed.collect.record import IterationRow
from testbed.errors import BadInput
from testbed.timeline import ACTION, KINDS, MESSAGE, MESSAGE_KINDS, Table, Timeline

FILES = (
    "manifest.json",
    "plan.json",
    "schedules.json",
    "links.json",
    "events.parquet",
    "messages.parquet",
    "iterations.parquet",
    "links.parquet",
    "comparison.json",
    "timeline.svg",
)
"""Everything a run writes beside its logs."""


def prepare_directory(path: Path, *, overwrite: bool) -> Path:
    """A directory with nothing of an earlier run in it.

    Raises BadInput when there is one and it may not be overwritten; with `overwrite` only our own files are removed.
    """
    if path.exists() and not path.is_dir():
        raise BadInput.of("--out", "directory", str(path), "a directory, not a file")
    if path.exists() and any(path.iterdir()):
        if not overwrite:
            raise BadInput.of("--out", "directory", str(path), "a new or empty directory (or --overwrite)")
        for stale in (*(path / name for name in FILES), *path.glob("logs/rank*.log")):
            stale.unlink(missing_ok=True)
    try:
        (path / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput.of("--out", "directory", str(path), f"a place to write ({error.strerror})") from error
    return path


@dataclass
class Results:
    """Collects the tables of a run and writes them; every `save` leaves complete, readable files."""

    directory: Path
    events: list[pd.DataFrame] = field(default_factory=list)
    messages: list[pd.DataFrame] = field(default_factory=list)
    iterations: list[pd.DataFrame] = field(default_factory=list)
    links: list[pd.DataFrame] = field(default_factory=list)

    def add_timeline(self, schedule: str, source: str, timeline: Timeline) -> None:
        """`source` is "predicted" or "measured"."""
        self.events.append(_frame(timeline.actions, [str(k) for k in KINDS], schedule, source))
        self.messages.append(_frame(timeline.messages, list(MESSAGE_KINDS), schedule, source))

    def add_iterations(self, schedule: str, rows: Iterable[IterationRow]) -> None:
        """One row per iteration, warm-up included."""
        frame = pd.DataFrame([row._asdict() for row in rows])
        frame.insert(0, "schedule", schedule)
        self.iterations.append(frame)

    def add_links(self, schedule: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Counters of every link direction over the training with one schedule."""
        frame = pd.DataFrame(list(rows))
        frame.insert(0, "schedule", schedule)
        self.links.append(frame)

    def save_tables(self) -> None:
        """Write the parquet files with what is known so far."""
        for name, frames in (
            ("events", self.events),
            ("messages", self.messages),
            ("iterations", self.iterations),
            ("links", self.links),
        ):
            if frames:
                target = self.directory / f"{name}.parquet"
                partial = target.with_suffix(".partial")
                pd.concat(frames, ignore_index=True).to_parquet(partial)
                partial.replace(target)

    def save_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Write one JSON document, complete or not at all."""
        partial = self.directory / f"{name}.partial"
        partial.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
        partial.replace(self.directory / name)


def _frame(table: Any, kinds: list[str], schedule: str, source: str) -> pd.DataFrame:
    frame = pd.DataFrame({name: table[name] for name in table.dtype.names})
    frame["kind"] = pd.Categorical([kinds[code] for code in table["kind"]], categories=kinds)
    frame.insert(0, "schedule", schedule)
    frame.insert(1, "source", source)
    return frame


def load_timelines(directory: Path) -> dict[tuple[str, str], Timeline]:
    """What `add_timeline` was given: (schedule, "predicted" or "measured") -> timeline, in the order of the run."""
    n_ranks = len(json.loads((directory / "manifest.json").read_text(encoding="utf-8"))["nodes"])
    events, messages = (pd.read_parquet(directory / f"{name}.parquet") for name in ("events", "messages"))
    done = _by_run(events, [str(k) for k in KINDS], ACTION)
    sent = _by_run(messages, list(MESSAGE_KINDS), MESSAGE)
    none = np.zeros(0, dtype=MESSAGE)
    return {key: Timeline(table, sent.get(key, none), n_ranks) for key, table in done.items()}


def _by_run(frame: pd.DataFrame, kinds: list[str], dtype: np.dtype[Any]) -> dict[tuple[str, str], Table]:
    groups = frame.groupby(["schedule", "source"], sort=False)
    return {(str(schedule), str(source)): _table(rows, kinds, dtype) for (schedule, source), rows in groups}


def _table(frame: pd.DataFrame, kinds: list[str], dtype: np.dtype[Any]) -> Table:
    """The inverse of `_frame`."""
    table = np.zeros(len(frame), dtype=dtype)
    assert dtype.names is not None
    for name in dtype.names:
        table[name] = frame[name].map(kinds.index) if name == "kind" else frame[name]
    return table


def environment() -> dict[str, Any]:
    """What the run ran on, for the manifest: nothing in it names a directory of this machine."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["testbed", *sys.argv[1:]],
        **source.identity(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": dict(sorted((d.name, d.version) for d in distributions())),
    }
