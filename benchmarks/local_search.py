"""What moving single actions gains over the schedules that it begins with, on problems that nothing was tuned on.

2 to 6 ranks, odd numbers of microbatches, unequal stages, memory below and above P, delays from a tenth of a forward to
three: drawn by --first and --cases. The bound is that of the event model; where ranks have two stages each it may be
far below what is possible.

    python benchmarks/local_search.py [--first 1000] [--cases 12] [--moves 100000] [--record [NAME]]
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.model.bounds import lower_bound
from testbed.model.compiled import makespan
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.hints import best_hint
from testbed.search.local_search import improve

PLACEMENTS = (Placement.WAVE, Placement.LOOP, Placement.UD)
SEEDS = (1, 2)
HINT_S = 3.0


def problem(number: int) -> Problem:
    """Times in T_F, which is 1 s on average."""
    draw = random.Random(number)
    ranks, microbatches = draw.choice((2, 3, 5, 6)), draw.randint(5, 14)
    stages = stage_to_rank(PLACEMENTS[number % len(PLACEMENTS)], ranks)
    even = uniform(
        ranks,
        microbatches,
        memory=ranks * draw.choice((0.8, 1.0, 1.3)),
        delay_s=draw.uniform(0.1, 3.0),
        wire_s=draw.uniform(0.1, 0.7),
        cuts=(draw.randrange(ranks - 1),),
        stage_to_rank=stages,
    )

    def unequal(seconds: Sequence[float], least: float, most: float) -> tuple[float, ...]:
        return tuple(draw.uniform(least, most) * one for one in seconds)

    return replace(
        even,
        forward_s=unequal(even.forward_s, 0.6, 1.4),
        input_s=unequal(even.input_s, 0.6, 1.4),
        weight_s=unequal(even.weight_s, 0.4, 1.0),
    )


def main() -> int:
    """Improve; print a row per case, and what is gained on average."""
    parser = options.parser(__doc__)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--moves", type=int, default=100_000)
    arguments = parser.parse_args()
    began: list[float] = []
    ended: list[float] = []
    rows = []
    for number in range(arguments.first, arguments.first + arguments.cases):
        case = problem(number)
        hint, bound_s = best_hint(case, time_limit_s=HINT_S), lower_bound(case).seconds
        began.append(makespan(case, hint) / bound_s - 1)
        found = [makespan(case, improve(case, hint, arguments.moves, seed)) / bound_s - 1 for seed in SEEDS]
        ended += found
        name = PLACEMENTS[number % len(PLACEMENTS)].name.lower()
        shares = [f"{above:.2%}" for above in (began[-1], *found)]
        rows.append((number, name, case.n_ranks, case.n_microbatches, *shares))
    show_table("above the bound", ("case", "stages", "P", "M", "begins", *(f"seed {seed}" for seed in SEEDS)), rows)
    claim = f"moving single actions, {arguments.cases} problems: mean above the bound, before and after"
    before, after = statistics.mean(began), statistics.mean(ended)
    claims = [Claim(claim, "(report)", f"{before:.2%} -> {after:.2%}", None, after, "share of the bound")]
    return finish(arguments, Topic.SCHEDULES, claims, clock="none")


if __name__ == "__main__":
    sys.exit(main())
