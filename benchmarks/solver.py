"""How long the solver takes for CrossPipe's solver study (App. D.1): M = 2P, two datacenters, memory P, gap 1 %.

    python benchmarks/solver.py [--ranks 4 8 16] [--limit 120] [--workers 2] [--greedy-hint] [--record [NAME]]

Prints what the solver begins with, finds and proves; makespans are in T_F.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import NamedTuple

from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.model.simulate import simulate
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.greedy import crosspipe_greedy
from testbed.schedule.hints import best_hint, whole_blocks
from testbed.schedule.optimal import solve
from testbed.search.incumbent import Standing

GAP = 0.01
PUBLISHED = """Published (CrossPipe, App. D.1, Fig. 14), on another machine with other solvers: MILP on Gurobi 12.0.0
runs out of memory at 32 and 64 stages and converges more slowly; constraint optimisation on CPLEX CP Optimizer 22.1.1
scales better, finds good schedules quickly and spends most of its time on the bound (128 cores, 256 workers, limit
7200 s, gap 1 %). No solve times are published."""


def study(n_ranks: int) -> Problem:
    """P ranks in two datacenters: T_lat = 2 T_F, T_bw = 0.25 T_F, T_I = T_W = T_F = 1 s."""
    return uniform(n_ranks, 2 * n_ranks, delay_s=2.0, wire_s=0.25, cuts=(n_ranks // 2 - 1,), memory=float(n_ranks))


class Solved(NamedTuple):
    """What came of a problem."""

    row: tuple[str, ...]
    gap: float
    within_gap_s: float | None
    """When the gap was reached; None where it was not."""


def solved(n_ranks: int, limit_s: float, workers: int, from_greedy: bool) -> Solved:
    problem = study(n_ranks)
    greedy = crosspipe_greedy(problem)
    greedy_s = float(simulate(problem, greedy).makespans()[0])
    hint = whole_blocks(greedy) if from_greedy else best_hint(problem)
    reached: list[float] = []

    def progress(standing: Standing) -> None:
        if not reached and standing.gap <= GAP:
            reached.append(standing.wall_s)

    solution = solve(problem, hint, time_limit_s=limit_s, relative_gap=GAP, workers=workers, progress=progress)
    if solution.proof.gap <= GAP and not reached:
        reached.append(solution.proof.wall_s)
    better = next((wall for wall, makespan in solution.history if makespan < greedy_s - 1e-9), None)
    row = (
        str(n_ranks),
        str(problem.n_microbatches),
        f"{greedy_s:.2f}",
        f"{solution.history[0][1]:.2f} ({hint.name})",
        f"{solution.proof.makespan_s:.2f}",
        f"{solution.proof.bound_s:.2f}",
        "never" if better is None else f"{better:.1f} s",
        f"{reached[0]:.1f} s" if reached else f"not in {limit_s:g} s",
        f"{solution.proof.gap:.2%}",
        f"{solution.proof.wall_s:.1f} s",
    )
    return Solved(row, solution.proof.gap, reached[0] if reached else None)


def main() -> int:
    """Solve; print a row per problem, and how far the proof came."""
    parser = options.parser(__doc__)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per problem")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--greedy-hint", action="store_true", help="begin with CrossPipe's greedy alone")
    arguments = parser.parse_args()
    columns = ("P", "M", "greedy", "hint", "best", "bound", "beats it", "gap 1 %", "gap", "wall")
    rows, claims = [], []
    for n_ranks in arguments.ranks:
        row, gap, within_s = solved(n_ranks, arguments.limit, arguments.workers, arguments.greedy_hint)
        rows.append(row)
        got = f"gap {gap:.2%}, 1 % " + ("not reached" if within_s is None else f"after {within_s:.1f} s")
        claim = f"CrossPipe's solver study, P = {n_ranks}, {arguments.limit:g} s"
        claims.append(Claim(claim, "(report)", got, None, gap, "share"))
    show_table(f"CP-SAT of ortools {version('ortools')}, {arguments.workers} workers", columns, rows)
    print(PUBLISHED)
    return finish(arguments, Topic.SCHEDULES, claims, clock="none")


if __name__ == "__main__":
    sys.exit(main())
