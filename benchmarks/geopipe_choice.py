"""GeoPipe's own dN against every other, on pipelines drawn at random: is nothing faster, and never 1F1B?

    python benchmarks/geopipe_choice.py [--every 120] [--plain 1000] [--first 0]

P = 3 to 6, M = 3 to 14, one to three cuts whose two directions have delays (up to 4 tau) and times on the wire (up to
3.8 tau) of their own, stages alike and not, memory for P microbatches and more. The first `--every` cells are compared
with every dN that memory allows, `--plain` of them with 1F1B. Units: seconds of the event model.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from harness import options
from harness.record import Claim, Topic, finish

from testbed.model.simulate import makespan
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.geopipe import Ahead, chosen, cuts, fits, with_ahead

TIE = 1e-9


def cell(number: int) -> Problem:
    """The pipeline of a cell."""
    draw = random.Random(number)
    ranks, microbatches = draw.randint(3, 6), draw.randint(3, 14)
    places = tuple(sorted(draw.sample(range(ranks - 1), draw.randint(1, min(3, ranks - 1)))))
    forward = [draw.choice((0.5, 1.0, 1.5, 2.0)) for _ in range(ranks)] if draw.random() < 0.6 else [1.0] * ranks
    half = [draw.choice((0.5, 1.0, 1.5)) for _ in range(ranks)] if draw.random() < 0.6 else [1.0] * ranks
    tau = max(f + 2 * b for f, b in zip(forward, half, strict=True))
    memory = draw.choice((ranks, ranks + 1, ranks + 2, ranks + 4, 1000.0))
    links = [
        LinkCost(draw.choice((0.05, 0.3, 1, 2, 4)) * tau, draw.choice((0, 0.1, 0.5, 1, 1.5, 3, 3.8)) * tau)
        for _ in range(2 * len(places))
    ]
    problem = uniform(ranks, microbatches, memory=memory, delay_s=1.0, cuts=places)
    halves = tuple(half)
    return replace(problem, links=tuple(links), forward_s=tuple(forward), input_s=halves, weight_s=halves)


def seconds(problem: Problem, ahead: Ahead) -> float:
    """An iteration with these extra forwards."""
    return makespan(problem, with_ahead(problem, ahead))


def every(problem: Problem) -> Iterator[Ahead]:
    """All that memory allows."""
    places = cuts(problem)
    for numbers in product(range(problem.n_microbatches + 1), repeat=len(places)):
        ahead = dict(zip(places, numbers, strict=True))
        if fits(problem, ahead):
            yield ahead


def behind(problem: Problem) -> float:
    """By how much the default is slower than the best of all."""
    return seconds(problem, chosen(problem)) / min(seconds(problem, one) for one in every(problem)) - 1


def behind_plain(problem: Problem) -> float:
    """By how much the default is slower than 1F1B."""
    return seconds(problem, chosen(problem)) / seconds(problem, dict.fromkeys(cuts(problem), 0)) - 1


def main() -> int:
    """1 where something is faster."""
    parser = options.parser(__doc__)
    parser.add_argument("--every", type=int, default=120, help="cells compared with every dN")
    parser.add_argument("--plain", type=int, default=1000, help="cells compared with 1F1B")
    parser.add_argument("--first", type=int, default=0, help="number of the first cell")
    asked = parser.parse_args()
    claims = []
    for name, count, judge in (("every dN", asked.every, behind), ("1F1B", asked.plain, behind_plain)):
        numbers = range(asked.first, asked.first + count)
        found = {number: over for number in numbers if (over := judge(cell(number))) > TIE}
        worst = max(found, key=found.__getitem__, default=None)
        shown = "" if worst is None else f", worst cell {worst}: {found[worst]:+.2%}"
        print(f"slower than {name}: {len(found)} of {count}{shown}", flush=True)
        got = f"{len(found)} slower{shown}"
        over = max(found.values(), default=0.0)
        claims.append(
            Claim(f"GeoPipe's dN against {name}", "never behind", got, not found, over, "share", count, count)
        )
    return finish(asked, Topic.SCHEDULES, claims)


if __name__ == "__main__":
    sys.exit(main())
