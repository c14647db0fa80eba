"""Under the virtual clock: measured against predicted for every schedule, over CrossPipe's grid of links.

    python benchmarks/virtual_grid.py [--ranks 4,8] [--sites 2,4] [--receives early,late] [--quick] [--out DIR]

P in {4, 8} x {2, 4} datacenters x early or late receives x the five (T_lat, T_bw)/T_F points of CrossPipe's tables,
M = 2P, memory for 2P microbatches so that every schedule fits. All cells of one P run in one boot. Prints a row per
cell and a row per schedule, with the worst error, and writes every comparison to --out. P = 8 sends quarter-size
messages over links a quarter as fast: the ratios are the same, and a boot takes half the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.plan.framing import wire_bytes
from testbed.plan.plan import Clock, Plan
from testbed.plan.resolve import generate, make_plan, with_cases
from testbed.plan.schedules import choose
from testbed.progress import Lines
from testbed.schedule.registry import FAMILIES, Generated
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.vm import command

ROOT = Path(__file__).parents[1]
POINTS = ((0.0, 0.0), (0.25, 0.25), (0.25, 2.0), (2.0, 0.25), (2.0, 2.0))
"""(T_lat, T_bw)/T_F of CrossPipe's Tables 5 and 6."""
TOPOLOGIES = {2: ROOT / "topologies/two-dc-longhaul.yaml", 4: ROOT / "topologies/four-dc.yaml"}
WORKLOADS = {4: ROOT / "workloads/tiny-gpt-pp4.yaml", 8: ROOT / "workloads/tiny-gpt-pp8.yaml"}
FORWARD_S = 0.02
MESSAGE = {4: 1_000_000, 8: 250_000}
ITERATIONS = {4: 3, 8: 1}
"""Measured ones; two warm up the connections before them."""
UNSHAPED_BPS = 30e9
"""Stands for an infinite rate, which no real link has."""
SOLVER_LIMIT_S = 10.0
TARGET = 0.0005


def settings(ranks: int, sites: int, latency: float, wire: float, receives: str) -> dict[str, str]:
    """A cell as --set values on the shipped files."""
    rate_bps = 8 * wire_bytes(MESSAGE[ranks]) / (wire * FORWARD_S) if wire else UNSHAPED_BPS
    delay = f"{latency * FORWARD_S * 1e3:g} ms"
    asked = {
        "microbatches": str(2 * ranks),
        "memory": str(2 * ranks),
        "pacing": f"{{F: {FORWARD_S} s, I: {FORWARD_S} s, W: {FORWARD_S} s}}",
        "message": f"{MESSAGE[ranks]} B",
        "warmup": "2",
        "iterations": str(ITERATIONS[ranks]),
        "receives": receives,
    }
    sites_named = list(load_topology(TOPOLOGIES[sites]).datacenters)
    links = [f"{{between: [{a}, {b}], delay: {delay}, rate: {rate_bps:.0f} bit/s}}" for a, b in pairwise(sites_named)]
    return {**asked, "topology.links": f"[{', '.join(links)}]"}


def plan_of(ranks: int, sites: int, cell: dict[str, str]) -> Plan:
    """The plan of a cell."""
    mine = {key: value for key, value in cell.items() if not key.startswith("topology.")}
    theirs = {key.removeprefix("topology."): value for key, value in cell.items() if key.startswith("topology.")}
    return make_plan(load_topology(TOPOLOGIES[sites], theirs), load_workload(WORKLOADS[ranks], mine))


def names(quick: bool) -> list[str]:
    """Every schedule, or a static, a greedy and a V-shaped one."""
    return ["1f1b", "crosspipe-greedy", "zb-v"] if quick else list(FAMILIES)


@cache
def schedules(
    ranks: int, sites: int, point: tuple[float, float], quick: bool
) -> tuple[list[ScheduleChoice], dict[str, Generated]]:
    """The schedules of a cell, the same for early and late receives, a solver's made within SOLVER_LIMIT_S."""
    plan = plan_of(ranks, sites, settings(ranks, sites, *point, "early"))
    made, choices = {}, []
    for choice in choose(plan, names(quick)):
        if FAMILIES[choice.schedule].solver:
            choice = choice.model_copy(update={"time_limit_s": SOLVER_LIMIT_S})
        choices.append(choice)
        made[choice.label] = generate(plan, choice)
    return choices, made


def training(
    ranks: int, sites: int, receives: str, point: tuple[float, float], quick: bool, out: Path
) -> command.Training:
    """One cell."""
    plan = plan_of(ranks, sites, settings(ranks, sites, *point, receives))
    directory = out / f"p{ranks}-dc{sites}-{receives}-lat{point[0]:g}-bw{point[1]:g}"
    return command.Training(with_cases(plan, *schedules(ranks, sites, point, quick)), directory)


def main() -> int:
    """Run the grid; 1 when an error exceeds the target or a ranking differs, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="4,8", help="values of P, comma-separated")
    parser.add_argument("--sites", default="2,4", help="numbers of datacenters, comma-separated")
    parser.add_argument("--receives", default="early,late", help="when receives are posted, comma-separated")
    parser.add_argument("--quick", action="store_true", help="three schedules only")
    parser.add_argument("--out", type=Path, default=ROOT / "results/virtual-grid")
    arguments = parser.parse_args()
    console = Console(width=150)
    reporter = Lines(quiet=False)
    documents: dict[str, dict[str, Any] | None] = {}
    for ranks in map(int, arguments.ranks.split(",")):
        begin = time.monotonic()
        sites = map(int, arguments.sites.split(","))
        posted = arguments.receives.split(",")
        cells = [(s, receives, p) for s in sites for receives in posted for p in POINTS]
        trainings = [training(ranks, *cell, arguments.quick, arguments.out) for cell in cells]
        made_s = time.monotonic() - begin
        boot, found = command.train(
            command.choose_machine(Clock("virtual")), trainings, limit_s=5400, reporter=reporter
        )
        documents |= {one.directory.name: document for one, document in zip(trainings, found, strict=False)}
        console.print(
            f"P = {ranks}: schedules made in {made_s:.0f} s, one boot of {boot.wall_s:.0f} s, {len(found)} cells"
        )
    return report(documents, console, arguments.out)


def report(documents: dict[str, dict[str, Any] | None], console: Console, out: Path) -> int:
    """Print and keep the table; see `main` for the result."""
    cells = Table(title="by cell", title_justify="left")
    for column in ("cell", "schedules", "worst error", "of", "median error", "ranking as predicted", "trusted"):
        cells.add_column(column, justify="left" if column in ("cell", "of") else "right")
    by_schedule: dict[str, list[tuple[float, str]]] = {}
    good = True
    for name, document in documents.items():
        if document is None:
            cells.add_row(name, "-", "failed", "", "", "", "")
            good = False
            continue
        rows = document["schedules"]
        for row in rows:
            by_schedule.setdefault(row["schedule"], []).append((row["error"], name))
        worst = max(rows, key=lambda row: abs(row["error"]))
        errors = sorted(abs(row["error"]) for row in rows)
        trusted = all(row["trusted"] for row in rows)
        good &= abs(worst["error"]) <= TARGET and document["ranking_as_predicted"] and trusted
        cells.add_row(
            name,
            str(len(rows)),
            f"{worst['error']:+.3%}",
            worst["schedule"],
            f"{errors[len(errors) // 2]:.3%}",
            "yes" if document["ranking_as_predicted"] else "NO",
            "yes" if trusted else "NO",
        )
    console.print(cells)
    summary = Table(title="by schedule", title_justify="left")
    for column in ("schedule", "cells", "worst error", "in", "median |error|"):
        summary.add_column(column, justify="left" if column in ("schedule", "in") else "right")
    for name, found in by_schedule.items():
        error, cell = max(found, key=lambda one: abs(one[0]))
        middle = sorted(abs(one[0]) for one in found)[len(found) // 2]
        summary.add_row(name, str(len(found)), f"{error:+.3%}", cell, f"{middle:.3%}")
    console.print(summary)
    out.mkdir(parents=True, exist_ok=True)
    (out / "grid.json").write_text(json.dumps(documents, indent=2) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
