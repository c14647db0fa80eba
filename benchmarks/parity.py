"""Does every schedule train what one process trains, however replicas, stages and tensor ranks share the work?

    python benchmarks/parity.py [--family NAME]... [--mesh DP,PP,TP]... [--variant NAME]... [--dtype NAME]...

Real workers on this machine, connected over loopback, without containers: for every family of schedules and every mesh
(replicas, pipeline ranks, tensor ranks) losses and gradients of three iterations, with optimizer steps between them,
are held against those of one process with the same global batch. In float64 the optimizer is AdamW, whose states are
sharded over replicas and tensor ranks here and not there. In float32 it is SGD: AdamW divides by the gradient's own
size, which turns the rounding of a sum in another order into steps of its own. A Markdown table of the worst relative
differences; exit code 1 where one is too large.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.plan import costs
from testbed.plan.resolve import generate, make_plan
from testbed.schedule.registry import FAMILIES
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec import Workload, load_topology, load_workload
from testbed.spec.choice import ScheduleChoice
from testbed.train.data import load_corpus
from testbed.train.job import Job
from testbed.train.launcher import Launcher
from testbed.train.protocol import Place, WorldSpec
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
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
ITERATIONS, MICROBATCHES = 3, 4
SOLVER_LIMIT_S = 1.0
PATIENCE = Deadline(1800, "whoever measures may stop a benchmark for minutes")

Mesh = tuple[int, int, int]


class Difference(NamedTuple):
    """The largest relative differences from one process."""

    losses: float
    gradients: float
    norms: float
    """Of the gradients of each layer, put together from what every rank counts."""

    @property
    def worst(self) -> float:
        return max(self)


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
        "optimizer": "{kind: adamw}" if dtype == "float64" else "{kind: sgd, learning_rate: 0.1}",
        **VARIANTS[variant],
    }
    return load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)


@contextmanager
def workers(ranks: int, directory: Path) -> Iterator[Loop]:
    """So many workers, ready for jobs; `directory` gets their logs."""
    directory.mkdir()
    with Launcher(ranks) as launcher:
        world = WorldSpec(
            places=tuple(Place(None, "lo") for _ in range(ranks)),
            store=str(directory / "store"),
            timeout_s=PATIENCE.seconds,
            warmup_bytes=1000,
            neighbours=tuple((rank, rank + 1) for rank in range(ranks - 1)),
            logs=str(directory),
        )
        launcher.imported()
        loop = Loop([launcher])
        loop.start([world], PATIENCE)
        yield loop


def trained(loop: Loop, job: Job) -> tuple[list[float], dict[str, Any], list[float]]:
    """Losses per iteration, the gradients of the last one, and the norm of each layer's."""
    losses: list[float] = []
    gradients: dict[str, Any] = {}
    squares: dict[int, float] = {}
    for (records,) in loop.run([job], PATIENCE):
        losses.append(sum(record.loss for record in records if record.loss is not None))
    for record in records:
        for name, part in record.gradients.items():
            gradients[name] = gradients.get(name, 0.0) + part
        for layer, part in record.gradient_squares.items():
            squares[layer] = squares.get(layer, 0.0) + part
    return losses, gradients, [math.sqrt(squares[layer]) for layer in sorted(squares)]


def difference(loop: Loop, mesh: Mesh, family: str, dtype: str, variant: str, expected: Reference) -> Difference:
    """Train with one schedule. Raises BadInput where the family has none for so many ranks."""
    job_workload = workload(mesh, dtype, variant)
    with tempfile.TemporaryDirectory() as scratch:
        topology = Path(scratch) / "pair.yaml"
        topology.write_text(NETWORK)
        plan = make_plan(load_topology(topology), job_workload)
    choice = ScheduleChoice(schedule=family, time_limit_s=SOLVER_LIMIT_S if FAMILIES[family].solver else None)
    schedule, problem = generate(plan, choice).schedule, costs.problem(plan, choice)
    durations = tuple(tuple(problem.duration(action) for action in row) for row in schedule.rows)
    job = Job(schedule, job_workload, durations, ITERATIONS, problem.turn_s, keep_gradients=True)
    losses, gradients, norms = trained(loop, job)
    if gradients.keys() != expected.gradients.keys():
        return Difference(math.inf, math.inf, math.inf)
    return Difference(
        _relative(losses, expected.losses),
        max(_of_tensor(gradients[name], expected.gradients[name].numpy()) for name in gradients),
        _relative(norms, expected.gradient_norms[-1]),
    )


def _relative(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def _of_tensor(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def compare(arguments: argparse.Namespace) -> bool:
    """Print a table of every family, a column per mesh; returns whether all differences are small enough."""
    meshes = [tuple(map(int, text.split(","))) for text in arguments.mesh or ()] or list(MESHES)
    families = arguments.family or sorted(FAMILIES)
    cells = list(product(arguments.variant or VARIANTS, arguments.dtype or TOLERANCE, families))
    corpus, fine = load_corpus(), True
    table: dict[tuple[str, ...], dict[Mesh, str]] = {cell: {} for cell in cells}
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in sorted({math.prod(mesh) for mesh in meshes}):
            with workers(ranks, Path(scratch) / str(ranks)) as loop:
                for mesh in (mesh for mesh in meshes if math.prod(mesh) == ranks):
                    expected = {
                        dtype: train_reference(workload(mesh, dtype, "early"), corpus, ITERATIONS)
                        for dtype in {dtype for _, dtype, _ in cells}
                    }
                    for variant, dtype, family in cells:
                        try:
                            found = difference(loop, mesh, family, dtype, variant, expected[dtype])
                        except BadInput:  # no such schedule for so many ranks
                            table[variant, dtype, family][mesh] = "none"
                            continue
                        small = found.worst <= TOLERANCE[dtype]
                        fine &= small
                        table[variant, dtype, family][mesh] = f"{found.worst:.0e}" + ("" if small else " TOO MUCH")
                        print(*mesh, variant, dtype, family, f"{found.worst:.0e}", file=sys.stderr, flush=True)
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
