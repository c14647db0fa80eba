"""How fast are generators and the event model? Time per action from P = 4 to 64, M = 2P to 16P.

    python benchmarks/schedule_speed.py [--shapes 4x8,64x1024] [--no-search] [--best 64x128] [--compare 64x128]

Time per action constant (near-linear growth); P = 64, M = 1,024 greedy and simulation within 5 s;
the event model at a million actions per second or more. Every shape is timed in this one process, best of three, after
one untimed call that loads the compiled code. Two datacenters, T_lat = T_F, T_bw = 0.25 T_F, memory P.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

from harness import options
from harness.boots import run_testbed
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.model.lower import Load, lower
from testbed.model.simulate import run
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.ticks import in_ticks
from testbed.schedule.greedy import greedy_rows
from testbed.schedule.registry import generate
from testbed.schedule.search_families import search

SHAPES = [(p, factor * p) for p in (4, 8, 16, 32, 64) for factor in (2, 4, 16)]
PLAIN_UP_TO = 30_000
LARGEST = (64, 1024)
MOST_S, MOST_CPU_S, MOST_COMPARED_CPU_S, LEAST_PER_S, GROWTH = 5.0, 10.0, 15.0, 1e6, 4.0
"""Of greedy with simulation at the largest shape; of `best`; actions that the event model does; and how far seconds
per action of greedy may lie apart."""

Result = TypeVar("Result")


def problem(ranks: int, microbatches: int) -> Problem:
    """Two datacenters with half of the ranks each."""
    return uniform(ranks, microbatches, memory=ranks, delay_s=1, wire_s=0.25, cuts=(ranks // 2 - 1,))


def best(call: Callable[[], Result], runs: int = 3) -> tuple[float, Result]:
    """Seconds of the fastest of some runs, and what the call returned."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - began)
    return min(times), result


def command(ranks: int, microbatches: int, place: Path, *, compared: bool) -> list[str]:
    """Two datacenters with half of the ranks each, memory P, every family to choose from."""
    sites = {"a": {"nodes": ranks // 2}, "b": {"nodes": ranks - ranks // 2}}
    link = {"between": ["a", "b"], "delay": "20 ms", "rate": "1.6 Gbit/s"}
    topology = place / "two.yaml"
    topology.write_text(json.dumps({"name": "two", "datacenters": sites, "links": [link]}), encoding="utf-8")
    sizes = {"parallelism.pipeline": ranks, "microbatches": microbatches, "model.layers": 2 * ranks, "memory": ranks}
    job = [
        str(topology),
        "tiny-gpt-pp4",
        *(word for name, size in sizes.items() for word in ("--set", f"{name}={size}")),
    ]
    if compared:
        return ["schedule", "compare", *job]
    return ["plan", *job, "--schedule", "best", "-o", str(place / "best.json")]


def claim_of_all(ranks: int, microbatches: int, *, compared: bool) -> Claim:
    """How long `testbed plan --schedule best`, or `testbed schedule compare`, takes with all that it starts.

    The search in it ends by wall seconds, so that CPU time is less on a busy machine. Raises SystemExit where the
    command fails.
    """
    with TemporaryDirectory(prefix="testbed-speed-") as scratch:
        words, before, began = command(ranks, microbatches, Path(scratch), compared=compared), cpu_s(), time.monotonic()
        code, document, said = run_testbed(*words)
        wall_s, used_s = time.monotonic() - began, cpu_s() - before
    if code or document is None:
        raise SystemExit(f"testbed {' '.join(words)}: exit code {code}: {said}")
    what = f"`{'schedule compare' if compared else 'best'}`, P = {ranks}, M = {microbatches}, CPU time of the command"
    most_s = MOST_COMPARED_CPU_S if compared else MOST_CPU_S
    return Claim(what, f"<= {most_s:g} s", f"{used_s:.1f} s (wall {wall_s:.1f} s)", used_s <= most_s, used_s, "s")


def cpu_s() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Times(NamedTuple):
    """Seconds for one shape; None where it was left out."""

    ranks: int
    microbatches: int
    loads: int
    """What the event model plays."""
    greedy_s: float
    generated_s: float
    search_s: float | None
    lower_s: float
    run_s: float
    plain_s: float | None

    @property
    def actions(self) -> int:
        """F, I, W of every rank and microbatch."""
        return 3 * self.ranks * self.microbatches

    def shown(self, seconds: float | None) -> str:
        """Seconds, and microseconds per action."""
        return "-" if seconds is None else f"{seconds:.3f} s  {seconds / self.actions * 1e6:.2f}"

    def row(self) -> tuple[object, ...]:
        """In the table."""
        rate = f"{self.shown(self.run_s)}  ({self.loads / self.run_s / 1e6:.1f} M/s)"
        made = map(self.shown, (self.greedy_s, self.generated_s, self.search_s, self.lower_s))
        return self.ranks, self.microbatches, self.actions, *made, rate, self.shown(self.plain_s)


def timed(ranks: int, microbatches: int, *, searched: bool) -> Times:
    """A shape, best of three where it is small."""
    asked, actions = problem(ranks, microbatches), 3 * ranks * microbatches
    runs = 3 if actions < 100_000 else 1
    core_s, _ = best(lambda: greedy_rows(in_ticks(asked), 4), runs)
    whole_s, schedule = best(lambda: generate("crosspipe-greedy", asked), runs)
    search_s = best(lambda: search(asked), 1)[0] if searched else None
    lower_s, program = best(lambda: lower([Load(asked, schedule)])[0], runs)
    run_s, _ = best(lambda: run(program, compiled=True), runs)
    plain_s = best(lambda: run(program, compiled=False), 1)[0] if actions <= PLAIN_UP_TO else None
    loads = len(program.duration_s)
    return Times(ranks, microbatches, loads, core_s, whole_s, search_s, lower_s, run_s, plain_s)


def claims_of(found: list[Times]) -> list[Claim]:
    """That time per action is small and does not grow, and the largest shape takes seconds."""
    rates, costs = [one.loads / one.run_s for one in found], [one.greedy_s / one.actions for one in found]
    got = f"{min(rates) / 1e6:.1f} to {max(rates) / 1e6:.1f} million/s"
    got += f"; {min(costs) * 1e6:.2f} to {max(costs) * 1e6:.2f} us"
    fine = min(rates) >= LEAST_PER_S and max(costs) <= GROWTH * min(costs)
    what, asked = "event model, actions; `crosspipe-greedy`, for an action", f">= 1 million/s; within {GROWTH:g} times"
    claims = [Claim(what, asked, got, fine, min(rates), "actions/s")]
    for one in (one for one in found if (one.ranks, one.microbatches) == LARGEST):
        seconds = one.generated_s + one.lower_s + one.run_s
        what = f"P = {one.ranks}, M = {one.microbatches:,}: greedy with validation, and simulation"
        claims.append(Claim(what, f"<= {MOST_S:g} s", f"{seconds:.1f} s", seconds <= MOST_S, seconds, "s"))
    return claims


def shape_of(text: str) -> tuple[int, int]:
    """Ranks and microbatches."""
    ranks, microbatches = map(int, text.split("x"))
    return ranks, microbatches


def main() -> int:
    """Print the table; 1 where something takes longer than asked."""
    parser = options.parser(__doc__)
    parser.add_argument("--shapes", type=options.listed(shape_of), default=SHAPES, help="ranks x microbatches")
    parser.add_argument("--no-search", action="store_true", help="leave out `search`, which takes most of the time")
    parser.add_argument(
        "--best", metavar="PxM", type=shape_of, help="time `best` instead, with the processes that it starts"
    )
    parser.add_argument("--compare", metavar="PxM", type=shape_of, help="time `schedule compare` instead")
    arguments = parser.parse_args()
    if shape := arguments.best or arguments.compare:
        claim = claim_of_all(*shape, compared=not arguments.best)
        return finish(arguments, Topic.SPEED, [claim], clock="real")
    warm = problem(4, 8)
    run(lower([Load(warm, generate("crosspipe-greedy", warm))])[0], compiled=True)
    greedy_rows(in_ticks(warm), 4)
    found = [timed(*shape, searched=not arguments.no_search) for shape in arguments.shapes]
    columns = (
        *("P", "M", "actions", "greedy", "greedy + validation", "search"),
        *("lowering", "compiled model", "plain model"),
    )
    title = "seconds, and microseconds per action (F, I, W of every rank and microbatch)"
    show_table(title, columns, [one.row() for one in found], width=170)
    return finish(arguments, Topic.SPEED, claims_of(found), clock="real")


if __name__ == "__main__":
    sys.exit(main())
