"""Is every small slowdown found, and is there never an alarm where nothing changed? A baseline's check, on purpose.

    python benchmarks/regression_alarms.py [--repeats 200] [--slowdowns 100] [--seed 1] [--record [NAME]]

A small job is measured once on the virtual clock: its baseline. Then it is measured again, many times as it is, and
many times with one thing slower (a rank's slot, a link's delay, a link's rate, the size of messages), drawn by seed
and sized so that an iteration is predicted to take 0.1 % longer. Only the measured time is judged, with the tolerances
of every baseline: the check is not told what was changed. Repeats and slowdowns share boots in random order, two boots
side by side, whatever else the machine does.

What decides over an alarm is one number, the median time of the measured iterations, held against a fixed bound. So
each repeat, which has a lab and workers of its own, stands for as many checks as it measures iterations: each of them
is judged by itself, as a check of one iteration would judge it. And load cannot enter a time of the virtual clock; what
can is the seed of the guest's kernel (its random numbers, and where its ticks fall): every boot has another one.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from harness import options, plans
from harness.record import Claim, Topic, each, finish

from testbed.baseline.measure import Measurement, measure
from testbed.baseline.regression import CheckResult, CheckVerdict, Figures, judge
from testbed.baseline.tolerance import FigureKind, Mode, default_tolerances
from testbed.plan.plan import Clock, Plan
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import with_clock
from testbed.progress import Lines
from testbed.results.run_tables import frame_of

SLOWER = 1e-3
WITHIN = 2e-2
"""Of SLOWER: how well a slowdown is sized."""
IN_A_BOOT, AT_ONCE = 60, 2
ITERATIONS = 5
"""Measured in every plan; one more warms up."""
LIMIT_S = 7200.0
ALARMS = {FigureKind.measured: default_tolerances(Mode.virtual, paced=True)[FigureKind.measured]}


class Factors(NamedTuple):
    """By what a job or its network differs from the baseline's."""

    slot: float = 1.0
    rank: int = 0
    kind: str = "F"
    delay: float = 1.0
    rate: float = 1.0
    message: float = 1.0


def documents(factors: Factors) -> tuple[dict[str, Any], dict[str, Any]]:
    """Topology and workload."""
    link = {"delay": f"{7e6 * factors.delay:.0f} ns", "rate": f"{300e6 * factors.rate:.0f} bit/s"}
    sites = {"north": {"nodes": 1}, "south": {"nodes": 1}}
    slots_ms = {kind: [20.0, 23.0] for kind in "FIW"}
    slots_ms[factors.kind][factors.rank] *= factors.slot
    job = {
        "name": "alarms",
        "model": {"layers": 2, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": 2},
        "microbatches": 4,
        "microbatch_size": 1,
        "message": f"{200e3 * factors.message:.0f} B",
        "pacing": {kind: [f"{1e6 * each_ms:.0f} ns" for each_ms in values] for kind, values in slots_ms.items()},
        "schedules": ["1f1b"],
        "iterations": ITERATIONS,
        "warmup": 1,
    }
    return {"name": "pair", "datacenters": sites, "links": [{"between": ["north", "south"], **link}]}, job


def planned(out: Path, name: str, factors: Factors) -> Plan:
    """The plan, made as a user's."""
    return with_clock(plans.training(out, name, *documents(factors)).plan, Clock("virtual", 1))


def predicted_s(plan: Plan) -> float:
    """Of its one schedule."""
    return iteration_times(plan, plan.cases[0])[0]


def slowed(draw: random.Random, out: Path, name: str, normal_s: float) -> tuple[Plan, str]:
    """One thing slower, by as much as makes an iteration SLOWER; what it is. Drawn again where it does not matter."""
    while True:
        what = draw.choice(["slot", "delay", "rate", "message"])
        at = Factors(rank=draw.randrange(2), kind=draw.choice("FIW"))

        plan_of = partial(worse, out, name, at, what)
        by = sized(plan_of, normal_s)
        if by is not None:
            return plan_of(by), f"{what}{f' {at.kind} of rank {at.rank}' if what == 'slot' else ''} +{by:.2%}"


def worse(out: Path, name: str, at: Factors, what: str, by: float) -> Plan:
    """With one thing slower by a share."""
    factor: Any = 1 / (1 + by) if what == "rate" else 1 + by
    return planned(out, name, at._replace(**{what: factor}))


def sized(plan_of: Callable[[float], Plan], normal_s: float) -> float | None:
    """The share that makes an iteration SLOWER, by bisection; None where none does."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        found = predicted_s(plan_of(middle)) / normal_s - 1
        if abs(found - SLOWER) <= WITHIN * SLOWER:
            return middle
        low, high = (low, middle) if found > SLOWER else (middle, high)
    return None


class Taken(NamedTuple):
    """What came of one plan."""

    outcome: CheckResult
    iterations_s: tuple[float, ...]
    """Of the measured iterations, each by itself."""
    load: float
    """Processes of the machine that wanted a processor, when its boot ended: the mean of a minute."""


def measured(tasks: Sequence[Measurement]) -> Mapping[str, Taken]:
    """In one boot; call it in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="testbed-alarms-") as scratch:
        outcomes = measure(tasks, Path(scratch), limit_s=LIMIT_S, reporter=Lines(quiet=True))
        load = os.getloadavg()[0]
        return {
            name: Taken(outcome, () if outcome.failure else iterations_s(Path(scratch, name)), load)
            for name, outcome in outcomes.items()
        }


def iterations_s(run: Path) -> tuple[float, ...]:
    """What the measured iterations of a run took, in order."""
    frame = frame_of(run / "iterations.parquet", ["warmup", "makespan_s"])
    return tuple(float(time_s) for time_s in frame.makespan_s[~frame.warmup])


def in_boots(tasks: Sequence[Measurement]) -> dict[str, Taken]:
    """So many plans in a boot, each boot with a seed of its own, the baseline's among them."""
    boots = [
        [replace(task, plan=with_clock(task.plan, Clock("virtual", 1 + begin // IN_A_BOOT))) for task in together]
        for begin in range(0, len(tasks), IN_A_BOOT)
        if (together := tasks[begin : begin + IN_A_BOOT])
    ]
    found: dict[str, Taken] = {}
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        for of_boot in pool.map(measured, boots):
            found |= of_boot
            print(f"{len(found)} of {len(tasks)} plans", file=sys.stderr, flush=True)
    return found


def verdict(baseline: Figures, name: str, outcome: CheckResult) -> CheckVerdict:
    """Of a check that sees the measured time only."""
    return judge(name, [baseline], outcome, ALARMS)[0].verdict


def single(baseline: Figures, name: str, time_s: float) -> CheckVerdict:
    """Of a check of one iteration."""
    return verdict(baseline, name, CheckResult((replace(baseline, measured_s=time_s),)))


def claims_of(baseline: Figures, found: Mapping[str, Taken], what: Mapping[str, str], repeats: int) -> list[Claim]:
    """What came of repeats, and of slowdowns: `what` says of each what was slower."""
    same = {name: taken for name, taken in found.items() if name not in what}
    alarms = [name for name, taken in same.items() if verdict(baseline, name, taken.outcome) is not CheckVerdict.same]
    missed = [name for name in what if verdict(baseline, name, found[name].outcome) is not CheckVerdict.slower]
    for name in alarms + missed:
        print(name, what.get(name, "as it was"), found[name])
    times = [(name, time_s) for name, taken in same.items() for time_s in taken.iterations_s]
    of_one = [time_s for name, time_s in times if single(baseline, name, time_s) is not CheckVerdict.same]
    assert baseline.measured_s is not None
    allowed_s = ALARMS[FigureKind.measured].allowed(baseline.measured_s)
    apart_s = max((abs(time_s - baseline.measured_s) for _, time_s in times), default=0.0)
    seeds, loads = -(-len(found) // IN_A_BOOT), [taken.load for taken in found.values()]
    load = f"; seeds: {seeds}, load {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores"
    return [
        each("slowdowns of 0.1 % found by the measured time", len(missed), len(what), more=load),
        each("repeats, each in a lab of its own, raise no alarm", len(alarms), repeats, more=load),
        each(
            "the single iterations of these repeats, each judged as a check of one iteration, raise no alarm",
            len(of_one) + repeats * ITERATIONS - len(times),
            repeats * ITERATIONS,
            unit="iterations",
            more=f"; furthest from the baseline {apart_s * 1e9:.0f} ns of {allowed_s * 1e6:.0f} us",
        ),
    ]


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--slowdowns", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw, what = random.Random(arguments.seed), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="testbed-alarms-") as directory:
        out = Path(directory)
        same = planned(out, "same", Factors())
        tasks = [Measurement(f"same-{n:04d}", same, Mode.virtual, "netem") for n in range(arguments.repeats)]
        for n in range(arguments.slowdowns):
            plan, what[f"slow-{n:04d}"] = slowed(draw, out, f"slow-{n:04d}", predicted_s(same))
            tasks.append(Measurement(f"slow-{n:04d}", plan, Mode.virtual, "netem"))
    draw.shuffle(tasks)
    kept = Measurement("baseline", same, Mode.virtual, "netem")
    (baseline,) = in_boots([kept])[kept.name].outcome.figures
    claims = claims_of(baseline, in_boots(tasks), what, arguments.repeats)
    return finish(arguments, Topic.ROBUSTNESS, claims)


if __name__ == "__main__":
    sys.exit(main())
