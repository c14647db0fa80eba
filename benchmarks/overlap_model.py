"""The overlap model of GeoPipe in closed form beside the event model, on cells drawn at random.

    python benchmarks/overlap_model.py [--cells 300] [--json]

Of every cell the steady state's seconds per microbatch: P = 4, 6 or 8, one to three cuts, each with delays (up to
4 tau, another one back), a rate (up to 1.5 tau on the wire) and dN of its own, fewer and more than it needs.
"""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from typing import NamedTuple

from harness import options
from harness.record import Claim, Topic, finish
from oracles.closed_form import Cut, overlap_period

from testbed.model.simulate import makespan
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.geopipe import with_ahead

TARGET = 0.01
SHORT, LONG = 60, 180
"""Microbatches of two iterations whose difference is the steady state's."""


class Found(NamedTuple):
    """Seconds per microbatch in one cell."""

    cell: int
    formula_s: float
    simulated_s: float
    limit: str
    """What decides by the formula: compute, wire or credit (round trips over microbatches in flight)."""

    @property
    def error(self) -> float:
        return self.formula_s / self.simulated_s - 1


def cell(number: int) -> tuple[Problem, list[Cut]]:
    """The pipeline of a cell and its cuts."""
    draw = random.Random(number)
    ranks, backward = draw.choice((4, 6, 8)), draw.choice((0.5, 1.0, 1.5))
    tau = 1 + 2 * backward
    places = sorted(draw.sample(range(ranks - 1), draw.choice((1, 2, 3))))
    links, cuts = [], []
    for place in places:
        wire = draw.choice((0.0, 0.1, 0.5, 0.9, 1.2, 1.5)) * tau
        there = draw.choice((0.05, 0.2, 0.5, 1, 2, 4)) * tau
        back = there * draw.choice((1.0, 1.0, 0.5))
        links += [LinkCost(there, wire), LinkCost(back, wire)]
        round_trip = there + back + 2 * wire
        enough = math.ceil(round_trip / tau)
        cuts.append(Cut(place, round_trip, wire, draw.choice((0, 1, enough - 1, enough, enough + 1))))
    problem = uniform(ranks, SHORT, input_s=backward, weight_s=backward, memory=1e6, delay_s=1.0, cuts=tuple(places))
    return replace(problem, links=tuple(links)), cuts


def judge(number: int) -> Found:
    """A cell by the formula and by the event model."""
    problem, cuts = cell(number)
    ahead = {cut.rank: cut.ahead for cut in cuts}
    short, long = (
        makespan(sized, with_ahead(sized, ahead))
        for sized in (replace(problem, n_microbatches=count) for count in (SHORT, LONG))
    )
    tau, wire = problem.forward_s[0] + problem.whole_backward_s(0), max(cut.wire_s for cut in cuts)
    expected = overlap_period(tau, cuts)
    limit = "compute" if expected == tau else "wire" if expected == wire else "credit"
    return Found(number, expected, (long - short) / (LONG - SHORT), limit)


def main() -> int:
    """Print the worst cells; 1 when an error exceeds 1 %."""
    parser = options.parser(__doc__)
    parser.add_argument("--cells", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = sorted(map(judge, range(arguments.cells)), key=lambda one: -abs(one.error))
    if arguments.json:
        print(json.dumps([one._asdict() | {"error": one.error} for one in found], indent=1))
    else:
        for limit in ("compute", "wire", "credit"):
            mine = [abs(one.error) for one in found if one.limit == limit]
            print(f"{limit:8} decides in {len(mine):3} cells: worst error {max(mine, default=0):.3%}")
        print(f"worst of all: cell {found[0].cell}, {found[0].error:+.3%}")
    what, worst = "GeoPipe's overlap model (eq. 2) against the event model", abs(found[0].error)
    claim = Claim(what, f"<= {TARGET:.0%}", f"worst {worst:.2%} of {len(found)} cells", worst <= TARGET, worst, "share")
    return finish(arguments, Topic.SCHEDULES, [claim])


if __name__ == "__main__":
    sys.exit(main())
