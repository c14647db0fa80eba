"""Several connections for every pair of ranks under the virtual clock, on plans drawn at random.

    python benchmarks/streams.py [--plans 30] [--first 0] [--schedules 2] [--seed 1] [--per-boot 15] [--recorded]
        [--out DIR]

1, 2, 3, 4 or 16 streams; messages of 1 kB to 1 MB and odd sizes; early or late receives; three datacenters in a chain
whose links differ in either direction, so that some messages cross two. One pipeline; the same behind network cards;
with replicas (ZeRO-1 or plain all-reduce, ring or hierarchical); with tensor ranks; and two jobs, of which the second
has streams of its own. Prints the worst runs by what they miss of the prediction, or of its range.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import boots, options, plans, report
from harness.record import Topic

from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose, make, with_selected
from testbed.vm import command

TARGET = 0.0005
SLOT_S = 0.02
STREAMS = (1, 2, 3, 4, 16)
KINDS = ("pipeline", "cards", "replicas", "tensor", "two jobs", "replicas and cards")
SITES = ("oslo", "bonn", "rome")


def topology_of(draw: random.Random, nodes: int, message: float, least_bps: float, *, cards: bool) -> dict[str, Any]:
    """A chain of datacenters, each with so many nodes; whatever their cards carry in a slot, they can."""

    def direction() -> dict[str, str]:
        wire_s = SLOT_S * 10 ** draw.uniform(-1.2, 0.2)
        return {"delay": f"{10 ** draw.uniform(0, 1.5):.3f} ms", "rate": f"{max(8 * message / wire_s, 2e6):.0f} bit/s"}

    def site() -> dict[str, Any]:
        card = {"delay": f"{draw.randint(5, 60)} us", "rate": f"{least_bps * 10 ** draw.uniform(0, 0.8):.0f} bit/s"}
        return {"nodes": nodes} | ({"inside": card} if cards else {})

    links = [{"between": list(pair), "forward": direction(), "reverse": direction()} for pair in pairwise(SITES)]
    return {"name": "chain", "datacenters": {name: site() for name in SITES}, "links": links}


def workload_of(
    draw: random.Random, kind: str, streams: int, message: float, first_node: int, schedules: int
) -> dict[str, Any]:
    """A job whose ranks have the nodes of every datacenter from this one on."""
    pipeline, tensor = draw.choice((2, 3, 4)), 2 if kind == "tensor" else 1
    replicas = draw.choice((2, 3)) if kind.startswith("replicas") else 1
    free = {name: iter(range(first_node, 1000)) for name in SITES}
    turned = draw.choice((0, 1, 2))
    placed = [
        [
            f"{name}/{next(free[name])}"
            for rank in range(pipeline)
            for name in [SITES[(turned + replica + rank * len(SITES) // pipeline) % len(SITES)]]
            for _ in range(tensor)
        ]
        for replica in range(replicas)
    ]
    job: dict[str, Any] = {
        "name": f"{kind.replace(' ', '-')}-{first_node}",
        "model": {"layers": 2 * pipeline, "d_model": 16, "heads": 4, "sequence": 8},
        "parallelism": {"pipeline": pipeline, "data": replicas, "tensor": tensor},
        "microbatches": 2 * draw.randint(1, pipeline) + 1,
        "microbatch_size": 1,
        "placement": placed[0],
        "pacing": plans.slots(draw, pipeline, SLOT_S, 0.7, 1.4),
        "message": f"{message:.0f} B",
        "memory": 16,
        "streams": streams,
        "receives": draw.choice(("early", "late")),
        "schedules": draw.sample(plans.quick_schedules(), schedules),
        "iterations": 1,
        "warmup": 1,
    }
    if replicas > 1:
        job["data_parallel"] = {
            "parameters": f"{10 ** draw.uniform(5.2, 6.0):.0f} B",
            "sharding": draw.choice(("zero-1", "none")),
            "algorithm": draw.choice(("ring", "ring", "hierarchical")),
            "replicas": placed[1:],
        }
    return job


def documents(number: int, seed: int, schedules: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The topology and the workloads of a plan, as files say it."""
    draw = random.Random(f"streams/{seed}/{number}")
    kind, streams = KINDS[number % len(KINDS)], STREAMS[number % len(STREAMS)]
    message = 10 ** draw.uniform(3, 6)
    jobs = [workload_of(draw, kind, streams, message, 0, schedules)]
    nodes = [sum(map(len, [jobs[0]["placement"], *jobs[0].get("data_parallel", {}).get("replicas", ())]))]
    if kind == "two jobs":
        jobs.append(workload_of(draw, kind, draw.choice(STREAMS), message, nodes[0], schedules))
        jobs[1] |= {"receives": jobs[0]["receives"], "schedules": jobs[0]["schedules"]}
        nodes.append(len(jobs[1]["placement"]))
    cards = kind in ("cards", "tensor", "replicas and cards")
    return topology_of(draw, sum(nodes), message, 8 * (message + 20_000) / (0.3 * SLOT_S), cards=cards), jobs


def training(
    number: int, out: Path, name: str, seed: int, schedules: int, settings: Sequence[str] = ()
) -> command.GuestTraining:
    """A plan written, loaded and with its schedules made. Raises BadInput where one does not fit."""
    topology, jobs = documents(number, seed, schedules)
    files = [plans.write(out, name if not job else f"{name}-{job}", topology, each) for job, each in enumerate(jobs)]
    plan = load_plan(files[0][0], *(workload for _, workload in files), settings=settings)
    made = [make(plan, choose(plan, job=job), job=job) for job in range(len(jobs))]
    return command.GuestTraining(with_selected(plan, made), out / name)


def main() -> int:
    """Run the plans; 1 when one misses its prediction by more than TARGET or a run is untrusted, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "streams", plans=30, per_boot=15, schedules=2)
    asked = parser.parse_args()
    names = {f"plan-{number:03d}": number for number in options.numbers(asked)}
    every = {
        name: partial(training, number, name=name, seed=asked.seed, schedules=asked.schedules)
        for name, number in names.items()
    }
    taken = boots.take(asked, every)
    columns: report.Columns = {
        "kind": lambda row: KINDS[names[row.plan] % len(KINDS)],
        "streams": lambda row: taken.workload(row.plan)["streams"],
        "message": lambda row: taken.workload(row.plan)["message"],
        "receives": lambda row: taken.workload(row.plan)["receives"],
    }
    report.show_worst(taken, columns)
    counts = sorted({taken.workload(row.plan)["streams"] for row in taken.rows})
    what = f"{', '.join(map(str, counts))} streams for every pair of ranks, seed {asked.seed}"
    claims = [report.truth(what, taken, TARGET)]
    return report.close(asked, Topic.TRUTH, taken, claims)


if __name__ == "__main__":
    sys.exit(main())
