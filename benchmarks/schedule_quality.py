"""How good are our schedules? Best of ours against CrossUDSub, `search` against CP-SAT, on CrossPipe's points.

    python benchmarks/schedule_quality.py [--seconds 30] [--microbatches 16 32]

On {2, 4} datacenters x the five (T_lat, T_bw)/T_F points of CrossPipe's tables x {1x, 2x} memory,
P = 8: best of ours never worse than UDSub; `search` within 1 % of CP-SAT's incumbent on the median, 3 % at worst. Where
`search` meets the lower bound it is optimal and CP-SAT is not asked. Unit: T_F = T_I = T_W = 1. CP-SAT starts from
UDSub, as a user without `search` would.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from testbed.model.bounds import lower_bound
from testbed.model.compiled import makespan
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.validate import InvalidSchedule
from testbed.progress import Lines
from testbed.schedule.optimal import solve
from testbed.schedule.registry import FAMILIES, generate

RANKS = 8
POINTS = ((0, 0), (0.25, 0.25), (0.25, 2), (2, 0.25), (2, 2))
CUTS = {2: (3,), 4: (1, 3, 5)}
MEET = 1 + 1e-9


def problem(name: str, datacenters: int, point: tuple[float, float], microbatches: int, memory: int) -> Problem:
    """A cell of the grid, in the placement of a family."""
    delay, wire = point
    return uniform(
        RANKS,
        microbatches,
        delay_s=delay,
        wire_s=wire,
        cuts=CUTS[datacenters],
        memory=memory,
        stage_to_rank=FAMILIES[name].stage_to_rank(RANKS),
    )


def best_of_ours(cell: tuple[int, tuple[float, float], int, int]) -> tuple[str, float]:
    """The fastest schedule of all families that fit and need no solver."""
    found = {}
    for name, family in FAMILIES.items():
        if family.solver:
            continue
        asked = problem(name, *cell)
        try:
            found[name] = makespan(asked, generate(name, asked))
        except InvalidSchedule:
            continue  # needs more memory
    name = min(found, key=lambda n: found[n])
    return name, found[name]


def main() -> int:
    """Print a row per cell and the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="CP-SAT's time limit per cell")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[16, 32])
    arguments = parser.parse_args()
    cells = [
        (datacenters, point, microbatches, memory)
        for microbatches in arguments.microbatches
        for datacenters in CUTS
        for point in POINTS
        for memory in (RANKS, 2 * RANKS)
    ]
    table = Table(title="makespans in T_F; CP-SAT: incumbent and proven bound", title_justify="left")
    for column in (
        "DCs",
        "lat,bw",
        "M",
        "memory",
        "UDSub",
        "search",
        "in s",
        "CP-SAT",
        "its bound",
        "search over CP-SAT",
    ):
        table.add_column(column, justify="right")
    table.add_column("best of ours")
    over, gains = [], []
    with Lines(quiet=False).step("cells", total=len(cells)) as step:
        for cell in cells:
            asked = problem("search", *cell)
            greedy = generate("crosspipe-greedy", asked)
            greedy_s, bound_s = makespan(asked, greedy), lower_bound(asked).seconds
            began = time.perf_counter()
            found_s = makespan(asked, generate("search", asked))
            took_s = time.perf_counter() - began
            name, best_s = best_of_ours(cell)
            if found_s <= bound_s * MEET:
                solved = ("optimal", f"{bound_s:.2f}")
                ratio = 0.0
            else:
                solution = solve(asked, greedy, time_limit_s=arguments.seconds)
                solved = (f"{solution.proof.makespan_s:.2f}", f"{solution.proof.bound_s:.2f}")
                ratio = found_s / solution.proof.makespan_s - 1
            over.append(ratio)
            gains.append(best_s / greedy_s - 1)
            datacenters, point, microbatches, memory = cell
            table.add_row(
                str(datacenters),
                f"{point[0]:g},{point[1]:g}",
                str(microbatches),
                str(memory),
                f"{greedy_s:.2f}",
                f"{found_s:.2f}",
                f"{took_s:.1f}",
                *solved,
                f"{ratio:+.2%}",
                f"{name} {best_s:.2f} ({best_s / greedy_s - 1:+.1%})",
            )
            step.advance()
    console = Console(width=160)
    console.print(table)
    console.print(f"best of ours against UDSub: median {statistics.median(gains):+.2%}, worst {max(gains):+.2%}")
    console.print(f"search against CP-SAT: median {statistics.median(over):+.2%}, worst {max(over):+.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
