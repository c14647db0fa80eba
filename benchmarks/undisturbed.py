"""Under the virtual clock: is any undisturbed run called untrusted? Plans as unlike each other as can be drawn.

    python benchmarks/undisturbed.py [--plans 60] [--first 0] [--seed 7] [--real] [--per-boot 15] [--recorded]
        [--out DIR]

A third are cells of random_grid.py (unequal links and stages), a third plans in which much happens at one instant
(its --equal), a third meshes with replicas and tensor ranks, with and without equal network cards. One schedule each,
five measured iterations. Prints every run that is untrusted with its reasons, and those of which something is noted;
exit code 1 where one is untrusted whose time is within 0.1 % of its prediction. With --real, each plan on the real
clock, where a run may rightly be untrusted (a busy processor, slow message handling): no exit code 1.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from typing import Any

import hybrid_grid
import random_grid
from harness import boots, options, report
from harness.record import Topic

LIMIT = 0.001
ITERATIONS = 5
MESHES = ((2, 2, 1), (2, 1, 4), (1, 2, 2), (2, 2, 2), (4, 1, 1), (2, 1, 2), (1, 2, 4))


def documents(number: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Topology and workload of a plan."""
    each = partial(random_grid.documents, schedules=1, equal=number % 3 == 1)
    topology, workload = (hybrid if number % 3 == 2 else each)(number, seed)
    return topology, workload | {"iterations": ITERATIONS, "warmup": 1}


def hybrid(number: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A mesh over three datacenters; in every other one nodes have network cards, all alike."""
    draw = random.Random(f"undisturbed/{seed}/{number}")
    mesh = MESHES[number // 3 % len(MESHES)]
    chosen = draw.choice(hybrid_grid.cells((mesh,)))
    message = 10 ** draw.uniform(4.5, 5.3)
    topology, workload = hybrid_grid.topology(chosen, draw, message), hybrid_grid.workload(chosen, draw, message)
    if number % 2:
        card = {"delay": "20 us", "rate": f"{draw.choice((200, 500, 1000))} Mbit/s"}
        for site in topology["datacenters"].values():
            site["inside"] = card
    return topology, workload | {"schedules": [draw.choice(hybrid_grid.SCHEDULES)]}


def main() -> int:
    """Run them; 1 where a run that nothing disturbed is untrusted, or one failed."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "undisturbed", plans=60, per_boot=15, seed=7)
    parser.add_argument("--real", action="store_true", help="on the real clock")
    asked = parser.parse_args()
    few = ("--iterations", str(ITERATIONS), "--set", "warmup=2")
    taken = boots.drawn(asked, partial(documents, seed=asked.seed), prefix="cell", real=few if asked.real else None)
    report.show_worst(taken)
    for row in taken.rows:
        if row.trusted and row.found.get("notes"):
            print(f"noted: {row.plan}, {row.label}, off by {row.missed:.4%}: {' | '.join(row.found['notes'])}")
    wrongly = [row for row in taken.untrusted if row.missed <= LIMIT]
    clock = "real" if asked.real else "virtual"
    worst = f"worst off by {taken.rows[0].missed:.4%}" if taken.rows else "nothing taken"
    got = f"{len(taken.untrusted)} of {len(taken.rows)} untrusted, {len(wrongly)} of them wrongly; {worst}"
    what = f"undisturbed plans unlike each other, {clock} clock, untrusted within {LIMIT:.2%} of their prediction"
    claim = report.count(what, taken, 0 if asked.real else len(wrongly), "none", got)
    return report.close(asked, Topic.TRUTH, taken, [claim], clock=clock)


if __name__ == "__main__":
    sys.exit(main())
