"""How far the solver closes its gap, and what keeps it open where ranks have two stages each: schedule or bound?

Small V and loop placements are given much more time than a run allows. What moves after the usual limit tells which of
the two was wrong then: a bound that rises to the schedule says that the schedule had been optimal (or nearly) and the
bound too low. --drawn adds problems that nothing was tuned on: 5 to 8 ranks, odd numbers of microbatches, unequal
stages, one or two slow boundaries whose directions differ, 0.6 to 1.1 P of memory. With --study, the problems of
CrossPipe's solver study (App. D.1) instead, one stage per rank, M = 2P, memory P, T_lat = 2, until the gap is 1 %.
Makespans are in T_F.

    python benchmarks/solver_gap.py                       # a few hours where nothing closes: --limit
    python benchmarks/solver_gap.py --ranks 2 3 --limit 60
    python benchmarks/solver_gap.py --placements loop --ranks 8 --drawn 12 --limit 30
    python benchmarks/solver_gap.py --study [--ranks 4 8 16] [--limit 120] [--workers 2] [--greedy-hint]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import product
from typing import NamedTuple

from harness import options
from harness.record import Claim, Topic, each, finish
from harness.report import show_table

from testbed.model.simulate import makespan
from testbed.pipeline.ir import Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.greedy import crosspipe_greedy
from testbed.schedule.hints import best_hint, whole_blocks
from testbed.schedule.optimal import solve
from testbed.search.incumbent import Standing
from testbed.search.proof import Proof

PLACEMENTS = {"V": Placement.WAVE, "loop": Placement.LOOP, "one each": Placement.UD}
WIRE = 0.25
"""T_bw, in T_F."""
SAME, STUDY_GAP = 1e-8, 0.01
"""What counts as optimal; where the study ends."""
LIMIT = {"V": 0.02, "loop": 0.05}
"""The gap that is asked for at the usual limit."""
PUBLISHED = """Published (CrossPipe, App. D.1, Fig. 14), on another machine with other solvers: MILP on Gurobi 12.0.0
runs out of memory at 32 and 64 stages and converges more slowly; constraint optimisation on CPLEX CP Optimizer 22.1.1
scales better, finds good schedules quickly and spends most of its time on the bound (128 cores, 256 workers, limit
7200 s, gap 1 %). No solve times are published."""
COLUMNS = (
    *("placement", "P", "M", "T_lat", "memory", "greedy", "hint", "schedule then", "at the end"),
    *("bound then", "at the end", "gap then", "at the end", "hint beaten", "gap 1 %", "took"),
)


class Case(NamedTuple):
    """Two datacenters, of a drawn case maybe three; times in T_F = T_I = T_W = 1 s, of a drawn case on average."""

    placement: str
    ranks: int
    microbatches: int
    delay: float
    memory: float
    seed: int | None = None
    """Of what is unequal in a drawn case."""

    @property
    def problem(self) -> Problem:
        """For the solver."""
        _, ranks, microbatches, delay_s, memory, seed = self
        draw, stages = random.Random(seed), stage_to_rank(PLACEMENTS[self.placement], ranks)
        cuts = (ranks // 2 - 1,) if seed is None else tuple(draw.sample(range(ranks - 1), draw.choice((1, 1, 2))))
        even = uniform(
            ranks, microbatches, memory=memory, delay_s=delay_s, wire_s=WIRE, cuts=cuts, stage_to_rank=stages
        )
        return even if seed is None else _unequal(even, draw)


class Outcome(NamedTuple):
    """A case after the usual limit, and after all of the time."""

    case: Case
    greedy_s: float | None
    """None where ranks have two stages each."""
    hint: str
    at_limit: Standing
    final: Proof
    better_s: float | None
    """When something faster than the greedy schedule, or else the hint, was found; None where nothing was."""
    within_s: float | None
    """When the gap was 1 %; None where it never was."""

    @property
    def schedule_gained(self) -> float:
        """By so much the schedule was improved after the usual limit, as a share."""
        return self.at_limit.makespan_s / self.final.makespan_s - 1

    @property
    def bound_gained(self) -> float:
        """By so much the bound rose after the usual limit, as a share of the final makespan."""
        return (self.final.bound_s - self.at_limit.bound_s) / self.final.makespan_s

    def row(self) -> tuple[str, ...]:
        """In the table."""
        one, then, end = self.case, self.at_limit, self.final
        return (
            *(one.placement, str(one.ranks), str(one.microbatches), f"{one.delay:.3g}", f"{one.memory:.3g}"),
            "-" if self.greedy_s is None else f"{self.greedy_s:.2f}",
            self.hint,
            *(f"{seconds:.2f}" for seconds in (then.makespan_s, end.makespan_s, then.bound_s, end.bound_s)),
            f"{then.gap:.1%}",
            "proven" if end.gap <= SAME else f"{end.gap:.2%}",
            "never" if self.better_s is None else f"{self.better_s:.1f} s",
            "never" if self.within_s is None else f"{self.within_s:.1f} s",
            f"{end.wall_s:.1f} s",
        )


def _unequal(even: Problem, draw: random.Random) -> Problem:
    """Stages that take from 0.7 to 1.3 of their mean time each, and links that differ in delay and rate."""

    def about(seconds: Sequence[float]) -> tuple[float, ...]:
        return tuple(one * draw.uniform(0.7, 1.3) for one in seconds)

    return replace(
        even,
        forward_s=about(even.forward_s),
        input_s=about(even.input_s),
        weight_s=about(even.weight_s),
        links=tuple(LinkCost(*about(link)) for link in even.links),
    )


def drawn(placement: str, seed: int) -> Case:
    """A case that nothing was tuned on."""
    draw = random.Random(seed)
    ranks = draw.randint(5, 8)
    memory = ranks * draw.uniform(0.6, 1.1)
    return Case(placement, ranks, draw.randint(ranks + 1, 5 * ranks // 2), draw.uniform(0.1, 2.5), memory, seed)


def cases(asked: argparse.Namespace) -> list[Case]:
    """All that are solved."""
    if asked.study:
        return [Case("one each", p, 2 * p, 2.0, float(p)) for p in asked.ranks]
    return [
        Case(placement, p, microbatches, delay, memory)
        for placement, p, delay in product(asked.placements, asked.ranks, asked.delays)
        for microbatches, memory in ((2 * p, float(p)), (2 * p + 1, 0.75 * p))
    ] + [drawn(placement, asked.first + number) for placement in asked.placements for number in range(asked.drawn)]


def outcome(case: Case, asked: argparse.Namespace) -> Outcome:
    """Solve until the gap or the limit; with what stood at the usual limit."""
    problem, standings = case.problem, list[Standing]()
    greedy: Schedule | None = crosspipe_greedy(problem) if problem.n_stages == problem.n_ranks else None
    hint = whole_blocks(greedy) if greedy and asked.greedy_hint else best_hint(problem)
    gap = STUDY_GAP if asked.study else 0.0
    solution = solve(
        problem,
        hint,
        time_limit_s=asked.limit,
        relative_gap=gap,
        workers=asked.workers,
        progress=standings.append,
    )
    end = solution.proof
    standings.append(Standing(end.wall_s, end.time_limit_s, end.makespan_s, end.bound_s))
    greedy_s, hint_s = makespan(problem, greedy) if greedy else None, solution.history[0][1]
    begin_s = hint_s if greedy_s is None else greedy_s
    return Outcome(
        case,
        greedy_s,
        f"{hint_s:.2f} ({hint.name})",
        [one for one in standings if one.wall_s <= asked.at_limit or one is standings[0]][-1],
        end,
        next((wall for wall, seconds in solution.history if seconds < begin_s - 1e-9), None),
        next((one.wall_s for one in standings if one.gap <= STUDY_GAP), None),
    )


def say_what_moved(found: Sequence[Outcome], at_limit: str) -> None:
    """Whether schedules or bounds were wrong at the usual limit."""
    left = [one for one in found if one.at_limit.gap > SAME]
    proven = [one for one in left if one.final.gap <= SAME]
    right = sum(one.schedule_gained <= SAME for one in proven)
    print(f"{len(found)} cases, {len(left)} open {at_limit}; {len(proven)} of them proven later:")
    print(f"in {right} of these the schedule had been optimal {at_limit}, only the bound was too low")
    if left:
        schedules, bounds = max(one.schedule_gained for one in left), max(one.bound_gained for one in left)
        print(f"schedules gained at most {schedules:.1%} after that, bounds rose by at most {bounds:.1%}")


def claims_of(found: Sequence[Outcome], asked: argparse.Namespace) -> list[Claim]:
    """Of the study how far each proof came; else the gap of every placement at the usual limit."""
    claims = []
    for one in found if asked.study else ():
        reached = "not reached" if one.within_s is None else f"after {one.within_s:.1f} s"
        what, gap = f"CrossPipe's solver study, P = {one.case.ranks}, {asked.limit:g} s", one.final.gap
        claims.append(Claim(what, "(report)", f"gap {gap:.2%}, 1 % {reached}", None, gap, "share"))
    for placement, are_drawn in () if asked.study else product(asked.placements, (False, True)):
        these = [one for one in found if (one.case.placement, one.case.seed is not None) == (placement, are_drawn)]
        if not these:
            continue
        gaps, limit = [one.at_limit.gap for one in these], LIMIT[placement]
        proven, over = sum(gap <= SAME for gap in gaps), sum(gap > limit for gap in gaps)
        which = f"{len(these)} drawn" if are_drawn else f"P = {', '.join(map(str, asked.ranks))}"
        what = f"CP-SAT, {placement}, {which}: gap after {asked.at_limit:g} s"
        more = f", {proven} proven optimal, worst {max(gaps):.1%}"
        left = [one for one in these if one.at_limit.gap > SAME]
        if left and asked.limit > asked.at_limit:
            faster, bounds = max(one.schedule_gained for one in left), max(one.bound_gained for one in left)
            more += f"; until {asked.limit:g} s schedules {faster:.1%} faster at most, bounds up to {bounds:.1%} higher"
        claims.append(each(what, over, len(gaps), f"<= {limit:.0%}", more=more))
    return claims


def main() -> int:
    """Solve; print a row per case, and what moved; 1 where a gap is larger than asked."""
    parser = options.parser(__doc__)
    parser.add_argument("--study", action="store_true", help="CrossPipe's problems, until the gap is 1 %%")
    parser.add_argument("--usual", dest="at_limit", type=float, default=30.0, help="seconds that a run allows")
    parser.add_argument("--limit", type=float, help="seconds per case; default: 600, of --study 120")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="+", help="default: 2 3 4, of --study 4 8 16")
    parser.add_argument("--delays", type=float, nargs="+", default=[0.25, 1.0, 2.0], help="T_lat, in T_F")
    parser.add_argument("--placements", nargs="+", choices=("V", "loop"), default=["V", "loop"])
    parser.add_argument("--drawn", type=int, default=0, help="cases that are drawn, per placement, beside the others")
    parser.add_argument("--first", type=int, default=1, help="seed of the first of them")
    parser.add_argument("--greedy-hint", action="store_true", help="begin with CrossPipe's greedy alone, of --study")
    asked = parser.parse_args()
    asked.limit = asked.limit or (120.0 if asked.study else 600.0)
    asked.ranks = asked.ranks or ([4, 8, 16] if asked.study else [2, 3, 4])
    found = []
    for case in cases(asked):
        found.append(outcome(case, asked))
        print(*found[-1].row(), file=sys.stderr, flush=True)
    at_limit = f"at {asked.at_limit:g} s"
    title = f"CP-SAT of ortools {version('ortools')}, {asked.workers} workers; then: {at_limit}"
    show_table(title, COLUMNS, [one.row() for one in found], width=150)
    if asked.study:
        print(PUBLISHED)
    else:
        say_what_moved(found, at_limit)
    return finish(asked, Topic.SCHEDULES, claims_of(found, asked), clock="none")


if __name__ == "__main__":
    sys.exit(main())
