"""Whether the model knows how pairs of ranks share a link: the errors of virtual_grid.py where they do, and elsewhere.

    python benchmarks/virtual_grid_shared.py [--out DIR]

Counted on the predicted timeline: messages handed to a link while one of another pair waits for it or is on it.
Errors are against what the model says now of the schedules that were trained then.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import permutations
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from virtual_grid import FORWARD_S, ROOT, plan_of, settings

from testbed.pipeline.problem import Problem
from testbed.schedule.schedule_file import kept_in

CELL = re.compile(r"p(\d+)-dc(\d+)-lat([0-9.]+)-bw([0-9.]+)")


def shared(problem: Problem, messages: np.ndarray, delay_s: float) -> int:
    """How many ordered pairs of messages of different ranks overlap on a link."""
    on_link: dict[int, list[tuple[float, float, tuple[int, int]]]] = {}
    for row in messages:
        pair = int(row["source_rank"]), int(row["target_rank"])
        for link in problem.route(*pair):
            on_link.setdefault(link, []).append((float(row["sent_s"]), float(row["arrived_s"]) - delay_s, pair))
    return sum(
        first[2] != second[2] and first[0] <= second[0] < first[1]
        for found in on_link.values()
        for first, second in permutations(found, 2)
    )


def main() -> int:
    """Print a row per schedule: worst error where links are shared, and where they are not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results/virtual-grid")
    out = parser.parse_args().out
    errors: dict[str, tuple[list[float], list[float]]] = {}
    for path in sorted(out.glob("p*/comparison.json")):
        match = CELL.fullmatch(path.parent.name)
        if match is None:
            continue
        ranks, sites, latency, wire = int(match[1]), int(match[2]), float(match[3]), float(match[4])
        plan = plan_of(ranks, sites, settings(ranks, sites, latency, wire))
        kept = kept_in((path.parent / "schedules.json").read_text(encoding="utf-8"), str(path))
        rows = json.loads(path.read_text(encoding="utf-8"))["schedules"]
        measured = {row["schedule"]: row["measured_s"] for row in rows}
        for choice in plan.choose(list(kept)):
            predicted = plan.predict(choice, plan.given(choice, kept[choice.schedule].rows))
            count = shared(plan.problem(choice), predicted.messages, latency * FORWARD_S)
            error = measured[choice.schedule] / float(predicted.makespans()[0]) - 1
            errors.setdefault(choice.schedule, ([], []))[count > 0].append(error)
    table = Table(title=f"worst error in {out.name}", title_justify="left")
    for column in ("schedule", "cells, links not shared", "worst error", "cells, links shared", "worst error"):
        table.add_column(column, justify="left" if column == "schedule" else "right")
    for name, groups in errors.items():
        cells = [
            text for group in groups for text in (str(len(group)), f"{max(group, key=abs):+.3%}" if group else "-")
        ]
        table.add_row(name, *cells)
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
