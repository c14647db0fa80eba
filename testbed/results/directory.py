"""Writing the data files of a run, after every schedule: whatever ends a run, what was finished can be read.

While a run goes on, what is new of a table becomes a file of its own in `parts/` (contents.py reads them as the table);
at its end every table is written once, and the parts are removed. So a run of many schedules writes every row twice.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from testbed.files import indented_json, saving
from testbed.judge import numerics
from testbed.judge.fidelity import NetworkEvidence
from testbed.judge.iterations import IterationRow
from testbed.results.destination import PARTS
from testbed.results.earlier_runs import BASELINE_TABLE
from testbed.results.run_tables import arrays_without_pandas
from testbed.schedule import schedule_file
from testbed.schedule.registry import Generated
from testbed.trace.tables import FORMAT, KINDS, MESSAGE_KINDS, Trace
from testbed.train.assignment import ALL, Expected, Fingerprint, ReferenceOutcome

FORMAT_KEY = b"testbed-format"
"""Metadata of a parquet file: the version of its columns."""

ROWS_TOGETHER = 2**17
"""Of a parquet file: whoever wants one iteration of a large run need not read many others."""


class FinishedJob(NamedTuple):
    """What only the session knows of a job in a case that is finished."""

    rows: Sequence[IterationRow]
    baseline: Sequence[IterationRow]
    """Of the same job, measured before it; () where nothing was."""
    fingerprints: Sequence[Fingerprint]
    evidence: Mapping[str, Any]
    """As evidence.json has it."""
    generated: Generated


@dataclass
class ResultsWriter:
    """Collects the tables of a run and writes them; every `save` leaves complete, readable files.

    `save_new` and `save_finished` write what is not written yet, `save_tables` everything as it stays.
    """

    directory: Path
    jobs: Sequence[str] = ("",)
    """Their names."""
    references: Sequence[ReferenceOutcome] = ()
    """Per job, what one process gets that trains the same; known before the first case is judged."""
    actions: list[pa.Table] = field(default_factory=list)
    messages: list[pa.Table] = field(default_factory=list)
    iterations: list[pa.Table] = field(default_factory=list)
    links: list[pa.Table] = field(default_factory=list)
    link_events: list[pa.Table] = field(default_factory=list)
    baseline: list[pa.Table] = field(default_factory=list)
    parameters: list[pa.Table] = field(default_factory=list)
    rows: dict[str, dict[int, Sequence[IterationRow]]] = field(default_factory=dict)
    """By label and job, those of the finished cases."""
    evidence: dict[str, Any] = field(default_factory=dict)
    schedules: dict[str, Any] = field(default_factory=dict)
    written: Counter[str] = field(default_factory=Counter)
    """By table, how many of its tables are in parts."""

    def begin(self) -> None:
        """Remove the tables of a run that wrote here before, whole or in parts: a verdict would be told from them."""
        arrays_without_pandas()
        for name in self._tables():
            (self.directory / f"{name}.parquet").unlink(missing_ok=True)
        shutil.rmtree(self.directory / PARTS, ignore_errors=True)

    def add_trace(self, schedule: str, source: str, trace: Trace) -> None:
        """`schedule` is its label, here and below; `source` is "predicted" or "measured"."""
        self.actions.append(_of_trace(trace.actions, [str(k) for k in KINDS], schedule, source))
        self.messages.append(_of_trace(trace.messages, list(MESSAGE_KINDS), schedule, source))

    def add_iterations(self, schedule: str, rows: Iterable[IterationRow], *, job: int = 0) -> None:
        """One row per iteration of a job, warm-up included."""
        self.iterations.append(_iterations(schedule, job, rows))

    def add_links(self, schedule: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Counters of every link direction over the training with one schedule; none where nothing counts them."""
        if rows:
            self.links.append(_of_rows(rows, schedule=schedule))

    def add_link_events(self, schedule: str, rows: Sequence[Mapping[str, object]]) -> None:
        """What became of links during the training with one schedule."""
        if rows:
            self.link_events.append(_of_rows(rows, schedule=schedule))

    def save_tables(self) -> None:
        """Write every parquet file with what is known so far, in the place of the parts."""
        for name, tables in self._tables().items():
            if tables:
                self._save(self.directory / f"{name}.parquet", tables)
        shutil.rmtree(self.directory / PARTS, ignore_errors=True)
        self.written.clear()

    def save_new(self) -> None:
        """Write what is new of every table, as a part of it."""
        for name, tables in self._tables().items():
            if new := tables[self.written[name] :]:
                (self.directory / PARTS).mkdir(exist_ok=True)
                self._save(self.directory / PARTS / f"{name}-{self.written[name]:06d}.parquet", new)
                self.written[name] = len(tables)

    def forget_new(self) -> None:
        """Take back what was added to every table since it was last saved: it is to be measured again."""
        for name, tables in self._tables().items():
            del tables[self.written[name] :]

    def _tables(self) -> dict[str, list[pa.Table]]:
        return {
            "actions": self.actions,
            "messages": self.messages,
            "iterations": self.iterations,
            "links": self.links,
            "link_events": self.link_events,
            BASELINE_TABLE: self.baseline,
            "parameters": self.parameters,
        }

    def add_finished(self, schedule: str, network: NetworkEvidence, jobs: Mapping[int, FinishedJob]) -> None:
        """What only the session knows of a case: what its verdict rests on, and the orders that were trained."""
        if not self.rows:
            self.parameters += [
                parameter_table("", job, reference.parameters)
                for job, reference in enumerate(self.references)
                if reference.parameters
            ]
        self.rows[schedule] = {number: finished.rows for number, finished in jobs.items()}
        self.baseline += [
            _iterations(schedule, number, finished.baseline) for number, finished in jobs.items() if finished.baseline
        ]
        printed = {number: finished.fingerprints for number, finished in jobs.items() if finished.fingerprints}
        self.parameters += [parameter_table(schedule, *prints) for prints in printed.items()]
        evidence = self._by_name({number: finished.evidence for number, finished in jobs.items()})
        clocks = network.clocks and network.clocks._asdict()
        self.evidence[schedule] = network._asdict() | {"clocks": clocks} | evidence
        made = {number: schedule_file.as_entry(finished.generated) for number, finished in jobs.items()}
        self.schedules[schedule] = self._by_name(made)

    def save_finished(self) -> None:
        """Write what is new of that, and how far the finished cases are from the references."""
        self.save_new()
        compared = {
            job: numerics.as_document(reference, {label: jobs[job] for label, jobs in self.rows.items() if job in jobs})
            for job, reference in enumerate(self.references)
        }
        self.save_json("evidence.json", self.evidence)
        self.save_json("numerics.json", self._by_name(compared))
        self.save_json("schedules.json", self.schedules)

    def _by_name(self, documents: Mapping[int, Any]) -> dict[str, Any]:
        return {"jobs": {self.jobs[number]: document for number, document in documents.items()}}

    @staticmethod
    def _save(path: Path, tables: Sequence[pa.Table]) -> None:
        table = pa.concat_tables(tables, promote_options="permissive")
        table = table.replace_schema_metadata({FORMAT_KEY: str(FORMAT).encode()})
        whole = pa.BufferOutputStream()  # a file would be written in a hundred pieces
        pq.write_table(table, whole, row_group_size=ROWS_TOGETHER)
        with saving(path) as partial, partial.open("wb") as file:
            file.write(whole.getvalue())

    def save_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Write one JSON document, complete or not at all."""
        with saving(self.directory / name) as partial:
            partial.write_text(indented_json(document) + "\n", encoding="utf-8")


def parameter_table(schedule: str, job: int, fingerprints: Sequence[Fingerprint | Expected]) -> pa.Table:
    """What was told of gradients and weights; of one process, whose `schedule` is empty, with what only that knows."""
    blank = {"replica": ALL, "tensor_rank": ALL, "size": math.nan, "rounding": math.nan, "last_digit": math.nan}
    return _of_rows([blank | fingerprint._asdict() for fingerprint in fingerprints], schedule=schedule, job=job)


def _iterations(schedule: str, job: int, rows: Iterable[IterationRow]) -> pa.Table:
    whole = [row._asdict() | row.witnesses._asdict() for row in rows]
    for row in whole:
        del row["witnesses"]
    return _of_rows(whole, schedule=schedule, job=job)


def _of_rows(rows: Sequence[Mapping[str, object]], **same: object) -> pa.Table:
    """A table of these rows, before each what is the same in all; what is nan, or no key of a row, is null."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [value] * len(rows) for name, value in same.items()}
    columns |= {name: [row.get(name) for row in rows] for name in names}
    return pa.table({name: _column(values) for name, values in columns.items()})


def _column(values: Sequence[object]) -> pa.Array:
    """Of Python's values; of numbers that are all nan, too, one of numbers."""
    column = pa.array(values)
    if pa.types.is_floating(column.type):
        column = pa.array(column.to_numpy(zero_copy_only=False), from_pandas=True)
    return column


def _of_trace(table: Any, kinds: list[str], schedule: str, source: str) -> pa.Table:
    columns = {name: pa.array(table[name], from_pandas=True) for name in table.dtype.names}
    columns["kind"] = pa.DictionaryArray.from_arrays(pa.array(table["kind"], pa.int8()), kinds)
    same = {"schedule": schedule, "source": source}
    return pa.table({name: pa.repeat(value, len(table)) for name, value in same.items()} | columns)
