"""Reading a results directory: the traces of a run, as they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.errors import BadInput
from testbed.trace.tables import ACTION, FORMAT, KINDS, MESSAGE, MESSAGE_KINDS, Table, Trace, rows


def load_traces(directory: Path) -> dict[tuple[str, str], Trace]:
    """(schedule, "predicted" or "measured") -> trace, in the order of the run.

    Raises BadInput for results of another format version.
    """
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    if manifest.get("format", 1) != FORMAT:
        raise BadInput.of(str(directory / "manifest.json"), "format", manifest.get("format", 1), str(FORMAT))
    actions, messages = (pd.read_parquet(directory / f"{name}.parquet") for name in ("actions", "messages"))
    done = _by_run(actions, [str(kind) for kind in KINDS], ACTION)
    sent = _by_run(messages, list(MESSAGE_KINDS), MESSAGE)
    return {key: Trace(table, sent.get(key, rows(MESSAGE, 0)), len(manifest["nodes"])) for key, table in done.items()}


def _by_run(frame: pd.DataFrame, kinds: list[str], dtype: Any) -> dict[tuple[str, str], Table]:
    groups = frame.groupby(["schedule", "source"], sort=False)
    return {(str(schedule), str(source)): _table(some, kinds, dtype) for (schedule, source), some in groups}


def _table(frame: pd.DataFrame, kinds: list[str], dtype: Any) -> Table:
    """The columns of `frame` as an array, kinds as codes."""
    table = rows(dtype, len(frame))
    for name in dtype.names:
        table[name] = frame[name].map(kinds.index) if name == "kind" else frame[name]
    return table
