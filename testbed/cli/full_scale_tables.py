"""What commands print of a job that stands for one at full scale: the derivation, and times in both worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.cli.table_layout import Column, Section, fitted, indented
from testbed.full_scale.derivation import Line
from testbed.units import show_times


def derivation_lines(lines: Sequence[Line]) -> RenderableType:
    """Every quantity with its value; below it, dimmed, where that comes from."""
    found: list[RenderableType] = [Text("from full scale to the lab", style="italic")]
    for line in lines:
        found += [Text(f"{line.quantity}: {line.value}"), indented(Text(line.source, style="dim"))]
    return Group(*found)


def full_scale_tables(rows: Sequence[tuple[str, Mapping[str, Any]]], width: int) -> list[Table]:
    """(label, an entry's `full_scale`) per schedule: iterations at full scale, and the bound of what a lab adds."""
    if not rows:
        return []
    times = [
        ("\nmeasured", [row.get("measured_s") for _, row in rows]),
        ("\npredicted", [row["predicted_s"] for _, row in rows]),
        ("without\nlab", [row["ideal_s"] for _, row in rows]),
    ]
    flat = show_times([value for _, values in times for value in values])
    parts = [flat[place : place + len(rows)] for place in range(0, len(flat), len(rows))]
    columns = [Column(name, part) for (name, values), part in zip(times, parts, strict=True) if any(values)]
    columns.append(Column("lab adds\nat most", [f"{row['bound_s'] / row['ideal_s']:.3%}" for _, row in rows]))
    columns.append(Column("HBM of the\nfullest", [_fullest(row) for _, row in rows]))
    columns.append(Column("\nmost of it", [_largest(row["causes"]) for _, row in rows], left=True))
    key = Column("\nschedule", [label for label, _ in rows], left=True)
    return fitted(key, [Section("at full scale", columns)], width)


def _fullest(row: Mapping[str, Any]) -> str:
    return f"{max(sum(rank.values()) for rank in row['memory']) / row['memory_limit']:.0%}"


def _largest(causes: Mapping[str, float]) -> str:
    return max(causes, key=causes.__getitem__) if any(causes.values()) else "-"
