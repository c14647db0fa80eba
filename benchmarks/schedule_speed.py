"""How fast are generators and the event model? Time per action from P = 4 to 64, M = 2P to 16P.

    python benchmarks/schedule_speed.py [--shapes 4x8,64x1024] [--no-search] [--best 64x128] [--compare 64x128]

Time per action constant (near-linear growth); P = 64, M = 1,024 greedy and simulation within 5 s;
the event model at a million actions per second or more. Every shape is timed in this one process, best of three, after
one untimed call that loads the compiled code. Two datacenters, T_lat = T_F, T_bw = 0.25 T_F, memory P.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from testbed.model.lower import Load, lower
from testbed.model.simulate import run
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.ticks import in_ticks
from testbed.plan.plan import Plan
from testbed.planning.resolve import make_plan
from testbed.planning.schedule_comparison import compare_schedules
from testbed.planning.schedules import quick_choices, ranked
from testbed.schedule.greedy import greedy_rows
from testbed.schedule.registry import generate
from testbed.schedule.search_families import search
from testbed.spec.choice import ScheduleChoice
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import load_workload

SHAPES = [(p, factor * p) for p in (4, 8, 16, 32, 64) for factor in (2, 4, 16)]
PLAIN_UP_TO = 30_000

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


def planned(ranks: int, microbatches: int) -> Plan:
    """Two datacenters with half of the ranks each, memory P, every family to choose from."""
    workloads = Path(__file__).parents[1] / "workloads"
    sites = {"a": {"nodes": ranks // 2}, "b": {"nodes": ranks - ranks // 2}}
    link = {"between": ["a", "b"], "delay": "20 ms", "rate": "1.6 Gbit/s"}
    network: dict[str, Any] = {"name": "two", "datacenters": sites, "links": [link]}
    settings = {"parallelism.pipeline": ranks, "microbatches": microbatches, "model.layers": 2 * ranks, "memory": ranks}
    workload = load_workload(workloads / "tiny-gpt-pp4.yaml", {name: str(value) for name, value in settings.items()})
    return make_plan(validate(Topology, network, "two"), workload)


def print_best(shape: str) -> None:
    """How long `best` takes on all cores of this process, its processes' CPU time, and what it finds."""
    ranks, microbatches = map(int, shape.split("x"))
    plan, began = planned(ranks, microbatches), time.perf_counter()
    found = ranked(plan, ScheduleChoice(schedule="best"))
    print(f"best, P = {ranks}, M = {microbatches}: {_cost(began)}")
    for one in found.found:
        print(f"    {one.choice.label:20s} {one.makespan_s:.4f} s")


def print_comparison(shape: str) -> None:
    """The same of `testbed schedule compare`."""
    ranks, microbatches = map(int, shape.split("x"))
    plan, began = planned(ranks, microbatches), time.perf_counter()
    found = compare_schedules(plan, quick_choices(plan))
    print(f"schedule compare, P = {ranks}, M = {microbatches}: {_cost(began)}")
    for one in found.schedules:
        cost = "" if one.memory_s is None else f", memory costs {one.memory_s:.4f} s"
        print(f"    {one.label:20s} {one.predicted_s:.4f} s{cost}")


def _cost(began: float) -> str:
    """Wall and CPU seconds; the search in it ends by wall seconds, so that CPU is less on a busy machine."""
    wall_s = time.perf_counter() - began
    cpu_s = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"{wall_s:.1f} s, {cpu_s:.1f} s of CPU time with this script's start"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(f"{p}x{m}" for p, m in SHAPES), help="ranks x microbatches")
    parser.add_argument("--no-search", action="store_true", help="leave out `search`, which takes most of the time")
    parser.add_argument("--best", metavar="PxM", help="time `best` instead, with the processes that it starts")
    parser.add_argument("--compare", metavar="PxM", help="time `schedule compare` instead")
    arguments = parser.parse_args()
    if arguments.best or arguments.compare:
        if arguments.best:
            print_best(arguments.best)
        else:
            print_comparison(arguments.compare)
        return 0
    warm = problem(4, 8)
    run(lower([Load(warm, generate("crosspipe-greedy", warm))])[0], compiled=True)
    greedy_rows(in_ticks(warm), 4)
    table = Table(
        title="seconds, and microseconds per action (F, I, W of every rank and microbatch)", title_justify="left"
    )
    for column in ("P", "M", "actions"):
        table.add_column(column, justify="right")
    for column in ("greedy", "greedy + validation", "search", "lowering", "compiled model", "plain model"):
        table.add_column(column, justify="right")
    for shape in arguments.shapes.split(","):
        ranks, microbatches = map(int, shape.split("x"))
        asked = problem(ranks, microbatches)
        actions = 3 * ranks * microbatches
        runs = 3 if actions < 100_000 else 1

        def shown(seconds: float, count: int = actions) -> str:
            return f"{seconds:.3f} s  {seconds / count * 1e6:.2f}"

        core_s, _ = best(lambda p=asked: greedy_rows(in_ticks(p), 4), runs)  # type: ignore[misc]
        whole_s, schedule = best(lambda p=asked: generate("crosspipe-greedy", p), runs)  # type: ignore[misc]
        searched = "-"
        if not arguments.no_search:
            searched = shown(best(lambda p=asked: search(p), 1)[0])  # type: ignore[misc]
        lower_s, program = best(lambda p=asked, s=schedule: lower([Load(p, s)])[0], runs)  # type: ignore[misc]
        run_s, _ = best(lambda p=program: run(p, compiled=True), runs)  # type: ignore[misc]
        plain = "-"
        if actions <= PLAIN_UP_TO:
            plain = shown(best(lambda p=program: run(p, compiled=False), 1)[0])  # type: ignore[misc]
        rate = f"{shown(run_s)}  ({len(program.duration_s) / run_s / 1e6:.1f} M/s)"
        columns = [shown(core_s), shown(whole_s), searched, shown(lower_s), rate, plain]
        table.add_row(str(ranks), str(microbatches), str(actions), *columns)
    Console(width=170).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
