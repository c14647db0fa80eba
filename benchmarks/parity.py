"""Does every schedule train what one process trains, however replicas, stages and tensor ranks share the work?

    python benchmarks/parity.py [--family NAME]... [--mesh DP,PP,TP]... [--variant NAME]... [--dtype NAME]...

Real workers on this machine, connected over loopback, without containers: for every family of schedules and every mesh
(replicas, pipeline ranks, tensor ranks) losses and gradients of three iterations, with optimizer steps between them,
are held against those of one process with the same global batch, and the bytes that every rank holds against those
predicted. In float64 the optimizer is AdamW, whose states are sharded over replicas and tensor ranks here and not
there; in float32 it is SGD. A Markdown table of the worst relative differences of the training, and on stderr those of
memory; exit code 1 where one is too large.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import NamedTuple

from local_training import (
    OPTIMIZERS,
    TOLERANCE,
    difference,
    memory_difference,
    scheduled,
    trained,
    workers,
)

from testbed.errors import BadInput
from testbed.pipeline.memory import RankBytes
from testbed.plan.plan import Plan
from testbed.planning.resolve import make_plan
from testbed.schedule.registry import FAMILIES
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import Workload, load_topology, load_workload
from testbed.train.data import load_corpus
from testbed.train.reference import Reference, train_reference

ROOT = Path(__file__).parents[1]
NETWORK = """
name: pair
datacenters: {a: {nodes: 16}, b: {nodes: 16}}
links: [{between: [a, b], delay: 1 ms, rate: 1 Gbit/s}]
"""
MESHES = ((2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 2, 2), (2, 2, 2), (1, 4, 2), (1, 2, 4), (4, 1, 1))
"""Replicas, pipeline ranks, tensor ranks."""
VARIANTS = {"early": {}, "late": {"receives": "late"}, "recompute": {"recompute": "true"}}
ITERATIONS, MICROBATCHES = 3, 4
PATIENCE = Deadline(1800, "whoever measures may stop a benchmark for minutes")

Mesh = tuple[int, int, int]


class Cell(NamedTuple):
    """What came of one schedule."""

    training: float
    """The largest relative difference of losses, gradients and norms."""
    memory: RankBytes
    """Those of what ranks held from what was predicted, by kind."""
    fine: bool


def workload(mesh: Mesh, dtype: str, variant: str) -> Workload:
    replicas, ranks, tensor = mesh
    settings = {
        "parallelism": f"{{pipeline: {ranks}, data: {replicas}, tensor: {tensor}}}",
        "microbatches": str(MICROBATCHES),
        "model": f"{{layers: 8, d_model: 32, heads: 4, sequence: 16, dtype: {dtype}}}",
        "microbatch_size": "2",
        "message": "20 kB",
        "pacing": "{F: 0.3 ms, I: 0.2 ms, W: 0.4 ms}",
        "memory": str(2 * MICROBATCHES),
        "optimizer": OPTIMIZERS[dtype],
        **VARIANTS[variant],
    }
    return load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)


def plan_of(job: Workload) -> Plan:
    """On the network of this benchmark."""
    with tempfile.TemporaryDirectory() as scratch:
        topology = Path(scratch) / "pair.yaml"
        topology.write_text(NETWORK)
        return make_plan(load_topology(topology), job)


def judged(loop: Loop, job: Workload, family: str, expected: Reference) -> Cell:
    """Train with one schedule. Raises BadInput where the family has none for so many ranks."""
    case = scheduled(plan_of(job), family)
    got = trained(loop, case, ITERATIONS, PATIENCE)
    worst, memory = difference(got, expected).worst, memory_difference(got, case)
    return Cell(worst, memory.by_kind, worst <= TOLERANCE[job.model.dtype] and memory.fine)


def compare(arguments: argparse.Namespace) -> bool:
    """Print a table of every family, a column per mesh; returns whether all differences are small enough."""
    meshes: list[Mesh] = [
        (int(dp), int(pp), int(tp)) for dp, pp, tp in (text.split(",") for text in arguments.mesh or ())
    ]
    meshes = meshes or list(MESHES)
    families = arguments.family or sorted(FAMILIES)
    cells = list(product(arguments.variant or VARIANTS, arguments.dtype or TOLERANCE, families))
    corpus, fine = load_corpus(), True
    table: dict[tuple[str, ...], dict[Mesh, str]] = {cell: {} for cell in cells}
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in sorted({math.prod(mesh) for mesh in meshes}):
            logs = Path(scratch) / str(ranks)
            logs.mkdir()
            with workers(ranks, logs, PATIENCE) as loop:
                for mesh in (mesh for mesh in meshes if math.prod(mesh) == ranks):
                    expected = {
                        dtype: train_reference(workload(mesh, dtype, "early"), corpus, ITERATIONS)
                        for dtype in {dtype for _, dtype, _ in cells}
                    }
                    for variant, dtype, family in cells:
                        try:
                            found = judged(loop, workload(mesh, dtype, variant), family, expected[dtype])
                        except BadInput:  # no such schedule for so many ranks
                            table[variant, dtype, family][mesh] = "none"
                            continue
                        fine &= found.fine
                        shown = f"{found.training:.0e}" + ("" if found.fine else " TOO MUCH")
                        table[variant, dtype, family][mesh] = shown
                        held = ", ".join(f"{kind} {off:.1e}" for kind, off in found.memory._asdict().items() if off)
                        print(*mesh, variant, dtype, family, f"{shown}; held: {held}", file=sys.stderr, flush=True)
    print("| variant | dtype | schedule |", " | ".join(",".join(map(str, mesh)) for mesh in meshes), "|")
    print("| --- " * (3 + len(meshes)) + "|")
    for cell, row in table.items():
        print("|", " | ".join([*cell, *(row[mesh] for mesh in meshes)]), "|")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES))
    parser.add_argument("--mesh", action="append", metavar="DP,PP,TP")
    parser.add_argument("--variant", action="append", choices=sorted(VARIANTS))
    parser.add_argument("--dtype", action="append", choices=sorted(TOLERANCE))
    return 0 if compare(parser.parse_args()) else 1


if __name__ == "__main__":
    sys.exit(main())
