"""Writing the data files of a run, after every schedule: whatever ends a run, what was finished can be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from testbed.files import saving
from testbed.judge.evidence import Evidence
from testbed.judge.iterations import IterationRow
from testbed.trace.tables import FORMAT, KINDS, MESSAGE_KINDS, Trace

FORMAT_KEY = b"testbed-format"
"""Metadata of a parquet file: the version of its columns."""


@dataclass
class Results:
    """Collects the tables of a run and writes them; every `save` leaves complete, readable files."""

    directory: Path
    actions: list[pd.DataFrame] = field(default_factory=list)
    messages: list[pd.DataFrame] = field(default_factory=list)
    iterations: list[pd.DataFrame] = field(default_factory=list)
    links: list[pd.DataFrame] = field(default_factory=list)

    def add_trace(self, schedule: str, source: str, trace: Trace) -> None:
        """`schedule` is its label, here and below; `source` is "predicted" or "measured"."""
        self.actions.append(_frame(trace.actions, [str(k) for k in KINDS], schedule, source))
        self.messages.append(_frame(trace.messages, list(MESSAGE_KINDS), schedule, source))

    def add_iterations(self, schedule: str, rows: Iterable[IterationRow]) -> None:
        """One row per iteration, warm-up included."""
        self.iterations.append(_iterations(schedule, rows))

    def add_links(self, schedule: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Counters of every link direction over the training with one schedule."""
        frame = pd.DataFrame(list(rows))
        frame.insert(0, "schedule", schedule)
        self.links.append(frame)

    def save_tables(self) -> None:
        """Write the parquet files with what is known so far."""
        self._save("actions", self.actions)
        self._save("messages", self.messages)
        self._save("iterations", self.iterations)
        self._save("links", self.links)

    def save_evidence(self, cases: Mapping[str, Evidence]) -> None:
        """Write what the verdict on the cases (by label) rests on and no other file holds (see results/verdict.py)."""
        self._save("usual", [_iterations(label, case.usual) for label, case in cases.items() if case.usual])
        document = {
            label: {
                **case.network._asdict(),
                "alike_replicas": case.alike_replicas,
                "usual_extra_s": case.usual_extra_s,
            }
            for label, case in cases.items()
        }
        self.save_json("evidence.json", document)

    def _save(self, name: str, frames: Sequence[pd.DataFrame]) -> None:
        if not frames:
            return
        table = pa.Table.from_pandas(pd.concat(frames, ignore_index=True), preserve_index=False)
        known = table.schema.metadata or {}
        table = table.replace_schema_metadata({**known, FORMAT_KEY: str(FORMAT).encode()})
        with saving(self.directory / f"{name}.parquet") as partial:
            pq.write_table(table, partial)

    def save_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Write one JSON document, complete or not at all."""
        with saving(self.directory / name) as partial:
            partial.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _iterations(schedule: str, rows: Iterable[IterationRow]) -> pd.DataFrame:
    frame = pd.DataFrame([row._asdict() | row.witnesses._asdict() for row in rows]).drop(columns="witnesses")
    frame.insert(0, "schedule", schedule)
    return frame


def _frame(table: Any, kinds: list[str], schedule: str, source: str) -> pd.DataFrame:
    frame = pd.DataFrame({name: table[name] for name in table.dtype.names})
    frame["kind"] = pd.Categorical([kinds[code] for code in table["kind"]], categories=kinds)
    frame.insert(0, "schedule", schedule)
    frame.insert(1, "source", source)
    return frame
