"""Messages at one instant under the virtual clock: one guest plays all ranks, and must not delay one by another.

    python benchmarks/messages_at_once.py [--plans 12] [--first 0] [--seed 1] [--recorded] [--out DIR]

Replicas (2 to 6) and tensor ranks (1, 2 or 4) of one or two stages in one datacenter, with and without network cards,
slots of 1 to 20 ms, every way of exchanging parameters and gradients, shards of 60 to 300 kB; one schedule each. A
kernel whose clock takes 256 ns to read makes such iterations longer by up to 5 % (vm/kernel.py has the edit).
"""

from __future__ import annotations

import random
import sys
from functools import partial
from typing import Any

from harness import boots, options, report
from harness.record import Topic

TARGET = 0.0005
SHAPES = ((1, 2, 1), (1, 4, 1), (1, 6, 1), (1, 3, 2), (1, 2, 4), (2, 2, 2), (2, 3, 1), (1, 3, 4))
"""Stages, replicas, tensor ranks."""


def documents(number: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The topology and the workload of a plan, as files say it."""
    draw = random.Random(f"guest-costs/{seed}/{number}")
    pipeline, data, tensor = SHAPES[number % len(SHAPES)]
    card = {"inside": {"delay": "10 us", "rate": "10 Gbit/s"}} if draw.random() < 0.3 else {}
    topology = {
        "name": "one-site",
        "datacenters": {"a": {"nodes": pipeline * data * tensor} | card, "b": {"nodes": 1}},
        "links": [{"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"}],
    }
    places = [f"a/{node}" for node in range(pipeline * data * tensor)]
    each = pipeline * tensor
    slot_ms = 10 ** draw.uniform(0, 1.3)
    workload = {
        "name": "at-once",
        "model": {"layers": 2 * pipeline, "d_model": 16, "heads": 4, "sequence": 8},
        "parallelism": {"pipeline": pipeline, "data": data, "tensor": tensor},
        "microbatches": draw.choice((1, 2, 4)),
        "microbatch_size": 1,
        "placement": places[:each],
        "pacing": {kind: f"{slot_ms * draw.uniform(0.7, 1.3):.3f} ms" for kind in ("F", "I", "W")},
        "message": "20 kB",
        "memory": 16,
        "schedules": [draw.choice(("1f1b", "gpipe", "zb-h1"))],
        "data_parallel": {
            "sharding": draw.choice(("zero-1", "none")),
            "algorithm": draw.choice(("ring", "hierarchical")),
            "parameters": f"{10 ** draw.uniform(4.8, 5.5) * data:.0f} B",
            "replicas": [places[n * each : (n + 1) * each] for n in range(1, data)],
        },
        "receives": draw.choice(("early", "late")),
        "iterations": 2,
        "warmup": 1,
    }
    return topology, workload


def main() -> int:
    """Measure them; 1 where one misses its prediction by more than TARGET or is untrusted, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "messages-at-once", plans=12, per_boot=20)
    asked = parser.parse_args()
    taken = boots.drawn(asked, partial(documents, seed=asked.seed))
    columns: report.Columns = {
        "stages x replicas x tensor": lambda row: " x ".join(
            map(str, taken.workload(row.plan)["parallelism"].values())
        ),
        "exchange": lambda row: "{sharding} {algorithm}".format(**taken.workload(row.plan)["data_parallel"]),
    }
    report.show_worst(taken, columns)
    claim = report.truth(f"messages of collectives at one instant, seed {asked.seed}", taken, TARGET)
    return report.close(asked, Topic.TRUTH, taken, [claim])


if __name__ == "__main__":
    sys.exit(main())
