"""Does a change move predictions? Those of cells drawn at random, as JSON, to be compared between two versions.

    python benchmarks/same_predictions.py --write FILE [--cells 200] [--schedules 3] [--seed 1] [--plans DIR]
    python benchmarks/same_predictions.py --against FILE [--plans DIR]

Cells are those of random_grid.py, every fourth one of its equal ones; without solver and search. Of every schedule:
its rows, iteration time, bubble ratio, planned bytes of every direction, and the warnings. Numbers are written in full,
so that nothing but the same number is equal. To write with an earlier version, put its directory in front:
`PYTHONPATH=EARLIER python benchmarks/same_predictions.py --write FILE --plans DIR`. With --plans, each cell's plan.json
is written to DIR, or read from it instead of being made: so an earlier version's plan files are read by this one.
Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import options, plans
from harness.record import Topic, each, finish
from random_grid import equal_topology, equal_workload, topology, workload

from testbed.errors import BadInput
from testbed.plan.plan import Plan
from testbed.plan.traffic import notices_s, planned_traffic
from testbed.planning import file, left_out
from testbed.planning.prediction import predict_jobs

QUICK = (
    "1f1b",
    "gpipe",
    "zb-h1",
    "zb-h2",
    "geopipe",
    "crosspipe-greedy",
    "looped-bfs",
    "interleaved-1f1b",
    "zb-v",
    "zb1p",
)


def cell(number: int, seed: int, schedules: int) -> Plan:
    """A plan with its schedules; those that do not fit are left out."""
    draw, equal = random.Random(f"same/{seed}/{number}"), number % 4 == 3
    ranks, message = draw.choice((3, 4, 5, 6)), 60e3 if equal else 10 ** draw.uniform(4, 6.6)
    network = (equal_topology if equal else topology)(draw, ranks, message)
    nodes = [f"{site}/{n}" for site, spec in network["datacenters"].items() for n in range(spec["nodes"])]
    job = (equal_workload if equal else workload)(draw, ranks, message, nodes, 1)
    job["schedules"] = draw.sample(QUICK, schedules)
    with TemporaryDirectory() as directory:
        return plans.training(Path(directory), str(number), network, job).plan


def predicted(plan: Plan) -> dict[str, Any]:
    """What the model says of every case of a plan."""
    cases = {}
    for case in plan.cases:
        rows = " ".join(str(action) for one in case.jobs for row in one.rows or () for action in row)
        cases[case.label] = {
            "rows": hashlib.sha256(rows.encode()).hexdigest()[:16],
            "seconds": [(one.alone_s, one.together_s, one.bubble_together) for one in predict_jobs(plan, case)],
            "planned": [tuple(one) for one in planned_traffic(plan, case)],
            "notices_s": notices_s(plan, case),
        }
    return {"cases": cases, "warnings": left_out.left_out(plan)}


def plan_of(number: int, arguments: argparse.Namespace) -> Plan | None:
    """A cell's plan, from its file where there is one; None where no schedule fits."""
    kept = arguments.plans and arguments.plans / f"cell-{number:03d}.json"
    if kept and kept.exists():
        return file.read(kept)
    plan = cell(number, arguments.seed, arguments.schedules)
    if kept and plan.cases:
        kept.parent.mkdir(parents=True, exist_ok=True)
        file.write(plan, kept)
    return plan if plan.cases else None


def main() -> int:
    """Write predictions, or hold them against those that were written."""
    parser = options.parser(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path)
    what.add_argument("--against", type=Path)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--schedules", type=int, default=3, help="per cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plans", type=Path)
    arguments = parser.parse_args()
    earlier = json.loads(arguments.against.read_text()) if arguments.against else {"cells": {}}
    if arguments.against:
        arguments.cells, arguments.schedules, arguments.seed = earlier["asked"]
    found: dict[str, Any] = {}
    for number in range(arguments.cells):
        try:
            plan = plan_of(number, arguments)
        except BadInput as error:
            print(f"cell {number}: {error}", file=sys.stderr)
            continue
        if plan is not None:
            found[str(number)] = json.loads(json.dumps(predicted(plan)))
    count = sum(len(one["cases"]) for one in found.values())
    if arguments.write:
        asked = [arguments.cells, arguments.schedules, arguments.seed]
        arguments.write.write_text(json.dumps({"asked": asked, "cells": found}))
        print(f"{count} predictions of {len(found)} cells written to {arguments.write}")
        return 0
    other = [name for name in {**found, **earlier["cells"]} if found.get(name) != earlier["cells"].get(name)]
    print(f"{count} predictions of {len(found)} cells, {len(other)} cells differ: {', '.join(other[:10])}")
    claim = each(f"predictions of another version, {count} of random cells", len(other), len(found), "equal")
    return finish(arguments, Topic.TRUTH, [claim], clock="none")


if __name__ == "__main__":
    sys.exit(main())
