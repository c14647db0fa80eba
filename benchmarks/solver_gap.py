"""What keeps the solver's gap open where ranks have two stages each: the schedule, or the bound?

Small V and loop placements are given much more time than a run allows. What moves after the usual limit tells which of
the two was wrong then: a bound that rises to the schedule says that the schedule had been optimal (or nearly) and the
bound too low.

    python benchmarks/solver_gap.py                       # a few hours where nothing closes: --limit
    python benchmarks/solver_gap.py --ranks 2 3 --limit 60
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from itertools import product
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.hints import best_hint
from testbed.schedule.optimal import solve
from testbed.search.incumbent import Standing
from testbed.search.proof import Proof

PLACEMENTS = {"V": Placement.WAVE, "loop": Placement.LOOP}
WIRE = 0.25
"""T_bw, in T_F."""
SAME = 1e-8


class Outcome(NamedTuple):
    """A case after the usual limit, and after all of the time."""

    at_limit: Standing
    final: Proof

    @property
    def schedule_gained(self) -> float:
        """By so much the schedule was improved after the usual limit, as a share."""
        return self.at_limit.makespan_s / self.final.makespan_s - 1

    @property
    def bound_gained(self) -> float:
        """By so much the bound rose after the usual limit, as a share of the final makespan."""
        return (self.final.bound_s - self.at_limit.bound_s) / self.final.makespan_s


def problem(placement: str, ranks: int, microbatches: int, delay: float, memory: float) -> Problem:
    """Two datacenters; times in T_F = T_I = T_W = 1 s."""
    stages = stage_to_rank(PLACEMENTS[placement], ranks)
    cuts = (ranks // 2 - 1,)
    return uniform(ranks, microbatches, memory=memory, delay_s=delay, wire_s=WIRE, cuts=cuts, stage_to_rank=stages)


def outcome(case: Problem, at_limit_s: float, limit_s: float, workers: int) -> Outcome:
    """Solve to optimality, or until the limit; with what stood at the usual limit."""
    standings: list[Standing] = []
    solution = solve(
        case, best_hint(case), time_limit_s=limit_s, relative_gap=0.0, workers=workers, progress=standings.append
    )
    return Outcome([one for one in standings if one.wall_s <= at_limit_s][-1], solution.proof)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--usual", dest="at_limit", type=float, default=30.0, help="seconds after which the two are looked at"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--delays", type=float, nargs="+", default=[0.25, 1.0, 2.0], help="T_lat, in T_F")
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(f"python benchmarks/solver_gap.py {' '.join(sys.argv[1:])}".rstrip(), style="bold", highlight=False)
    console.print(f"CP-SAT of ortools {version('ortools')}, {arguments.workers} workers; times in T_F")
    table = Table("placement", "P", "M", "T_lat", "memory")
    at_limit = f"at {arguments.at_limit:g} s"
    for name in (f"schedule {at_limit}", "at the end", f"bound {at_limit}", "at the end", "gap", "proven", "took"):
        table.add_column(name, justify="right")
    found = []
    for placement, ranks, delay in product(PLACEMENTS, arguments.ranks, arguments.delays):
        for microbatches, memory in ((2 * ranks, float(ranks)), (2 * ranks + 1, 0.75 * ranks)):
            case = problem(placement, ranks, microbatches, delay, memory)
            one = outcome(case, arguments.at_limit, arguments.limit, arguments.workers)
            found.append(one)
            words = (placement, str(ranks), str(microbatches), f"{delay:g}", f"{memory:g}")
            print(*words, one, file=sys.stderr, flush=True)
            table.add_row(
                *words,
                f"{one.at_limit.makespan_s:.2f}",
                f"{one.final.makespan_s:.2f}",
                f"{one.at_limit.bound_s:.2f}",
                f"{one.final.bound_s:.2f}",
                f"{one.at_limit.gap:.1%}",
                "yes" if one.final.gap <= SAME else f"{one.final.gap:.1%}",
                f"{one.final.wall_s:.0f} s",
            )
    console.print(table)
    open_then = [one for one in found if one.at_limit.gap > SAME]
    proven = [one for one in open_then if one.final.gap <= SAME]
    right = sum(one.schedule_gained <= SAME for one in proven)
    console.print(f"{len(found)} cases, {len(open_then)} open {at_limit}; {len(proven)} of them proven later:")
    console.print(f"in {right} of these the schedule had been optimal {at_limit}, only the bound was too low")
    if open_then:
        schedules = max(one.schedule_gained for one in open_then)
        bounds = max(one.bound_gained for one in open_then)
        console.print(f"schedules gained at most {schedules:.1%} after that, bounds rose by at most {bounds:.1%}")


if __name__ == "__main__":
    main()
