"""What engine and network stack add, by size of message and kind of flow: the content of `testbed calibrate --engine`.

The constants of plan/host_costs.py stand for an ideal machine; on the virtual clock this measures them, on a real one
what the machine adds to them.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from testbed.lab.confinement import let_workers_write, possible
from testbed.lab.host_settings import HostPriority
from testbed.lab.machine_witness import MachineWitness
from testbed.model.host_prediction import Floats
from testbed.plan.costs import largest_burst_bytes
from testbed.plan.plan import Plan
from testbed.plan.traffic import planned_traffic
from testbed.planning.resolve import generate
from testbed.progress import Reporter
from testbed.session import deadlines
from testbed.session.building import built
from testbed.session.loop import Loop
from testbed.session.message_costs import SCHEDULE, MessageCosts, Observed, observe, of_observed, percentiles
from testbed.session.world import worlds_of
from testbed.spec.choice import ScheduleChoice
from testbed.trace.tables import UNNOTICED_WAIT_S
from testbed.train.launcher import Launcher


def measure_engine(
    plan: Plan,
    sizes: Sequence[int],
    *,
    machine: Mapping[str, Any],
    shaper: str,
    host_priority: HostPriority,
    witness: MachineWitness,
    reporter: Reporter,
) -> dict[str, Any]:
    """Train a plan's only job with messages of these sizes (bytes), in one lab. Call inside a sandbox.

    The plan's only case is 1F1B. `machine` is what the document says of the machine and its clock.
    Raises MachineLacks or RunFailed.
    """
    variants = [_with_messages(plan, size) for size in sizes]
    largest = variants[int(np.argmax(sizes))]
    with tempfile.TemporaryDirectory(prefix="testbed-") as name, ExitStack() as opened:
        scratch, burst = Path(name), largest_burst_bytes(largest)
        let_workers_write(scratch)
        launcher = opened.enter_context(Launcher(possible(scratch)))
        with built(largest, reporter, shaper=shaper, host_priority=host_priority, largest_burst_bytes=burst) as lab:
            (world,) = worlds_of(largest, lab, scratch, scratch / "logs")
            with Loop([launcher], lab.processes()) as loop:
                with reporter.step("starting workers"):
                    launcher.imported()
                    loop.start([world], deadlines.of_connecting(largest))
                witness.watch(lab.carriers())
                found = []
                for variant in variants:
                    before = lab.counters()
                    schedule = generate(variant, ScheduleChoice(schedule=SCHEDULE)).schedule
                    (case,) = variant.cases
                    (seen,) = observe(variant, case, [schedule], loop, reporter, witness, real_time=world.real_time)
                    counted = [now.since(then).wire_bytes for now, then in zip(lab.counters(), before, strict=True)]
                    found.append(_of_size(variant, seen, counted))
    costs = plan.host_costs
    return {
        **machine,
        "kernel": platform.release(),
        "schedule": SCHEDULE,
        "shaper": lab.shaper_name,
        "model": asdict(costs),
        "sizes": found,
    }


def _with_messages(plan: Plan, size: int) -> Plan:
    """The plan with boundary messages of so many bytes, or of the tensor's size where that is larger."""
    (job,) = plan.jobs
    workload = job.workload.model_copy(update={"message": float(max(size, job.workload.tensor_bytes()))})
    return replace(plan, jobs=(replace(job, workload=workload),))


def _of_size(plan: Plan, seen: Observed, counted: Sequence[float]) -> dict[str, Any]:
    found, (job,) = of_observed([seen]), plan.jobs
    of_kind = {crosses: None if found is None else _of_kind(found[0], crosses) for crosses in (False, True)}
    messages = job.workload.message_bytes()
    return {
        "message_bytes": messages,
        "iterations": len(seen.rows),
        "inside_s": _shown(of_kind[False]),
        "across_s": _shown(of_kind[True]),
        "gloo_bytes": _gloo_bytes(plan, seen, counted),
        "ready_wait_s": _shown(_ready_waits(seen)),
    }


def _of_kind(costs: MessageCosts, crosses: bool) -> Floats | None:
    """The extra times of all flows that cross links, or of all that do not."""
    flows = costs.extra.by_flow.items()
    times = [part for flow, parts in flows if (flow in costs.extra.crossing) is crosses for part in parts]
    return np.concatenate(times) if times else None


def _shown(times: Floats | None) -> dict[str, float] | None:
    return None if times is None or not len(times) else percentiles(times)


def _gloo_bytes(plan: Plan, seen: Observed, counted: Sequence[float]) -> float | None:
    """What gloo adds to a message on the wire; None where no message crosses a link."""
    planned = planned_traffic(plan, plan.cases[0])
    # each counts where it goes, and where it is acknowledged
    crossed = sum(direction.messages for direction in planned) / 2
    if not crossed:
        return None
    more = sum(counted) - seen.iterations * sum(direction.wire_bytes for direction in planned)
    return float(more / (seen.iterations * crossed) + plan.host_costs.gloo_bytes)


def _ready_waits(seen: Observed) -> Floats:
    """How long it takes to take a message that lies ready."""
    actions = np.concatenate([trace.actions for trace in seen.traces])
    waits = actions["ready_s"] - actions["reached_s"]
    return np.asarray(waits[(waits > 0) & (waits < UNNOTICED_WAIT_S)], dtype=np.float64)
