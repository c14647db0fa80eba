"""Recompute: memory for time, in the plan, the event model and the peak."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.pipeline.memory import peaks
from testbed.plan.costs import KEPT_WHEN_RECOMPUTING, problem
from testbed.planning.resolve import generate, make_plan
from testbed.planning.schedules import candidates
from testbed.spec import load_topology, load_workload
from testbed.spec.choice import ScheduleChoice

ROOT = Path(__file__).parents[2]


def plan(recompute: bool):  # type: ignore[no-untyped-def]
    settings = {"recompute": str(recompute).lower()}
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", settings)
    return make_plan(load_topology(ROOT / "topologies/two-dc-longhaul.yaml"), workload)


def test_gpipe_fits_when_it_recomputes() -> None:
    choice = ScheduleChoice(schedule="gpipe")
    schedule = generate(
        plan(True), choice
    ).schedule  # without recompute it needs 8 microbatches' memory, the limit is 4
    held = peaks(schedule, problem(plan(True), choice))
    # seven inputs kept, and one microbatch whole while its backward runs
    assert max(held) == pytest.approx(8 * KEPT_WHEN_RECOMPUTING + (1 - KEPT_WHEN_RECOMPUTING))


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "crosspipe-greedy", "wave-greedy"])
def test_recompute_costs_a_forward_per_backward(name: str) -> None:
    choice = ScheduleChoice(schedule=name)
    whole, again = plan(False), plan(True)
    # eight microbatches of 20 ms each on every rank
    (slow,), (fast,) = (candidates(plan, [choice]).found for plan in (again, whole))
    slower = slow.makespan_s - fast.makespan_s
    assert slower <= 11 * 0.020 + 1e-9
    work = [sum(problem(again, choice).duration(a) for a in row) for row in generate(again, choice).schedule.rows]
    assert work == pytest.approx([8 * 0.080] * 4)
