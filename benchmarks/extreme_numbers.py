"""Do model and lab agree where numbers are extreme? Drawn plans on the virtual clock, with light models.

    python benchmarks/extreme_numbers.py [--plans 60] [--seed 1] [--first 0] [--schedules 3] [--out DIR]

A single datacenter without any link, or six in a line, a ring or a star; two ranks, or a dozen, with replicas or tensor
ranks; one microbatch, or 21; slots of 0.3 ms to 2 s, of some kinds and stages thirty times shorter; delays from none to
0.9 s, and another way back; messages of their tensor alone and up to 30 MB, which take from a thousandth of a slot to
three; network cards anywhere. One iteration or three. What the command line refuses is counted.
"""

from __future__ import annotations

import math
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

from harness import boots, options, plans, report
from harness.record import Topic

from testbed.plan.plan import Clock
from testbed.planning.light import lighter
from testbed.planning.resolve import load_plan, with_clock
from testbed.vm import command

TARGET = 0.0005
WIDTH = {1: 12, 2: 16, 4: 16}
"""Of a model, by tensor ranks."""
LEAST_BYTES = {1: 384, 2: 512, 4: 512}
"""Of the tensor between its stages."""
MOST_BPS = 9e9
"""Of links: netem has no more in steps of a nanosecond."""


def between(draw: random.Random, least: float, most: float) -> float:
    """Any order of magnitude is as likely."""
    return math.exp(draw.uniform(math.log(least), math.log(most)))


class Drawn:
    """The numbers of a plan that more than one part of it hangs on."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        kind = draw.choice(("plain", "plain", "data", "tensor"))
        self.stages = draw.choice({"plain": (2, 3, 4, 5, 6, 9, 12), "data": (1, 2, 3), "tensor": (2, 3)}[kind])
        self.replicas = draw.choice((2, 3)) if kind == "data" else 1
        self.tensor = draw.choice((2, 4)) if kind == "tensor" else 1
        self.slot_s = between(draw, 3e-4, 2.0)
        sizes = (LEAST_BYTES[self.tensor], 997, 8948, 8949, 65536, 65537, int(between(draw, 1e3, 3e7)))
        self.message = draw.choice((*sizes, int(between(draw, 1e5, 8e6))))

    def _direction(self) -> dict[str, str]:
        wire_s = self.slot_s * between(self.draw, 1e-3, 3)
        rate_bps = min(max(8 * max(self.message, 1500) / wire_s, 1.05e6), MOST_BPS)
        spans_s = ((0.0, 0.0), (1e-6, 1e-4), (1e-3, 5e-2), (5e-2, 0.9))
        least, most = self.draw.choice(spans_s)
        delay_s = between(self.draw, least, most) if most else 0.0
        return {"delay": f"{delay_s:.9f} s", "rate": f"{rate_bps:.0f} bit/s"}

    def topology(self) -> dict[str, Any]:
        """Sites with as many nodes as may be needed."""
        draw, ranks = self.draw, self.stages * self.replicas * self.tensor
        names = [f"site-{number}" for number in range(min(draw.choice((1, 2, 2, 3, 4, 6)), self.stages))]
        _, datacenters, pairs = plans.joined(draw, names, len(names)) if len(names) > 1 else ("one", {}, [])
        document: dict[str, Any] = {"name": "extreme", "datacenters": {name: {"nodes": ranks} for name in names}}
        for name in datacenters if draw.random() < 0.3 else ():
            rate_bps = min(max(8 * max(self.message, 1500) / (self.slot_s * between(draw, 1e-3, 0.5)), 2e6), MOST_BPS)
            cards = {"delay": f"{between(draw, 1e-6, 5e-3):.9f} s", "rate": f"{rate_bps:.0f} bit/s"}
            document["datacenters"][name]["inside"] = cards
        links: list[dict[str, Any]] = [{"between": list(pair), **self._direction()} for pair in pairs]
        for link in links:
            if draw.random() < 0.4:
                link["reverse"] = self._direction()
        return document | ({"links": links} if links else {})

    def _slots(self) -> str | list[str]:
        usual_s = self.slot_s * self.draw.choice((1, 1, between(self.draw, 0.1, 3)))
        if self.draw.random() < 0.5:
            return f"{usual_s:.9f} s"
        return [f"{usual_s * self.draw.uniform(0.3, 2):.9f} s" for _ in range(self.stages)]

    def workload(self, schedules: int) -> dict[str, Any]:
        """A job that fits."""
        draw, microbatches = self.draw, self.draw.choice((1, 2, 3, 5, 8, 13, 21))
        width, heads = WIDTH[self.tensor], max(2, self.tensor)
        job: dict[str, Any] = {
            "name": "extreme",
            "model": {"layers": 2 * self.stages, "d_model": width, "heads": heads, "sequence": 8},
            "parallelism": {"pipeline": self.stages, "data": self.replicas, "tensor": self.tensor},
            "microbatches": microbatches,
            "microbatch_size": 1,
            "pacing": {kind: self._slots() for kind in "FIW"},
            "message": f"{self.message} B",
            "memory": draw.choice((self.stages, microbatches + self.stages, 2 * (microbatches + self.stages))),
            "receives": draw.choice(("early", "early", "late")),
            "recompute": draw.random() < 0.2,
            "streams": draw.choice((1, 1, 2, 4)),
            "schedules": draw.sample(plans.quick_schedules(), schedules),
            "iterations": draw.choice((1, 2, 3)),
            "warmup": draw.choice((1, 1, 2)),
        }
        if self.replicas > 1:
            sizes = {"parameters": f"{int(between(draw, 3e4, 8e6))} B", "sharding": draw.choice(("none", "zero-1"))}
            job["data_parallel"] = sizes | {"algorithm": draw.choice(("ring", "hierarchical", "direct"))}
        return job


def training(number: int, seed: int, schedules: int, out: Path) -> command.GuestTraining:
    """A plan as files, and where its run goes. Raises BadInput."""
    drawn, name = Drawn(random.Random(f"extreme/{seed}/{number}")), f"extreme-{number:03d}"
    files = plans.write(out, name, drawn.topology(), drawn.workload(schedules))
    plan = plans.with_schedules(with_clock(load_plan(*files), Clock("virtual")), name)
    return command.GuestTraining(lighter(plan)[0], out / name, drawn.draw.choice(("netem", "relay")))


def main() -> int:
    """Measure them; 1 where one is a fault, 0 otherwise."""
    parser = options.parser(__doc__)
    options.add_drawn(parser, "extreme-numbers", plans=60, per_boot=30, schedules=3)
    asked = parser.parse_args()
    made = {f"extreme-{n:03d}": partial(training, n, asked.seed, asked.schedules) for n in options.numbers(asked)}
    taken = boots.take(asked, made)
    report.show_worst(taken, most=10)
    return report.close(asked, Topic.TRUTH, taken, [report.truth("plans with extreme numbers", taken, TARGET)])


if __name__ == "__main__":
    sys.exit(main())
