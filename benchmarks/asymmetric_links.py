"""Under the virtual clock: measured against predicted where the two directions of a link are nothing alike.

    python benchmarks/asymmetric_links.py [--plans 60] [--schedules 3] [--first 0] [--seed 1] [--recorded]
        [--out DIR]

Plans drawn at random: P = 2, 3 or 4 over 2 to 4 datacenters in a chain, ring or star; the directions of every link are
10 to 200 times apart in rate, and as far in delay, the slow one either way, and not the same for both; messages of
10 kB to 1 MB; unequal stages; odd M; contiguous or scattered placement; early or late receives. So acknowledgements
wait behind messages, and come back long after their messages or at once. Prints the worst runs, whether measuring ranks
the schedules as predicted, and by how much what crossed a link differs from the plan; writes every comparison to --out.
A prediction that is a range is missed by what lies between it and the measured time.
"""

from __future__ import annotations

import random
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from harness import boots, options, plans, report
from harness.record import Topic

TARGET = 0.0005
FORWARD_S = 0.02
SITES = ("oslo", "bonn", "rome", "lima")
SCHEDULES = ("interleaved-1f1b", "zb1p", "looped-bfs", "zb-h1", "crosspipe-greedy", "1f1b")
FASTEST_BPS, SLOWEST_BPS = 10e9, 1e6


def link(draw: random.Random, ends: tuple[str, str], message: int) -> dict[str, Any]:
    """A message takes the slow direction a third of a forward to ten; its delay is 0.03 to 3 forwards."""
    apart_rate, apart_delay = (10 ** draw.uniform(1.0, 2.3) for _ in range(2))
    slow_bps = max(SLOWEST_BPS, 8 * message / (FORWARD_S * 10 ** draw.uniform(-0.5, 1.0)))
    slow_bps = min(slow_bps, FASTEST_BPS / apart_rate)
    far_s = FORWARD_S * 10 ** draw.uniform(-1.5, 0.5)
    rates = [slow_bps, slow_bps * apart_rate]
    delays = [far_s, far_s / apart_delay]
    for pair in (rates, delays):
        draw.shuffle(pair)
    both = [{"delay": f"{1e6 * d:.1f} us", "rate": f"{r:.0f} bit/s"} for d, r in zip(delays, rates, strict=True)]
    return {"between": list(ends), "forward": both[0], "reverse": both[1]}


def documents(number: int, seed: int, schedules: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The topology and the workload of a plan, as files say it."""
    draw = random.Random(f"asymmetric/{seed}/{number}")
    ranks = draw.choice((2, 2, 3, 4))
    message, microbatches = round(10 ** draw.uniform(4, 6)), 2 * draw.randint(1, ranks) + 1
    shape, datacenters, pairs = plans.joined(draw, SITES[: draw.randint(2, ranks)], ranks)
    links = [link(draw, pair, message) for pair in pairs]
    topology = {"name": f"asymmetric-{shape}", "datacenters": datacenters, "links": links}
    names = [f"{site}/{n}" for site, spec in datacenters.items() for n in range(spec["nodes"])]
    workload = {
        "name": "asymmetric",
        "model": {"layers": 2 * ranks, "d_model": 16, "heads": 2, "sequence": 8},
        "parallelism": {"pipeline": ranks},
        "microbatches": microbatches,
        "microbatch_size": 1,
        "placement": draw.sample(names, ranks) if draw.random() < 0.5 else names,
        "pacing": plans.slots(draw, ranks, FORWARD_S, 0.25, 1.6),
        "message": f"{message} B",
        "memory": 2 * max(ranks, microbatches),
        "receives": draw.choice(("early", "late")),
        "schedules": draw.sample(SCHEDULES, schedules),
        "iterations": 1,
        "warmup": 1,
    }
    return topology, workload


def off_the_plan(found: Path) -> float:
    """By how many bytes the links carried more or less than planned in all, as a share of what was planned."""
    links = pd.read_parquet(found / "links.parquet")
    return float((links["wire_bytes"] - links["planned_bytes"]).abs().sum() / links["planned_bytes"].sum())


def main() -> int:
    """Run the plans; 1 when an error exceeds the target, a run is untrusted or a ranking differs, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "asymmetric-links", plans=60, per_boot=10, schedules=3)
    asked = parser.parse_args()
    taken = boots.drawn(asked, partial(documents, seed=asked.seed, schedules=asked.schedules))
    report.show_worst(taken, report.sizes(taken))
    claims = report.by_receives("directions 10 to 200 times apart", taken, TARGET)
    if off := [off_the_plan(asked.out / name) for name in taken.comparisons]:
        print(f"bytes on the links off those planned: worst {max(off):.4%}, median {statistics.median(off):.4%}")
    return report.close(asked, Topic.TRUTH, taken, claims)


if __name__ == "__main__":
    sys.exit(main())
