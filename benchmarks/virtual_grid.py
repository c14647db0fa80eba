"""Under the virtual clock: measured against predicted for every schedule, over CrossPipe's grid of links.

    python benchmarks/virtual_grid.py [--ranks 4,8] [--sites 2,4] [--receives early,late] [--quick]
        [--recorded] [--out DIR]

P in {4, 8} x {2, 4} datacenters x early or late receives x the five (T_lat, T_bw)/T_F points of CrossPipe's tables,
M = 2P, memory for 2P microbatches so that every schedule fits. All cells of one P run in one boot. Prints a row per
cell and a row per schedule, with the worst error, and writes every comparison to --out. P = 8 sends quarter-size
messages over links a quarter as fast: the ratios are the same, and a boot takes half the time.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path

from harness import boots, options, report
from harness.options import ROOT
from harness.record import Topic
from harness.rows import Row

from testbed.plan.framing import wire_bytes
from testbed.plan.plan import Plan
from testbed.planning.resolve import generate, make_plan, with_cases
from testbed.planning.schedules import choose
from testbed.schedule.registry import FAMILIES, Generated
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.vm import command

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


Cell = tuple[int, int, str, tuple[float, float]]
"""P, datacenters, receives, (T_lat, T_bw)/T_F."""


def name_of(cell: Cell) -> str:
    """Of its results."""
    ranks, sites, receives, (latency, wire) = cell
    return f"p{ranks}-dc{sites}-{receives}-lat{latency:g}-bw{wire:g}"


def training(cell: Cell, quick: bool, out: Path) -> command.GuestTraining:
    """One cell."""
    ranks, sites, receives, point = cell
    plan = plan_of(ranks, sites, settings(ranks, sites, *point, receives))
    return command.GuestTraining(with_cases(plan, *schedules(ranks, sites, point, quick)), out / name_of(cell))


def main() -> int:
    """Run the grid; 1 when an error exceeds the target or a ranking differs, 0 otherwise."""
    parser = options.parser(__doc__)
    parser.add_argument("--ranks", default="4,8", help="values of P, comma-separated")
    parser.add_argument("--sites", default="2,4", help="numbers of datacenters, comma-separated")
    parser.add_argument("--receives", default="early,late", help="when receives are posted, comma-separated")
    parser.add_argument("--quick", action="store_true", help="three schedules only")
    options.add_out(parser, "virtual-grid")
    asked = parser.parse_args()
    ranks, sites = ([int(word) for word in words.split(",")] for words in (asked.ranks, asked.sites))
    cells = list(product(ranks, sites, asked.receives.split(","), POINTS))
    asked.per_boot = len(cells) // len(ranks)
    taken = boots.take(asked, {name_of(cell): partial(training, cell, asked.quick) for cell in cells})
    report.show_worst(taken)
    by_schedule: dict[str, list[Row]] = defaultdict(list)
    for row in taken.rows:  # the worst first
        by_schedule[row.schedule].append(row)
    lines = [
        (name, len(rows), f"{rows[0].missed:.4%}", rows[0].plan, f"{statistics.median(r.missed for r in rows):.4%}")
        for name, rows in by_schedule.items()
    ]
    report.show_table("by schedule", ("schedule", "cells", "worst", "in", "median"), lines)
    claims = [
        report.truth(f"CrossPipe's grid of links, P = {p}, {receives} receives", taken, TARGET, rows, ranked=True)
        for p, receives in product(ranks, asked.receives.split(","))
        if (rows := [row for row in taken.rows if row.plan.startswith(f"p{p}-") and f"-{receives}-" in row.plan])
    ]
    return report.close(asked, Topic.TRUTH, taken, claims)


if __name__ == "__main__":
    sys.exit(main())
