"""Under the virtual clock: pipeline, data and tensor parallelism together, measured against predicted.

    python benchmarks/hybrid_grid.py [--meshes 2x2x1,...] [--real] [--every 7] [--per-boot 6] [--recorded] [--out DIR]

Every (dp, pp, tp) below x what crosses the wide area (the data axis, the pipeline axis, both) x three network points x
1f1b, zb-h1 and crosspipe-greedy. The three datacenters are joined by unequal, asymmetric links, so that replicas travel
over different ones; stages are unequal, the number of microbatches is odd, and sizes are drawn anew for every plan.
Prints the worst cells and the median, and whether measuring ranks the schedules as predicted; writes every comparison
to --out. With --real, every plan in a run of its own on the real clock.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from harness import boots, options, plans, report
from harness.record import Topic

from testbed.vm import command

SCHEDULES = ["1f1b", "zb-h1", "crosspipe-greedy"]
MESHES = ((2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 2, 2), (2, 2, 2), (1, 4, 2), (4, 1, 1))
AXES = ("data", "pipeline", "both")
POINTS = ((0.1, 0.1), (0.5, 1.0), (2.0, 0.25))
"""(one-way delay, time of a boundary message on the wire) of the first link, over a forward."""
FORWARD_S = 0.02
SITES = ("oslo", "bonn", "rome")
WORST, MEDIAN, WORST_REAL = 0.002, 0.0005, 0.03


class Cell(NamedTuple):
    """One plan: a mesh, what crosses the wide area, a point of the network."""

    mesh: tuple[int, int, int]
    axis: str
    point: tuple[float, float]

    @property
    def name(self) -> str:
        """Of its files."""
        dp, pp, tp = self.mesh
        return f"dp{dp}-pp{pp}-tp{tp}-{self.axis}-{POINTS.index(self.point)}"


def cells(meshes: tuple[tuple[int, int, int], ...]) -> list[Cell]:
    """All of them; an axis of extent 1 crosses nothing."""
    crossing = {"data": (True, False), "pipeline": (False, True), "both": (True, True)}
    return [
        Cell(mesh, axis, point)
        for mesh, axis, point in product(meshes, AXES, POINTS)
        if (mesh[0] > 1 or not crossing[axis][0]) and (mesh[1] > 1 or not crossing[axis][1])
    ]


def sites(cell: Cell) -> list[list[str]]:
    """Per replica and pipeline rank, the datacenter."""
    dp, pp, _ = cell.mesh
    by_replica = [[SITES[replica % 3]] * pp for replica in range(dp)]
    by_stage = [[SITES[0]] * ((pp + 1) // 2) + [SITES[1]] * (pp // 2) for _ in range(dp)]
    turned = [[SITES[(replica + (rank >= (pp + 1) // 2)) % 3] for rank in range(pp)] for replica in range(dp)]
    return {"data": by_replica, "pipeline": by_stage, "both": turned}[cell.axis]


def topology(cell: Cell, draw: random.Random, message: float) -> dict[str, Any]:
    """Three datacenters, every pair of them joined, every direction with a delay and a rate of its own."""
    delay_s, wire_s = (share * FORWARD_S for share in cell.point)

    def direction() -> dict[str, str]:
        factor, other = draw.uniform(0.6, 1.6), draw.uniform(0.6, 1.6)
        return {"delay": f"{factor * delay_s * 1e3:.3f} ms", "rate": f"{8 * message / (other * wire_s):.0f} bit/s"}

    pairs = [(a, b) for a, b in product(SITES, SITES) if a < b]
    needed = [site for replica in sites(cell) for site in replica]
    datacenters = {site: {"nodes": max(1, cell.mesh[2] * needed.count(site))} for site in SITES}
    links = [{"between": list(pair), "forward": direction(), "reverse": direction()} for pair in pairs]
    return {"name": "triangle", "datacenters": datacenters, "links": links}


def workload(cell: Cell, draw: random.Random, message: float) -> dict[str, Any]:
    """Unequal stages, an odd number of microbatches."""
    dp, pp, tp = cell.mesh
    free = {site: iter(range(1000)) for site in SITES}
    placed = [[f"{site}/{next(free[site])}" for site in replica for _ in range(tp)] for replica in sites(cell)]

    document = {
        "name": cell.name,
        "model": {"layers": 2 * pp, "d_model": 32, "heads": 4, "sequence": 16},
        "parallelism": {"pipeline": pp, "data": dp, "tensor": tp},
        "microbatches": 2 * draw.randint(pp, 2 * pp) + 1,
        "microbatch_size": 1,
        "placement": placed[0],
        "pacing": plans.slots(draw, pp, FORWARD_S, 0.6, 1.4),
        "message": f"{message:.0f} B",
        "memory": 2 * pp,
        "schedules": SCHEDULES,
        "iterations": 2,
        "warmup": 1,
    }
    if dp > 1:
        document["data_parallel"] = {"parameters": f"{10 ** draw.uniform(5.5, 6.5):.0f} B", "replicas": placed[1:]}
    return document


def training(cell: Cell, out: Path) -> command.GuestTraining:
    """A cell as files and as a plan."""
    draw = random.Random(cell.name)
    message = 10 ** draw.uniform(4.5, 5.7)
    return plans.training(out, cell.name, topology(cell, draw, message), workload(cell, draw, message))


def main() -> int:
    """Run the grid; 1 when an error exceeds its limit, a run is untrusted or a ranking differs, 0 otherwise."""
    parser = options.parser(__doc__)
    parser.add_argument("--meshes", default="", help="dp x pp x tp, comma-separated: 2x2x1,4x1x1; default: all")
    parser.add_argument("--real", action="store_true", help="on the real clock")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth cell alone")
    options.add_per_boot(parser, 6)
    options.add_out(parser, "hybrid-grid")
    asked = parser.parse_args()
    meshes = [tuple(map(int, mesh.split("x"))) for mesh in asked.meshes.split(",") if mesh]
    chosen = cells(tuple((dp, pp, tp) for dp, pp, tp in meshes) or MESHES)[:: asked.every]
    made = {cell.name: partial(training, cell) for cell in chosen}
    taken = boots.take(asked, made, real=("--iterations", "6", "--set", "warmup=2") if asked.real else None)
    report.show_worst(taken)
    clock, limits = ("real", (WORST_REAL, None)) if asked.real else ("virtual", (WORST, MEDIAN))
    what = f"replicas, stages and tensor ranks over three datacenters, {clock} clock"
    claim = report.truth(what, taken, limits[0], median=limits[1], ranked=True)
    return report.close(asked, Topic.TRUTH, taken, [claim], clock=clock)


if __name__ == "__main__":
    sys.exit(main())
