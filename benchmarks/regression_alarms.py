"""Is every small slowdown found, and is there never an alarm where nothing changed? A baseline's check, on purpose.

    python benchmarks/regression_alarms.py [--repeats 200] [--slowdowns 100] [--seed 1] [--record [NAME]]

A small job is measured once on the virtual clock: its baseline. Then it is measured again, many times as it is, and
many times with one thing slower (a rank's slot, a link's delay, a link's rate, the size of messages), drawn by seed
and sized so that an iteration is predicted to take 0.1 % longer. Only the measured time is judged, with the tolerances
of every baseline: the check is not told what was changed. Repeats and slowdowns share boots in random order, a boot per
processor, whatever else the machine does.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import options, plans
from harness.record import Claim, Topic, each, finish

from testbed.baseline.measure import Measurement, measure
from testbed.baseline.regression import CheckResult, CheckVerdict, Finding, judge
from testbed.baseline.tolerance import FigureKind, Mode, default_tolerances
from testbed.plan.plan import Clock, Plan
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import with_clock
from testbed.progress import Lines

SLOWER = 1e-3
WITHIN = 2e-2
"""Of SLOWER: how well a slowdown is sized."""
IN_A_BOOT, AT_ONCE = 25, 2
LIMIT_S = 1800.0
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
        "iterations": 2,
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


def measured(tasks: list[Measurement]) -> Mapping[str, CheckResult]:
    """In one boot."""
    with tempfile.TemporaryDirectory(prefix="testbed-alarms-") as scratch:
        for task in tasks:
            Path(scratch, task.name).mkdir()
        found = measure(tasks, Path(scratch), limit_s=LIMIT_S, reporter=Lines(quiet=True))
    print(".", end="", flush=True, file=sys.stderr)
    return found


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
        (baseline,) = measured([Measurement("baseline", same, Mode.virtual, "netem")])["baseline"].figures
        boots = [tasks[begin : begin + IN_A_BOOT] for begin in range(0, len(tasks), IN_A_BOOT)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = {name: result for of_boot in pool.map(measured, boots) for name, result in of_boot.items()}
    print(file=sys.stderr)

    def finding(name: str) -> Finding:
        return judge(name, [baseline], found[name], ALARMS)[0]

    alarms = [name for name in found if name.startswith("same") and finding(name).verdict is not CheckVerdict.same]
    missed = [name for name in what if finding(name).verdict is not CheckVerdict.slower]
    for name in alarms + missed:
        print(name, what.get(name, "as it was"), finding(name), found[name].failure)
    assert baseline.measured_s is not None
    times = [
        figures.measured_s - baseline.measured_s
        for name, result in found.items()
        for figures in result.figures
        if name.startswith("same") and figures.measured_s is not None
    ]
    allowed_s = ALARMS[FigureKind.measured].allowed(baseline.measured_s)
    apart_s = max(map(abs, times), default=0.0)
    claims = [
        each("slowdowns of 0.1 % found by the measured time", len(missed), arguments.slowdowns),
        each("repeats of what did not change raise no alarm", len(alarms), arguments.repeats),
        Claim(
            "repeats: furthest from the baseline, as a share of what raises an alarm",
            "< 100%",
            f"{apart_s / allowed_s:.1%} ({apart_s * 1e9:.0f} ns of {allowed_s * 1e6:.0f} us)",
            apart_s < allowed_s,
            apart_s / allowed_s,
            "share",
            len(times),
            arguments.repeats,
        ),
    ]
    return finish(arguments, Topic.ROBUSTNESS, claims)


if __name__ == "__main__":
    sys.exit(main())
