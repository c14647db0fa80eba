"""Under the virtual clock: measured against predicted on cells drawn at random; no constant was found on any of them.

    python benchmarks/random_grid.py [--cells 100] [--schedules 6] [--first 0] [--seed 1] [--equal] [--out DIR]

P = 3, 5, 6 or 7 over 2 to 5 unequal datacenters in a chain, ring or star; delay and rate of every direction for itself;
stages of unequal length; messages of 10 kB to 4 MB; odd M; contiguous or scattered placement; early or late receives;
with or without recompute; six schedules that need no solver. Prints the worst cells, what distinguishes them, and
whether measuring ranks the schedules as predicted; writes every comparison to --out. With --equal, plans in which much
happens at one instant: equal slots and links, delays and rates in whole quarters of a slot, ranks placed in turns. A
prediction that is a range, by who comes first, is missed by what lies between it and the measured time.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from itertools import pairwise
from typing import Any

from harness import boots, options, plans, report
from harness.record import Topic

from testbed.plan.framing import wire_bytes

TARGET = 0.001
FORWARD_S = 0.02
NAMES = ("oslo", "bonn", "rome", "lima", "cairo")


def topology(draw: random.Random, ranks: int, message: float) -> dict[str, Any]:
    """Unequal datacenters with room for all ranks, and directions that differ."""
    shape, datacenters, pairs = plans.joined(draw, NAMES[: draw.randint(2, min(5, ranks))], ranks)

    def direction() -> dict[str, str]:
        wire_s = FORWARD_S * 10 ** draw.uniform(-1.5, 0.3)
        rate = min(10e9, max(2e6, 8 * message / wire_s))
        return {"delay": f"{10 ** draw.uniform(-0.5, 1.6):.3f} ms", "rate": f"{rate:.0f} bit/s"}

    links = [{"between": list(pair), "forward": direction(), "reverse": direction()} for pair in pairs]
    return {"name": f"random-{shape}", "datacenters": datacenters, "links": links}


def workload(draw: random.Random, ranks: int, message: float, nodes: list[str], schedules: int) -> dict[str, Any]:
    """Unequal stages, an odd number of microbatches, memory for any schedule."""
    microbatches = 2 * draw.randint(1, ranks) + 1

    placed = draw.sample(nodes, ranks) if draw.random() < 0.5 else nodes
    names = draw.sample(plans.quick_schedules(search=True), schedules)
    return {
        "name": "random",
        "model": {"layers": 2 * ranks, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": ranks},
        "microbatches": microbatches,
        "microbatch_size": 1,
        "placement": placed,
        "pacing": plans.slots(draw, ranks, FORWARD_S, 0.4, 1.6),
        "message": f"{message:.0f} B",
        "memory": 2 * max(ranks, microbatches),
        "receives": draw.choice(("early", "late")),
        "recompute": draw.random() < 0.3,
        "schedules": names,
        "iterations": 1,
        "warmup": 2,
    }


def equal_topology(draw: random.Random, ranks: int, message: float) -> dict[str, Any]:
    """Datacenters with links that are all alike, of delays and rates in whole quarters of a slot."""
    count = draw.randint(2, min(4, ranks))
    sites = NAMES[:count]
    nodes = {site: {"nodes": ranks // count + (place < ranks % count)} for place, site in enumerate(sites)}
    shape = draw.choice(("chain", "ring", "star") if count > 2 else ("chain",))
    pairs = [(sites[0], site) for site in sites[1:]] if shape == "star" else list(pairwise(sites))
    pairs += [(sites[-1], sites[0])] if shape == "ring" else []
    delay_s = FORWARD_S * draw.choice((0.25, 0.5, 1.0, 2.0))
    rate_bps = 8 * wire_bytes(round(message)) / (FORWARD_S * draw.choice((0.25, 0.5, 1.0, 1.5)))
    link = {"delay": f"{1e3 * delay_s:g} ms", "rate": f"{rate_bps:.0f} bit/s"}
    return {
        "name": f"equal-{shape}",
        "datacenters": nodes,
        "links": [{"between": list(pair), **link} for pair in pairs],
    }


def equal_workload(draw: random.Random, ranks: int, message: float, nodes: list[str], schedules: int) -> dict[str, Any]:
    """Stages of one length, placed datacenter by datacenter, in turns, or anyhow."""
    job = workload(draw, ranks, message, nodes, schedules)
    in_turns = sorted(nodes, key=lambda node: int(node.partition("/")[2]))
    slot = f"{1e3 * FORWARD_S:g} ms"
    return job | {
        "name": "equal",
        "microbatches": draw.choice((ranks, ranks + 1, 2 * ranks)),
        "placement": draw.choice((nodes, in_turns, in_turns, draw.sample(nodes, ranks))),
        "pacing": {"F": slot, "I": slot, "W": draw.choice((slot, f"{5e2 * FORWARD_S:g} ms"))},
        "receives": draw.choice(("early", "early", "late")),
        "recompute": False,
        "schedules": draw.sample(plans.quick_schedules(), schedules),
        "warmup": 1,
    }


def documents(number: int, seed: int, schedules: int, *, equal: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Topology and workload of a cell."""
    draw = random.Random(f"equal/{seed}/{number}" if equal else f"{seed}/{number}")
    ranks = draw.choice((3, 4, 5, 6) if equal else (3, 5, 6, 7))
    message = 60e3 if equal else 10 ** draw.uniform(4, 6.6)
    network = (equal_topology if equal else topology)(draw, ranks, message)
    nodes = [f"{site}/{n}" for site, spec in network["datacenters"].items() for n in range(spec["nodes"])]
    return network, (equal_workload if equal else workload)(draw, ranks, message, nodes, schedules)


def main() -> int:
    """Run the grid; 1 when an error exceeds the target, a run is untrusted or a ranking differs, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "random-grid", plans=100, per_boot=25, schedules=6, words=("--cells", "--plans"))
    parser.add_argument("--equal", action="store_true", help="plans in which much happens at one instant")
    asked = parser.parse_args()
    cell = partial(documents, seed=asked.seed, schedules=asked.schedules, equal=asked.equal)
    taken = boots.drawn(asked, cell, prefix="cell")
    report.show_worst(taken, report.sizes(taken))
    kind = "plans in which much meets at one instant" if asked.equal else "random networks and stages"
    return report.close(asked, Topic.TRUTH, taken, report.by_receives(kind, taken, TARGET))


if __name__ == "__main__":
    sys.exit(main())
