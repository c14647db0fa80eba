"""Under the virtual clock: do predictions that are ranges hold? Random plans with late receives and tensor ranks.

    python benchmarks/ranges.py [--plans 300] [--first 0] [--seed 1] [--per-boot 20] [--recorded] [--out DIR]

Half of the plans have late receives, half tensor ranks (early or late); 2 to 12 ranks in 2 to 5 datacenters, a delay
and a rate of every direction for itself, some with network cards, some with replicas, some with equal slots and links;
odd M; three schedules each. A row is good when it is measured within 0.05 % of its prediction or of its range. Prints
the rows that are trusted and not good, how many predictions are ranges, and how wide they are: a range that is always
wide says nothing. With --recorded, what was measured before into --out is held against today's model, without a boot.
Exit 1 when a trusted row is not good, or a correct run is untrusted.
"""

from __future__ import annotations

import random
import statistics
import sys
from functools import partial
from typing import Any

from harness import boots, options, plans, report
from harness.record import Claim, Topic
from random_grid import FORWARD_S, equal_topology, topology

NEAR = 5e-4
"""By what share a measured time may miss its prediction, or the nearer end of its range."""
MOST_RANKS = 12
SCHEDULES = 3


def documents(number: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Topology and workload of a plan, whose name begins with its kind."""
    draw = random.Random(f"ranges/{seed}/{number}")
    kind = ("late", "tensor")[number % 2]
    tp = 1 if kind == "late" else draw.choice((2, 2, 2, 4))
    pp = draw.randint(2, 5 if tp == 1 else 3)
    dp = draw.choice([n for n in (1, 1, 2, 3) if n * pp * tp <= MOST_RANKS])
    equal = draw.random() < 0.25
    message = 60e3 if equal else 10 ** draw.uniform(4, 5.7)
    network = (equal_topology if equal else topology)(draw, dp * pp, message)
    stages = [(site, n) for site, spec in network["datacenters"].items() for n in range(spec["nodes"])]
    if draw.random() < 0.5:
        draw.shuffle(stages)
    for spec in network["datacenters"].values():
        spec["nodes"] *= tp
    if draw.random() < 0.3:
        wire_s = FORWARD_S * draw.uniform(0.01, 0.2)
        for spec in network["datacenters"].values():
            rate = min(9e9, max(2e7, 8 * message / wire_s))
            spec["inside"] = {"rate": f"{rate:.0f} bit/s", "delay": f"{draw.choice((0.0, 0.02, 0.1))} ms"}
    nodes = [f"{site}/{tp * n + t}" for site, n in stages for t in range(tp)]
    each = [nodes[replica * pp * tp : (replica + 1) * pp * tp] for replica in range(dp)]
    alike = dict.fromkeys("FIW", f"{1000.0 * FORWARD_S:g} ms")
    pacing = alike if equal else plans.slots(draw, pp, FORWARD_S, 0.4, 1.6)
    quick = [name for name in plans.quick_schedules() if not name.startswith("search")]
    job: dict[str, Any] = {
        "name": f"{kind}-{number}",
        "model": {"layers": 2 * pp, "d_model": 16, "heads": 4, "sequence": 8},
        "parallelism": {"pipeline": pp, "data": dp, "tensor": tp},
        "microbatches": 2 * draw.randint(1, pp + 1) + 1,
        "microbatch_size": 1,
        "placement": each[0],
        "pacing": pacing,
        "message": f"{message:.0f} B",
        "memory": 4 * pp + 4,
        "receives": "late" if kind == "late" else draw.choice(("early", "late")),
        "recompute": not equal and draw.random() < 0.3,
        "schedules": draw.sample(quick, SCHEDULES),
        "iterations": 1,
        "warmup": 1,
    }
    if dp > 1:
        job["data_parallel"] = {
            "parameters": f"{max(60_000, 10 ** draw.uniform(4.5, 6)):.0f} B",
            "sharding": draw.choice(("zero-1", "none")),
            "algorithm": draw.choice(("ring", "hierarchical")),
            "replicas": each[1:],
        }
    return network, job


def claims_of(taken: boots.Taken, seed: int) -> list[Claim]:
    """How far off the plans of each kind are, and how wide their ranges."""
    claims = []
    for kind, what in (("late", "late receives"), ("tensor", "tensor ranks")):
        rows = [row for row in taken.rows if taken.workload(row.plan)["name"].startswith(kind)]
        claims.append(report.truth(f"{what}, random plans, seed {seed}: in range or near it", taken, NEAR, rows))
    wide = sorted(row.width for row in taken.rows if row.width > 0)
    off = [row for row in taken.rows if abs(row.error) > NEAR]
    caught = sum(row.missed <= NEAR for row in off)
    flagged = f"{len(wide)} of {len(taken.rows)} runs"
    if wide:
        flagged += f", median width {statistics.median(wide):.2%}, widest {wide[-1]:.2%}"
    got = f"{flagged}; {caught} of {len(off)} off the single prediction lie in theirs"
    return [*claims, Claim(f"how many of these are ranges, seed {seed}", "(report)", got, value=float(len(wide)))]


def main() -> int:
    """Measure and report."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "ranges", plans=300, per_boot=20)
    asked = parser.parse_args()
    taken = boots.drawn(asked, partial(documents, seed=asked.seed))
    report.show_worst(taken, {"range": lambda row: f"{row.width:.2%}"}, most=16)
    return report.close(asked, Topic.TRUTH, taken, claims_of(taken, asked.seed))


if __name__ == "__main__":
    sys.exit(main())
