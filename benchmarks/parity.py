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

import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from harness import options
from harness.local_training import (
    OPTIMIZERS,
    TOLERANCE,
    difference,
    memory_difference,
    scheduled,
    trained,
    workers,
)
from harness.options import ROOT
from harness.plans import made
from harness.record import Claim, Topic, finish

from testbed.errors import BadInput
from testbed.pipeline.memory import RankBytes
from testbed.schedule.registry import FAMILIES
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import Workload, load_workload
from testbed.train.data import load_corpus
from testbed.train.reference import Reference, train_reference

NETWORK = {
    "name": "pair",
    "datacenters": {"a": {"nodes": 16}, "b": {"nodes": 16}},
    "links": [{"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"}],
}
MESHES = ((2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 2, 2), (2, 2, 2), (1, 4, 2), (1, 2, 4), (4, 1, 1))
"""Replicas, pipeline ranks, tensor ranks."""
VARIANTS = {"early": {}, "late": {"receives": "late"}, "recompute": {"recompute": "true"}}
ITERATIONS, MICROBATCHES = 3, 4
PATIENCE = Deadline(1800, "whoever measures may stop a benchmark for minutes")

Mesh = tuple[int, int, int]


Case = tuple[str, str, str]
"""Variant, dtype, family."""


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


def judged(loop: Loop, job: Workload, family: str, expected: Reference) -> Cell:
    """Train with one schedule. Raises BadInput where the family has none for so many ranks."""
    case = scheduled(made(NETWORK, job), family)
    got = trained(loop, case, ITERATIONS, PATIENCE)
    worst, memory = difference(got, expected).worst, memory_difference(got, case)
    return Cell(worst, memory.by_kind, worst <= TOLERANCE[job.model.dtype] and memory.fine)


def mesh_of(text: str) -> Mesh:
    """A mesh as it is typed."""
    dp, pp, tp = map(int, text.split(","))
    return dp, pp, tp


def compare(cases: Sequence[Case], meshes: Sequence[Mesh]) -> dict[Case, dict[Mesh, Cell]]:
    """What came of every case on every mesh for which its family has a schedule; meshes of one size share workers."""
    found: dict[Case, dict[Mesh, Cell]] = defaultdict(dict)
    corpus = load_corpus()
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in sorted({math.prod(mesh) for mesh in meshes}):
            logs = Path(scratch) / str(ranks)
            logs.mkdir()
            with workers(ranks, logs, PATIENCE) as loop:
                for mesh in (mesh for mesh in meshes if math.prod(mesh) == ranks):
                    expected = {
                        dtype: train_reference(workload(mesh, dtype, "early"), corpus, ITERATIONS)
                        for dtype in {dtype for _, dtype, _ in cases}
                    }
                    for variant, dtype, family in cases:
                        try:
                            cell = judged(loop, workload(mesh, dtype, variant), family, expected[dtype])
                        except BadInput:  # no such schedule for so many ranks
                            continue
                        found[variant, dtype, family][mesh] = cell
                        held = ", ".join(f"{kind} {off:.1e}" for kind, off in cell.memory._asdict().items() if off)
                        print(
                            *mesh, variant, dtype, family, f"{shown(cell)}; held: {held}", file=sys.stderr, flush=True
                        )
    return found


def shown(cell: Cell | None) -> str:
    """In the table; None where there is no such schedule for so many ranks."""
    return "none" if cell is None else f"{cell.training:.0e}" + ("" if cell.fine else " TOO MUCH")


def claim_of(dtype: str, cells: Sequence[Cell], meshes: int) -> Claim:
    """That training in a dtype is that of one process, and takes the memory that is predicted."""
    wrong, worst = sum(not cell.fine for cell in cells), max((cell.training for cell in cells), default=math.inf)
    got = f"worst {worst:.0e}; {wrong} of {len(cells)} trainings beyond, or in memory"
    asked = f"<= {TOLERANCE[dtype]:g}, memory as predicted"
    what = f"training against one process, {meshes} meshes, {dtype}"
    return Claim(what, asked, got, bool(cells) and not wrong, worst if cells else None, "relative")


def main() -> int:
    """Train all that is asked for; 1 where something is not as one process has it."""
    parser = options.parser(__doc__)
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES))
    parser.add_argument("--mesh", action="append", metavar="DP,PP,TP", type=mesh_of)
    parser.add_argument("--variant", action="append", choices=sorted(VARIANTS))
    parser.add_argument("--dtype", action="append", choices=sorted(TOLERANCE))
    asked = parser.parse_args()
    meshes, dtypes = asked.mesh or MESHES, asked.dtype or list(TOLERANCE)
    cases = list(product(asked.variant or VARIANTS, dtypes, asked.family or sorted(FAMILIES)))
    found = compare(cases, meshes)
    print("| variant | dtype | schedule |", " | ".join(",".join(map(str, mesh)) for mesh in meshes), "|")
    print("| --- " * (3 + len(meshes)) + "|")
    for case in cases:
        print("|", " | ".join([*case, *(shown(found[case].get(mesh)) for mesh in meshes)]), "|")
    claims = [
        claim_of(dtype, [cell for case, row in found.items() if case[1] == dtype for cell in row.values()], len(meshes))
        for dtype in dtypes
    ]
    return finish(asked, Topic.TRUTH, claims, clock="none: no network")


if __name__ == "__main__":
    sys.exit(main())
