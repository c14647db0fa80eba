"""The picture of a run whose job adapted: its iterations beside those of a job that never does and of an oracle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.adaptation.adaptation_picture import CONTROLLER, NEVER, ORACLE, AdaptationCurves, draw_curves


def draw_adaptation(adaptation: Mapping[str, Any], heading: str, path: Path) -> None:
    """Write the picture (SVG or PNG, by the ending of `path`) of `adaptation` in comparison.json."""
    rows, planned_s = adaptation["iterations"], adaptation["planned_s"]
    times_s = {
        f"{NEVER} (predicted)": [row["never_predicted_s"] for row in rows],
        f"{ORACLE} (predicted)": [row["oracle_predicted_s"] for row in rows],
        f"{CONTROLLER} (measured)": [row["measured_s"] for row in rows],
    }
    swaps = [place for place, row in enumerate(rows) if row["swapped_to"] is not None]
    seen = [place for place, row in enumerate(rows) if row["alarms"]]
    believed = {
        name if name.startswith("rank ") else f"message {name}": [row["believed_s"][name] / usual for row in rows]
        for name, usual in planned_s.items()
        if usual
    }
    known: set[str] = set()
    happens = []
    for place, row in enumerate(rows):
        if row["happens"]:
            happens.append((place, [what for what in row["happens"] if what not in known]))
            known.update(row["happens"])
    draw_curves(AdaptationCurves(heading, times_s, swaps, seen, believed, happens), path)
