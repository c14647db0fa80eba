"""What `run` and `report` print of a job whose workers failed: what its time went into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from testbed.cli.table_layout import Column, Section, fitted
from testbed.units import show_sizes, show_time


def goodput_tables(entries: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """A row per case: measured times, and goodput as measured and as predicted."""
    if not entries:
        return []
    key = Column("schedule", [entry["label"] for entry in entries], left=True)
    columns = [
        Column("failures", [str(entry["failures"]) for entry in entries]),
        Column("again", [str(entry["trained_again"]) for entry in entries]),
        *(
            Column(name, [show_time(entry["measured"][f"{field}_s"]) for entry in entries])
            for name, field in _PARTS.items()
        ),
        Column("goodput", [f"{entry['measured']['goodput']:.2%}" for entry in entries]),
        Column("predicted", [f"{entry['predicted']['goodput']:.2%}" for entry in entries]),
    ]
    return fitted(key, [Section("what the time went into", columns)], width)


_PARTS = {"kept": "kept", "lost": "lost", "saving": "saving", "restarting": "restarting"}


def goodput_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each case."""
    found = []
    for entry in entries:
        measured, predicted = entry["measured"], entry["predicted"]
        failures = f"{entry['failures']} failure{'' if entry['failures'] == 1 else 's'}"
        found.append(
            f"{entry['label']}: goodput {measured['goodput']:.2%} of {show_time(measured['total_s'])} with {failures}, "
            f"predicted {predicted['goodput']:.2%}"
        )
        found += [_states_line(entry["label"], what, entry.get("states", ())) for what in ("save", "restore")]
    return [line for line in found if line]


def _states_line(label: str, what: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """What went over the fullest direction for states that were saved, or sent again; empty where nothing did."""
    fullest = max((row for row in rows if row["what"] == what), key=lambda row: row["wire_bytes"], default=None)
    if fullest is None:
        return ""
    sizes = show_sizes([fullest["wire_bytes"], fullest["planned_bytes"]])
    how = f"saved {fullest['times']} x" if what == "save" else f"sent again {fullest['times']} x"
    return f"{label}: states {how}, {sizes[0]} over {fullest['direction']}, planned {sizes[1]}"
