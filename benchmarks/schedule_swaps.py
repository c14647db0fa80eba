"""Does a training that swaps its schedule again and again stay the training that one process does?

    python benchmarks/schedule_swaps.py [--swaps 12] [--out DIR] [--record [NAME]]

Six jobs on the virtual clock: a pipeline of four, two replicas of one, one with two tensor ranks and unequal stages,
and three whose stages move to other ranks, and their weights with them: a pipeline, two replicas, and three, whose
gradients go inside datacenters first. After every measured iteration each goes
on with another schedule, in an order drawn by seed. Losses, gradients and weights are compared with one process, each
iteration with its prediction, what ranks executed with the schedule that they should, and what weights took to move,
and put on the wire, with what they should. Prints the furthest of each, and exits with 1 where a part of a training is
not trusted.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, each, finish

NEAR = 5e-4
LIMIT_S = 1800.0
SCHEDULES = ("gpipe", "1f1b", "zb-h1", "crosspipe-greedy", "geopipe")
_AGAINST_ONE = ("off one process's", "one by one")
"""How the questions end that compare with a training in one process."""
MOVING_JOBS = ("stages", "replicas that move", "three that move")
MOVING = ("1f1b", "zb-v", "interleaved-1f1b", "crosspipe-greedy", "looped-bfs")
"""Stages of these are one on each rank, two in a V, or two in a loop."""
NEAR_BYTES = 0.02
JOBS = {
    "pipeline": (),
    "stages": ("memory=8", "model.layers=9"),
    "replicas": ("parallelism.data=2", "parallelism.pipeline=2", "microbatches=5"),
    "replicas that move": (
        *("parallelism.data=2", "parallelism.pipeline=2", "microbatches=5", "memory=6", "model.layers=7"),
        "data_parallel.sharding=none",
    ),
    "three that move": (
        *("parallelism.data=3", "parallelism.pipeline=2", "microbatches=4", "memory=6", "optimizer.kind=sgd"),
        *("data_parallel={sharding: none, algorithm: hierarchical}", "streams=2", "receives=late"),
    ),
    "tensor": ("parallelism.tensor=2", "parallelism.pipeline=2", "microbatches=7"),
}
"""Settings over the demo's workload, by what is unlike it."""


def schedules(name: str) -> tuple[str, ...]:
    """What a job swaps between."""
    return MOVING if name in MOVING_JOBS else SCHEDULES


def swaps(count: int, seed: int, name: str) -> list[str]:
    """What comes first, and then after each measured iteration: never the same as before."""
    labels = schedules(name)
    draw, found = random.Random(f"swaps/{seed}/{name}"), [labels[0]]
    for _ in range(count):
        found.append(draw.choice([label for label in labels if label != found[-1]]))
    return found


def trained(name: str, order: Sequence[str], out: Path) -> dict[str, Any]:
    """comparison.json of a job that was trained so."""
    words = ["run", "two-dc-longhaul", "tiny-gpt-pp4", "--clock", "virtual", "--iterations", str(len(order))]
    words += [word for label in schedules(name) for word in ("--schedule", label)]
    words += [word for setting in JOBS[name] for word in ("--set", setting)]
    words += [word for after, label in enumerate(order[1:], 1) for word in ("--swap", f"{label}@{after}")]
    command = [sys.executable, "-m", "testbed", *words, "--no-picture", "--quiet", "--overwrite", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
    if done.returncode not in (0, 5):
        raise RuntimeError(f"{name}: exit code {done.returncode}")
    document: dict[str, Any] = json.loads((out / "comparison.json").read_text())
    return document


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--swaps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where results go; default: nowhere afterwards")
    arguments = parser.parse_args()
    rows, moved = list[dict[str, Any]](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="testbed-swaps-") as scratch:
        for name in JOBS:
            order = swaps(arguments.swaps, arguments.seed, name)
            document = trained(name, order, (arguments.out or Path(scratch)) / name)
            found = document["schedules"]
            moved += [entry for event in document["events"] for entry in event.get("weights", ())]
            for row in found:
                print(f"{name}: {row['label']}: {row['error']:+.4%}, {'; '.join(row['reasons']) or 'trusted'}")
            rows += found
    numerics = [check["ok"] for row in rows for check in row["checks"] if check["question"].endswith(_AGAINST_ONE)]
    untrusted = sum(not row["trusted"] for row in rows)
    worst = max(abs(row["error"]) for row in rows)
    took = max((abs(one["took_s"] / one["predicted_s"] - 1) for one in moved), default=0.0)
    carried = max((abs(one["wire_bytes"] / one["planned_wire_bytes"] - 1) for one in moved), default=0.0)
    sizes = [one["moved_bytes"] / 1e6 for one in moved]
    parts = f"parts of {len(JOBS)} trainings with {arguments.swaps} swaps each"
    claims = [
        each(f"{parts}: trusted, gradients and weights as one process's", untrusted, len(rows)),
        Claim(
            f"{parts}: against the model",
            f"<= {NEAR:.2%}",
            f"{len(rows)} rows, worst {worst:.4%}; {sum(numerics)} of {len(numerics)} questions of numbers passed",
            worst <= NEAR and all(numerics),
            value=worst,
            unit="share",
        ),
        Claim(
            f"weights that move, {len(moved)} times: seconds that the swap took against the model, bytes on the wire",
            f"<= {NEAR_BYTES:.0%} each",
            f"{min(sizes, default=0.0):.1f} to {max(sizes, default=0.0):.1f} MB moved, "
            f"seconds within {took:.2%}, bytes within {carried:.2%}",
            bool(moved) and took <= NEAR_BYTES and carried <= NEAR_BYTES,
            value=took,
            unit="share",
        ),
    ]
    return finish(arguments, Topic.TRUTH, claims)


if __name__ == "__main__":
    sys.exit(main())
