"""Does a training that swaps its schedule again and again stay the training that one process does?

    python benchmarks/schedule_swaps.py [--swaps 12] [--out DIR] [--record [NAME]]
    python benchmarks/schedule_swaps.py --drawn 12 --swaps 3 [--first 0] [--record NAME]

Eight jobs on the virtual clock: a pipeline of four, two replicas of one, one with two tensor ranks and unequal stages,
and five whose stages move to other ranks, and their weights with them: a pipeline, two replicas, and three, whose
gradients go inside datacenters first, each with a whole optimizer and with shards of one. After every measured
iteration each goes on with another schedule, in an order drawn by seed. Losses, gradients and weights are compared with
one process, each iteration with its prediction or the range of it, what ranks executed with the schedule that they
should, and what weights took to move, and put on the wire, with what they should. Prints the furthest of each, and
exits with 1 where a part of a training is not trusted.

With --drawn, as many jobs drawn by seed instead, all with stages that move: one to three replicas, which share an
optimizer or not, anywhere in three datacenters whose links are unlike in delay, rate and direction.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, each, finish
from harness.rows import Row, rows_of

NEAR = 5e-4
LIMIT_S = 1800.0
SCHEDULES = ("gpipe", "1f1b", "zb-h1", "crosspipe-greedy", "geopipe")
_AGAINST_ONE = ("off one process's", "one by one")
"""How the questions end that compare with a training in one process."""
MOVING_JOBS = ("stages", "replicas that move", "three that move", "shards that move", "three that share")
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
    "shards that move": (
        *("parallelism.data=2", "parallelism.pipeline=2", "microbatches=5", "memory=6", "model.layers=7"),
    ),
    "three that share": (
        *("parallelism.data=3", "parallelism.pipeline=2", "microbatches=4", "memory=6", "model.layers=9"),
        *("data_parallel={algorithm: hierarchical, chunks: 3}", "receives=late", "streams=2"),
    ),
    "tensor": ("parallelism.tensor=2", "parallelism.pipeline=2", "microbatches=7"),
}
"""Settings over the demo's workload, by what is unlike it."""


def schedules(name: str) -> tuple[str, ...]:
    """What a job swaps between."""
    return MOVING if name in MOVING_JOBS else SCHEDULES


def swaps(count: int, seed: int, name: str, labels: Sequence[str]) -> list[str]:
    """What comes first, and then after each measured iteration: never the same as before."""
    draw, found = random.Random(f"swaps/{seed}/{name}"), [labels[0]]
    for _ in range(count):
        found.append(draw.choice([label for label in labels if label != found[-1]]))
    return found


class Swapping(NamedTuple):
    """A job, and what it swaps between."""

    topology: str
    settings: Sequence[str]
    labels: Sequence[str]


def drawn(number: int, place: Path) -> Swapping:
    """A job whose stages move, and the network that it is on, whose file is written there."""
    draw = random.Random(f"swapping/{number}")
    replicas, ranks, tensor = draw.choice((1, 2, 2, 3)), draw.choice((2, 2, 3)), draw.choice((1, 1, 2))
    sites = "abc"
    links = [
        {
            "between": list(pair),
            "forward": {"delay": f"{draw.uniform(0.3, 60):.2f} ms", "rate": f"{draw.randint(200, 1000)} Mbit/s"},
            "reverse": {"delay": f"{draw.uniform(0.3, 60):.2f} ms", "rate": f"{draw.randint(200, 1000)} Mbit/s"},
        }
        for pair in draw.sample(("ab", "bc", "ac"), draw.choice((2, 3)))
    ]
    nodes = replicas * ranks * tensor
    topology = place / f"drawn-{number}.yaml"
    document = {"name": "drawn", "datacenters": {site: {"nodes": nodes} for site in sites}, "links": links}
    topology.write_text(json.dumps(document))
    free = {site: iter(range(nodes)) for site in sites}

    def pipeline() -> str:
        placed = [draw.choice(sites) for _ in range(ranks)]
        return f"[{','.join(f'{site}/{next(free[site])}' for site in placed for _ in range(tensor))}]"

    first, *others = (pipeline() for _ in range(replicas))
    algorithm = draw.choice(("ring", "hierarchical", "direct"))
    settings = [
        f"parallelism={{data: {replicas}, pipeline: {ranks}, tensor: {tensor}}}",
        f"placement={first}",
        f"microbatches={draw.choice((3, 4, 5, 7)) if replicas < 3 else 3}",
        f"model.layers={draw.randint(2 * ranks, 3 * ranks + 1)}",
        f"optimizer.kind={draw.choice(('adamw', 'sgd'))}",
        f"streams={draw.choice((1, 1, 3))}",
        f"receives={draw.choice(('early', 'early', 'late'))}",
        f"message={draw.randint(66, 400)} kB",
        "memory=12",
    ]
    if replicas > 1:
        sharding = draw.choice(("none", "zero-1", "zero-1"))
        shared = f"sharding: {sharding}, algorithm: {algorithm}, replicas: [{','.join(others)}]"
        settings.append(f"data_parallel={{{shared}}}")
    return Swapping(str(topology), settings, MOVING)


def swapping(drawn_jobs: range, place: Path) -> dict[str, Swapping]:
    """All jobs by name: those that are drawn, or ours."""
    if drawn_jobs:
        return {f"drawn {number}": drawn(number, place) for number in drawn_jobs}
    return {name: Swapping("two-dc-longhaul", JOBS[name], schedules(name)) for name in JOBS}


def trained(job: Swapping, order: Sequence[str], out: Path) -> dict[str, Any]:
    """comparison.json of a job that was trained so."""
    words = ["run", job.topology, "tiny-gpt-pp4", "--clock", "virtual", "--iterations", str(len(order))]
    words += [word for label in job.labels for word in ("--schedule", label)]
    words += [word for setting in job.settings for word in ("--set", setting)]
    words += [word for after, label in enumerate(order[1:], 1) for word in ("--swap", f"{label}@{after}")]
    command = [sys.executable, "-m", "testbed", *words, "--no-picture", "--quiet", "--overwrite", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
    if done.returncode not in (0, 5):
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}")
    document: dict[str, Any] = json.loads((out / "comparison.json").read_text())
    return document


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--swaps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=0, help="jobs to draw, and train instead of ours")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--out", type=Path, help="where results go; default: nowhere afterwards")
    arguments = parser.parse_args()
    rows, held, moved = list[dict[str, Any]](), list[Row](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="testbed-swaps-") as scratch:
        jobs = swapping(range(arguments.first, arguments.first + arguments.drawn), Path(scratch))
        for name, job in jobs.items():
            order = swaps(arguments.swaps, arguments.seed, name, job.labels)
            document = trained(job, order, (arguments.out or Path(scratch)) / name)
            found = document["schedules"]
            weights = [entry for event in document["events"] for entry in event.get("weights", ())]
            moved += [entry for entry in weights if entry["planned_wire_bytes"]]  # else it is within datacenters
            for one in weights:
                print(f"{name}: moved in {one['took_s']:.6f} s, {one['predicted_s']:.6f} s predicted")
            for row in found:
                print(f"{name}: {row['label']}: {row['error']:+.4%}, {'; '.join(row['reasons']) or 'trusted'}")
            rows += found
            held += rows_of(name, document, {})
    numerics = [check["ok"] for row in rows for check in row["checks"] if check["question"].endswith(_AGAINST_ONE)]
    untrusted = sum(not row["trusted"] for row in rows)
    worst = max(row.missed for row in held)
    took = max((abs(one["took_s"] / one["predicted_s"] - 1) for one in moved), default=0.0)
    carried = max((abs(one["wire_bytes"] / one["planned_wire_bytes"] - 1) for one in moved), default=0.0)
    sizes = [one["moved_bytes"] / 1e6 for one in moved]
    parts = f"parts of {len(jobs)} {'drawn ' if arguments.drawn else ''}trainings with {arguments.swaps} swaps each"
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
            f"weights that move{' in drawn trainings' if arguments.drawn else ''}, {len(moved)} times: seconds that "
            "the swap took against the model, bytes on the wire",
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
