"""By how much losses and gradients of every schedule differ from one process's: what the limits are derived from.

    python benchmarks/numerics.py [--iterations 12] [--schedules NAME...] [--record [NAME]] [WORKLOAD...]

Trains every shipped workload under every schedule, unpaced, with real processes over the loopback interface (no lab,
no root), and prints the worst relative difference of an iteration's loss and of a layer's gradient norm.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

from testbed.errors import BadInput
from testbed.judge import iterations, numerics
from testbed.judge.iterations import IterationRow
from testbed.lab.machine_witness import MachineCounts
from testbed.plan.plan import Plan
from testbed.planning import resolve
from testbed.schedule.registry import FAMILIES
from testbed.session import deadlines
from testbed.session.loop import Loop
from testbed.spec.choice import ScheduleChoice
from testbed.train.assignment import ReferenceOutcome, TimedSchedule, TrainingTask
from testbed.train.launcher import Launcher
from testbed.train.protocol import TrainReference, WorkerPlace, WorldSpec

TOPOLOGY = ROOT / "topologies/two-dc-longhaul.yaml"
SOLVER_LIMIT_S = 2.0
UNWITNESSED = MachineCounts(math.nan, math.nan, math.nan, math.nan)
"""No time is looked at here."""


class Worst(NamedTuple):
    """The worst relative differences of one schedule."""

    loss: float
    gradient_norm: float


def differences(rows: list[IterationRow], reference: ReferenceOutcome) -> Worst:
    rows = rows[: len(reference.losses)]
    loss = numerics.worst_difference([row.loss for row in rows], reference.losses)
    return Worst(loss, numerics.worst_gradient_difference(rows, reference))


def world(plan: Plan, directory: str) -> WorldSpec:
    ranks = plan.jobs[0].mesh.size
    return WorldSpec(
        places=(WorkerPlace(None, "lo"),) * ranks,
        store=f"file://{directory}/store",
        timeout_s=60.0,
        warmup_bytes=1000,
        neighbours=tuple((a, b) for a in range(ranks) for b in range(a + 1, ranks)),
        logs=directory,
    )


def train(plan: Plan, choice: ScheduleChoice, loop: Loop) -> list[IterationRow]:
    workload = plan.jobs[0].workload
    schedule = resolve.generate(plan, choice).schedule
    task = TrainingTask(TimedSchedule(schedule, None), workload, workload.warmup + workload.iterations)
    return [
        iterations.iteration_row(records, workload.warmup, UNWITNESSED)
        for (records,) in loop.run([task], deadlines.of_unknown_iteration())
    ]


def trained(plan: Plan, names: list[str]) -> list[Worst]:
    """Of every schedule that fits, each printed."""
    workload = plan.jobs[0].workload
    count, found = numerics.compared(workload), []
    with tempfile.TemporaryDirectory() as directory, Launcher() as launcher:
        launcher.ask_for_reference(TrainReference(workload, count, deadlines.of_reference(workload, count).seconds))
        reference = launcher.reference()
        print(f"{workload.name}: {count} iterations in one process took {reference.took_s:.2f} s", flush=True)
        with Loop([launcher]) as loop:
            loop.start([world(plan, directory)], deadlines.of_connecting(plan))
            for name in names:
                limit = SOLVER_LIMIT_S if FAMILIES[name].solver else None
                choice = ScheduleChoice(schedule=name, memory=float(workload.microbatches), time_limit_s=limit)
                try:
                    worst = differences(train(plan, choice, loop), reference)
                except BadInput as error:
                    print(f"  {name:18} {error}")
                    continue
                found.append(worst)
                print(f"  {name:18} loss {worst.loss:.1e}   gradient norm {worst.gradient_norm:.1e}", flush=True)
    return found


def main() -> int:
    """Train; claim the worst of every workload."""
    parser = options.parser(__doc__)
    parser.add_argument("workloads", nargs="*", type=Path, default=sorted((ROOT / "workloads").glob("*.yaml")))
    parser.add_argument("--schedules", nargs="+", default=sorted(FAMILIES))
    parser.add_argument(
        "--iterations", type=int, default=12, help="warm-up included; of more only the first that are compared"
    )
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    claims = []
    for workload in given.workloads:
        settings = ["warmup=1", f"iterations={given.iterations - 1}", *given.settings]
        found = trained(resolve.load_plan(TOPOLOGY, workload, settings=settings), given.schedules)
        loss, norm = (max((one[of] for one in found), default=math.inf) for of in (0, 1))
        got = f"loss {loss:.1e}, gradient norm {norm:.1e}" if found else "no schedule fits"
        claim = f"{workload.stem}, {len(found)} schedules: off what one process computes"
        claims.append(Claim(claim, "(report)", got, None, norm if found else None, "share"))
    return finish(given, Topic.TRUTH, claims, clock="real")


if __name__ == "__main__":
    sys.exit(main())
