"""Writing the data files of a run, after every schedule: whatever ends a run, what was finished can be read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from testbed.files import saving
from testbed.judge import numerics
from testbed.judge.evidence import Evidence
from testbed.judge.iterations import IterationRow
from testbed.schedule import schedule_file
from testbed.schedule.registry import Generated
from testbed.trace.tables import FORMAT, KINDS, MESSAGE_KINDS, Trace
from testbed.train.assignment import ALL, Expected, Fingerprint, ReferenceOutcome

FORMAT_KEY = b"testbed-format"
"""Metadata of a parquet file: the version of its columns."""

FIELD_OF_KEY = {
    "alike_replicas": "first_like_replicas",
    "usual_extra_s": "baseline_extra_s",
    "usual_differs_s": "baseline_differs_s",
    "super_packets_s": "super_packets_s",
    "ways": "routes",
    "range_s": "range_s",
    "in_run_s": "in_run_s",
    "modelled": "modelled",
}
"""Per key that evidence.json has of a job, the field of Evidence."""


@dataclass
class Results:
    """Collects the tables of a run and writes them; every `save` leaves complete, readable files."""

    directory: Path
    jobs: Sequence[str] = ("",)
    """Their names, where there are several."""
    actions: list[pd.DataFrame] = field(default_factory=list)
    messages: list[pd.DataFrame] = field(default_factory=list)
    iterations: list[pd.DataFrame] = field(default_factory=list)
    links: list[pd.DataFrame] = field(default_factory=list)

    def add_trace(self, schedule: str, source: str, trace: Trace) -> None:
        """`schedule` is its label, here and below; `source` is "predicted" or "measured"."""
        self.actions.append(_frame(trace.actions, [str(k) for k in KINDS], schedule, source))
        self.messages.append(_frame(trace.messages, list(MESSAGE_KINDS), schedule, source))

    def add_iterations(self, schedule: str, rows: Iterable[IterationRow], *, job: int = 0) -> None:
        """One row per iteration of a job, warm-up included."""
        self.iterations.append(_iterations(schedule, job, rows))

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

    def save_evidence(self, cases: Mapping[str, Mapping[int, Evidence]]) -> None:
        """Write what the verdict on cases (by label, job by job) rests on and no other file holds (results/verdict)."""
        baseline = [
            _iterations(label, number, one.baseline)
            for label, jobs in cases.items()
            for number, one in jobs.items()
            if one.baseline
        ]
        self._save("usual", baseline)
        document = {
            label: next(iter(jobs.values())).network._asdict()
            | self._by_job(
                {
                    number: {key: getattr(one, name) for key, name in FIELD_OF_KEY.items()}
                    for number, one in jobs.items()
                }
            )
            for label, jobs in cases.items()
        }
        self.save_json("evidence.json", document)

    def save_numerics(
        self, references: Sequence[ReferenceOutcome], cases: Mapping[str, Mapping[int, Evidence]]
    ) -> None:
        """Write every job's reference, and how far the cases (by label) are from it."""
        documents = {
            number: numerics.as_document(
                reference, {label: jobs[number].rows for label, jobs in cases.items() if number in jobs}
            )
            for number, reference in enumerate(references)
        }
        self.save_json("numerics.json", self._by_job(documents))
        found = [parameter_table("", number, one.parameters) for number, one in enumerate(references) if one.parameters]
        for label, jobs in cases.items():
            fingerprints = ((number, one.fingerprints) for number, one in jobs.items() if one.fingerprints)
            found += [parameter_table(label, *one) for one in fingerprints]
        self._save("parameters", found)

    def save_schedules(self, cases: Mapping[str, Mapping[int, Generated]]) -> None:
        """Write the order of actions of every job in every case (by label)."""
        document = {
            label: self._by_job({number: schedule_file.as_entry(one) for number, one in jobs.items()})
            for label, jobs in cases.items()
        }
        self.save_json("schedules.json", document)

    def _by_job(self, documents: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
        """Of one job its document, of several those that there are by name."""
        if len(self.jobs) == 1:
            return documents[0]
        return {"jobs": {self.jobs[number]: one for number, one in documents.items()}}

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


def parameter_table(schedule: str, job: int, fingerprints: Sequence[Fingerprint | Expected]) -> pd.DataFrame:
    """What was told of gradients and weights; of one process, whose `schedule` is empty, with what only that knows."""
    blank = {"replica": ALL, "tensor_rank": ALL, "size": math.nan, "rounding": math.nan, "last_digit": math.nan}
    frame = pd.DataFrame([blank | one._asdict() for one in fingerprints])
    frame.insert(0, "schedule", schedule)
    frame.insert(1, "job", job)
    return frame


def _iterations(schedule: str, job: int, rows: Iterable[IterationRow]) -> pd.DataFrame:
    frame = pd.DataFrame([row._asdict() | row.witnesses._asdict() for row in rows]).drop(columns="witnesses")
    frame.insert(0, "schedule", schedule)
    frame.insert(1, "job", job)
    return frame


def _frame(table: Any, kinds: list[str], schedule: str, source: str) -> pd.DataFrame:
    frame = pd.DataFrame({name: table[name] for name in table.dtype.names})
    frame["kind"] = pd.Categorical([kinds[code] for code in table["kind"]], categories=kinds)
    frame.insert(0, "schedule", schedule)
    frame.insert(1, "source", source)
    return frame
