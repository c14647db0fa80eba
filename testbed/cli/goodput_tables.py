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
            if all(f"{field}_s" in entry["measured"] for entry in entries)
        ),
        Column("goodput", [f"{entry['measured']['goodput']:.2%}" for entry in entries]),
        Column("predicted", [f"{entry['predicted']['goodput']:.2%}" for entry in entries]),
    ]
    return fitted(key, [Section("what the time went into", columns)], width)


_PARTS = {"kept": "kept", "away": "away", "lost": "lost", "saving": "saving", "restarting": "restarting"}


_HOW = {
    "save": "saved",
    "restore": "sent again",
    "join": "sent to replicas that are back",
    "cut anew": "cut anew among other replicas",
}
"""What exchanges of states are for, in words."""


def foretold_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each case that is only predicted."""
    return [
        f"{entry['label']}: goodput {entry['predicted']['goodput']:.2%} of "
        f"{show_time(entry['predicted']['total_s'])} with {_failures(entry)}, predicted"
        for entry in entries
    ]


def goodput_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each case."""
    found = []
    for entry in entries:
        measured, predicted = entry["measured"], entry["predicted"]
        found.append(
            f"{entry['label']}: goodput {measured['goodput']:.2%} of {show_time(measured['total_s'])} with "
            f"{_failures(entry)}, predicted {predicted['goodput']:.2%}"
        )
        if "samples" in measured:
            rates = f"{measured['samples_per_s']:.4g} samples/s, predicted {predicted['samples_per_s']:.4g}"
            found.append(f"{entry['label']}: {measured['samples']} samples with the replicas that were there, {rates}")
        found += [_states_line(entry["label"], what, entry.get("states", ())) for what in _HOW]
    return [line for line in found if line]


def _states_line(label: str, what: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """What went over the fullest direction for states that were saved, or sent again; empty where nothing did."""
    fullest = max((row for row in rows if row["what"] == what), key=lambda row: row["wire_bytes"], default=None)
    if fullest is None:
        return ""
    sizes = show_sizes([fullest["wire_bytes"], fullest["planned_bytes"]])
    return (
        f"{label}: states {_HOW[what]} {fullest['times']} x, {sizes[0]} over {fullest['direction']}, planned {sizes[1]}"
    )


def _failures(entry: Mapping[str, Any]) -> str:
    return f"{entry['failures']} failure{'' if entry['failures'] == 1 else 's'}"
