"""Small problems solved by trying every order: no bound is beaten, no proof is wrong, nothing jams.

A case is a few ranks and microbatches with times from nothing to some milliseconds, memory in fractions, recompute, and
the logical clock's unnoticed wait. Every valid order of whole blocks is judged by the event model (where they are too
many, a sample of them), and beside it by a simulator of its own where no message waits for another. Of the cases a
third posts its receives late. Sub-blocks, fused backwards and microbatches in any order are sampled and improved by
local search. A CP-SAT model that shares nothing with the solver's (parts/own_model.py) finds the best order as well.
Against these stand the lower bound, the solver's bound and status, every generator, and `best`, which may not be slower
than any family that it stands for
(parts/small_plans.py).

    python benchmarks/brute_force.py --out results/brute-force.jsonl    # appended in pieces, goes on where it stopped
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf, prod
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from harness import options
from harness.record import Topic, each, finish
from parts import own_model, small_plans

from testbed.errors import BadInput
from testbed.model.bounds import lower_bound
from testbed.model.compiled import makespan
from testbed.model.lower import Load, lower
from testbed.model.simulate import DeadlockError, jobs_in_ticks
from testbed.pipeline.ir import Action, Kind, Part, Row, Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.memory import TOLERANCE, peaks
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import PipelineRoutes, Problem
from testbed.pipeline.validate import validate
from testbed.schedule.hints import best_hint
from testbed.schedule.optimal import solve
from testbed.schedule.registry import FAMILIES
from testbed.search.list_scheduler import list_schedule
from testbed.search.local_search import MOVES, improve

SLACK = 1e-9
"""Relative: what floats may differ by when they are added in another order."""


class Effort(NamedTuple):
    """How much is tried per case."""

    orders: int = 3000
    """Orders of all ranks together that are all judged; of more, so many are drawn."""
    drawn: int = 6
    """Schedules of sub-blocks drawn at random ..."""
    moves: int = 300
    """... and moves of local search on the best of them."""
    solve_s: float = 5.0


SHAPES = (
    (Placement.UD, 1, 3),
    (Placement.UD, 2, 2),
    (Placement.UD, 2, 3),
    (Placement.UD, 3, 2),
    (Placement.WAVE, 1, 2),
    (Placement.WAVE, 2, 1),
    (Placement.LOOP, 2, 1),
    (Placement.WAVE, 2, 2),
    (Placement.LOOP, 2, 2),
)
"""Placement, ranks, microbatches."""

TIMES_S = (0.0, 0.0, 5e-5, 2e-4, 3e-4, 1e-3, 1.5e-3, 2e-3, 7e-3)


class Truth(NamedTuple):
    """What trying orders says."""

    best_s: float
    complete: bool
    """Whether every order of whole blocks, backward split, microbatches in order, was tried."""


# --- cases ---------------------------------------------------------------------------------------


def small_problem(random: Random) -> Problem:
    """A case; the memory holds at least what one microbatch needs."""
    placement, ranks, microbatches = random.choice(SHAPES)
    stages = stage_to_rank(placement, ranks)
    chunks = len(stages) // ranks
    equal = random.random() < 0.4

    def times() -> tuple[float, ...]:
        drawn = tuple(random.choice(TIMES_S) for _ in stages)
        return (drawn[0],) * len(stages) if equal else drawn

    queues = random.random() < 0.5
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    links = tuple(LinkCost(random.choice(TIMES_S), random.choice(TIMES_S) if queues else 0.0) for _ in pairs)
    recompute = random.choice((0.0, 0.0, 0.25, 0.6)) / chunks
    share = 1.0 / chunks
    return Problem(
        n_microbatches=microbatches,
        stage_to_rank=stages,
        forward_s=times(),
        input_s=times(),
        weight_s=times(),
        memory_limit=tuple(
            random.choice((1.0, 1.0, 1.3, 1.5, 2.0, 2.7, 3.0)) + recompute * chunks for _ in range(ranks)
        ),
        activation=(share,) * len(stages),
        input_memory=(recompute,) * len(stages) if recompute else (),
        message_bytes=(1.0,) * (len(stages) - 1),
        links=links,
        pipelines=(PipelineRoutes({pair: (index,) for index, pair in enumerate(pairs)}),),
        handover_s=random.choice((0.0, 3e-6)),
        unnoticed_wait_s=random.choice((0.0, 2e-4)),
        receives=random.choice(("early", "early", "late")),
        notice_bytes=random.choice((0.0, 0.1)),
    )


# --- every order ---------------------------------------------------------------------------------


def rows_of(problem: Problem, rank: int, most: int) -> list[Row]:
    """Every order of a rank's whole blocks within its memory, each behind what it needs there; `most` + 1 at most."""
    stages = [s for s, r in enumerate(problem.stage_to_rank) if r == rank]
    found: list[Row] = []

    def extend(row: list[Action], done: Counter[tuple[int, Kind]], held: float) -> None:
        if len(row) == 3 * len(stages) * problem.n_microbatches:
            found.append(tuple(row))
            return
        for stage in stages:
            for kind, before in ((Kind.F, None), (Kind.I, Kind.F), (Kind.W, Kind.I)):
                number = done[stage, kind]
                if number >= (problem.n_microbatches if before is None else done[stage, before]):
                    continue
                action = Action(stage, kind, number)
                if held + max(0.0, problem.memory_delta(action)) > problem.memory_limit[rank] + TOLERANCE:
                    continue
                done[stage, kind] += 1
                extend([*row, action], done, held + problem.memory_delta(action))
                done[stage, kind] -= 1
                if len(found) > most:
                    return

    extend([], Counter(), 0.0)
    return found


def truth(problem: Problem, random: Random, most: int) -> Truth:
    """The best that trying orders finds, judged by the event model."""
    choices = [rows_of(problem, rank, most) for rank in range(problem.n_ranks)]
    complete = max(map(len, choices)) <= most and prod(map(len, choices)) <= most
    first = Schedule("brute force", tuple(rows[0] for rows in choices), problem.stage_to_rank, problem.n_microbatches)
    # in ticks, as predictions are made: sums of floats would be off by an ulp
    tick_s, loads = jobs_in_ticks([Load(problem, first, 0.0, problem.receives)])
    program, _ = lower(loads)
    index = {action: n for n, (_, action) in enumerate(first.actions())}
    numbered = [[[index[action] for action in row] for row in rows] for rows in choices]
    drawn: Iterator[tuple[int, ...]] = iter(
        product(*(range(len(rows)) for rows in choices))
        if complete
        else (tuple(random.randrange(len(rows)) for rows in choices) for _ in range(most))
    )
    best_s, queued = inf, any(link.seconds_per_byte for link in problem.links)
    for number, places in enumerate(drawn):
        order = [action for rows, place in zip(numbered, places, strict=True) for action in rows[place]]
        seconds = tick_s * float(MOVES.judge(program, np.array(order)))
        if number % 50 == 0 and not queued and not problem.unnoticed_wait_s:
            rows = tuple(rows[place] for rows, place in zip(choices, places, strict=True))
            own = longest_path(problem, rows) if problem.receives == "early" else _whole(problem, rows)
            assert own == seconds or abs(own - seconds) <= SLACK * own, f"event model {seconds}, longest path {own}"
        best_s = min(best_s, seconds)
    return Truth(best_s, complete)


def _whole(problem: Problem, rows: tuple[Row, ...]) -> float:
    """Seconds an order takes, of its own program."""
    try:
        return makespan(problem, Schedule("brute force", rows, problem.stage_to_rank, problem.n_microbatches))
    except DeadlockError:
        return inf


def longest_path(problem: Problem, rows: tuple[Row, ...]) -> float:
    """Seconds an order takes where no message waits for another; infinite when ranks wait for each other."""
    end: dict[tuple[int, Kind, int], float] = {}
    place, free_s, last = [0] * len(rows), [0.0] * len(rows), problem.n_stages - 1
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while place[rank] < len(row):
                stage, kind, microbatch, _ = row[place[rank]]
                assert microbatch is not None
                source = {Kind.F: stage - 1, Kind.I: stage + 1}.get(kind)
                came = 0.0
                if source is not None and 0 <= source <= last:
                    made = end.get((source, kind, microbatch))
                    if made is None:
                        break
                    here = problem.stage_to_rank[source]
                    came = made if here == rank else made + problem.route_delay(here, rank) + problem.handover_s
                free_s[rank] = max(free_s[rank], came) + problem.duration(row[place[rank]])
                end[stage, kind, microbatch] = free_s[rank]
                place[rank] += 1
                moved = True
    return inf if any(p < len(row) for p, row in zip(place, rows, strict=True)) else max(free_s)


# --- what is more than whole blocks --------------------------------------------------------------


def drawn_schedule(problem: Problem, random: Random) -> Schedule | None:
    """A valid schedule at random: parts, fused backwards, any order; None where it has run out of memory."""
    todo: list[list[list[Action]]] = [[] for _ in range(problem.n_ranks)]  # per rank, per block chain, what is left
    for stage, rank in enumerate(problem.stage_to_rank):
        for m in range(problem.n_microbatches):
            parts = random.choice((1, 1, 2, 3))
            kinds = (Kind.F, Kind.B) if random.random() < 0.3 else (Kind.F, Kind.I, Kind.W)
            todo[rank].append([Action(stage, kind, m, Part(n, n + 1, parts)) for kind in kinds for n in range(parts)])
    rows: list[list[Action]] = [[] for _ in range(problem.n_ranks)]
    held, done = [0.0] * problem.n_ranks, set[tuple[int, bool, int]]()

    def ready(rank: int, action: Action) -> bool:
        stage, kind, m, part = action
        assert m is not None
        if held[rank] + problem.memory_needed(action) > problem.memory_limit[rank] + TOLERANCE:
            return False
        if not part.is_first or kind is Kind.W:
            return True
        if kind is Kind.F:
            return stage == 0 or (stage - 1, True, m) in done
        return stage == problem.n_stages - 1 or (stage + 1, False, m) in done

    while any(chain for chains in todo for chain in chains):
        able = [(r, c) for r, chains in enumerate(todo) for c in chains if c and ready(r, c[0])]
        if not able:
            return None
        rank, chain = random.choice(able)
        action = chain.pop(0)
        rows[rank].append(action)
        held[rank] += problem.memory_delta(action)
        if action.part.is_last and action.kind is not Kind.W:
            assert action.microbatch is not None
            done.add((action.stage, action.kind is Kind.F, action.microbatch))
    whole = tuple(tuple(a._replace(part=Part(0, 1, 1)) if a.part.of == 1 else a for a in row) for row in rows)
    return Schedule("drawn", whole, problem.stage_to_rank, problem.n_microbatches)


def drawn_best(problem: Problem, random: Random, effort: Effort) -> float:
    """The best of some schedules at random, the best of them improved by local search."""
    drawn = [made for made in (drawn_schedule(problem, random) for _ in range(effort.drawn)) if made is not None]
    if not drawn:
        return inf
    best = min(drawn, key=lambda schedule: makespan(problem, schedule))
    improved = improve(problem, best, effort.moves, random.randrange(1 << 30))
    validate(improved, problem)
    return makespan(problem, improved)


# --- checks --------------------------------------------------------------------------------------


def check(
    seed: int, effort: Effort, *, solver: bool = True, families: bool = True, own: bool = True, best: bool = True
) -> Counter[str]:
    """One case: what was seen of it, and under "wrong: ..." what must not be."""
    random = Random(seed)
    problem = small_problem(random)
    true, seen = truth(problem, random, effort.orders), Counter(["cases"])
    bound_s = lower_bound(problem).seconds
    found_s = min(true.best_s, drawn_best(problem, random, effort))
    fused = replace(problem, backward_s=tuple(random.choice(TIMES_S) for _ in problem.stage_to_rank))
    if bound_s > found_s * (1 + SLACK):
        seen["wrong: the lower bound is beaten"] += 1
    if lower_bound(fused).seconds > drawn_best(fused, random, effort) * (1 + SLACK):
        seen["wrong: the lower bound is beaten by a fused backward"] += 1
    seen["the lower bound is met"] += bound_s >= found_s * (1 - 1e-6)
    if true.complete:
        seen["every order tried"] += 1
    hint = best_hint(problem, 0.0) if own or solver else None
    if own and hint is not None:
        true, said = _own(problem, hint, true, bound_s, effort.solve_s)
        seen += said
    if solver and hint is not None:
        seen += _solver(problem, hint, true, effort.solve_s)
    if families:
        seen += _families(problem, true)
    if best:
        seen += small_plans.check(seed)
    return seen


def _own(problem: Problem, hint: Schedule, true: Truth, bound_s: float, solve_s: float) -> tuple[Truth, Counter[str]]:
    """What the other model says, and the better of both truths."""
    own, seen = own_model.solve(problem, makespan(problem, hint), solve_s), Counter(["own model asked"])
    if own.bound_s > min(true.best_s, makespan(problem, hint)) * (1 + SLACK):
        seen["wrong: the own model's bound is beaten"] += 1
    if own.schedule is None:
        return true, seen
    validate(own.schedule, problem)
    judged_s = makespan(problem, own.schedule)
    if bound_s > judged_s * (1 + SLACK):
        seen["wrong: the lower bound is beaten by the own model"] += 1
    if true.complete and judged_s < true.best_s * (1 - SLACK):
        seen["wrong: the own model is better than every order"] += 1
    proven = own.closed and judged_s <= own.seconds * (1 + SLACK)
    if proven:
        seen["proven by the own model"] += 1
        if true.complete and judged_s > true.best_s * (1 + SLACK):
            seen["wrong: the own model's optimum is none"] += 1
    return Truth(min(true.best_s, judged_s), true.complete or proven), seen


def _solver(problem: Problem, hint: Schedule, true: Truth, solve_s: float) -> Counter[str]:
    solution = solve(problem, hint, time_limit_s=solve_s, relative_gap=0.0, workers=1)
    proof, seen = solution.proof, Counter(["solved"])
    validate(solution.schedule, problem)
    if proof.bound_s > true.best_s * (1 + SLACK):
        seen["wrong: the solver's bound is beaten"] += 1
    if true.complete and proof.makespan_s < true.best_s * (1 - SLACK):
        seen["wrong: the solver is better than every order"] += 1
    if proof.status == "optimal":
        seen["optimal"] += 1
        if proof.makespan_s > true.best_s * (1 + 1e-3):
            seen["wrong: optimal, but there is better"] += 1
    elif proof.status != "time limit" or proof.wall_s < 0.9 * solve_s:
        seen[f"wrong: {proof.status} after {proof.wall_s:.1f} s"] += 1
    elif true.complete:
        seen["not proven"] += 1
        seen["not proven, nor the best"] += proof.makespan_s > true.best_s * (1 + SLACK)
    return seen


def _families(problem: Problem, true: Truth) -> Counter[str]:
    """Generators: those that adapt to memory make a valid schedule; others too, or say that memory is too small."""
    seen: Counter[str] = Counter()
    validate(list_schedule(problem), problem)
    for name in FAMILIES:
        family = FAMILIES[name]
        if family.solver or family.stage_to_rank(problem.n_ranks) != problem.stage_to_rank:
            continue
        try:
            options = {"evaluations": 12} if name == "search" else {}
            made = family.generate(problem, **options)
            assert isinstance(made, Schedule)
            validate(made, problem)
            seen["schedules"] += 1
            seen["wrong: a schedule is better than every order"] += _beats(problem, made, true)
        except BadInput as error:
            # geopipe adds to 1F1B, and fits where that does
            if family.uses_spare_memory and not (name == "geopipe" and not _fits(problem, "1f1b")):
                seen[f"wrong: {name} jams ({type(error).__name__})"] += 1
    return seen


def _fits(problem: Problem, name: str) -> bool:
    made = FAMILIES[name].generate(problem)
    assert isinstance(made, Schedule)
    return all(
        peak <= limit + TOLERANCE for peak, limit in zip(peaks(made, problem), problem.memory_limit, strict=True)
    )


def _beats(problem: Problem, made: Schedule, true: Truth) -> bool:
    """Whether a schedule of whole, split blocks is better than all of them."""
    whole = all(action.part.of == 1 and action.kind is not Kind.B for _, action in made.actions())
    return true.complete and whole and makespan(problem, made) < true.best_s * (1 - SLACK)


PIECE = 25
"""Cases between two lines of --out."""


def _kept(out: Path | None) -> dict[int, Counter[str]]:
    """First case of a piece -> what was seen in it, of earlier runs."""
    if out is None or not out.is_file():
        return {}
    lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    return {line["first"]: Counter(line["seen"]) for line in lines}


def main() -> int:
    """Check many cases; prints what was seen, and returns 1 when something was wrong."""
    parser = options.parser(__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    for part in ("solver", "families", "own", "best"):
        parser.add_argument(f"--no-{part}", dest=part, action="store_false")
    parser.add_argument("--seconds", type=float, default=Effort().solve_s, help="time limit of the solvers per case")
    parser.add_argument(
        "--out", type=Path, help=f"a line of JSON for every {PIECE} cases; those in it are not repeated"
    )
    asked = parser.parse_args()
    parts = {name: getattr(asked, name) for name in ("solver", "families", "own", "best")}
    effort, kept, total = Effort(solve_s=asked.seconds), _kept(asked.out), Counter[str]()
    for first in range(asked.first, asked.first + asked.cases, PIECE):
        piece = kept.get(first)
        if piece is None:
            piece = Counter[str]()
            for seed in range(first, min(first + PIECE, asked.first + asked.cases)):
                seen = +check(seed, effort, **parts)
                for what in seen:
                    if what.startswith("wrong"):
                        print(f"case {seed}: {what}", flush=True)
                piece += seen
            if asked.out is not None:
                with asked.out.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"first": first, "seen": piece}) + "\n")
        total += piece
    for what, count in sorted(total.items()):
        print(f"{count:7d} {what}")
    wrong = sum(count for what, count in total.items() if what.startswith("wrong"))
    what = "every order, an independent solver, our bounds and `best` agree"
    return finish(asked, Topic.SCHEDULES, [each(what, wrong, asked.cases)])


if __name__ == "__main__":
    sys.exit(main())
