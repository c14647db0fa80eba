"""Every topology and workload that comes with the testbed loads, makes a plan, and is predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.plan.costs import predict_case, problem, schedule_of
from testbed.planning.resolve import generate, load_plan, with_cases
from testbed.planning.schedules import choose
from testbed.schedule.geopipe import cuts, hiding
from testbed.spec.topology import load_topology

ROOT = Path(__file__).parents[2]
TOPOLOGIES = sorted((ROOT / "topologies").glob("*.yaml"))
WORKLOADS = sorted((ROOT / "workloads").glob("*.yaml"))
GEOPIPE = ROOT / "topologies/geopipe-three-region.yaml"


FASTEST_LAB_BPS = 100e9
"""Of a link; faster ones are for workloads at full scale, where there are any."""


def suitable(topology: Path) -> Path:
    """A workload of eight stages for a topology."""
    fast = max(one.rate_bps for one in load_topology(topology).directions()) >= FASTEST_LAB_BPS
    full_scale = [path for path in WORKLOADS if path.name == "paper-llama2-13b.yaml"]
    return full_scale[0] if fast and full_scale else ROOT / "workloads/tiny-gpt-pp8.yaml"


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda path: path.stem)
def test_a_topology_is_planned_and_predicted(topology: Path) -> None:
    plan = load_plan(topology, suitable(topology), settings=["memory=32"])
    assert plan.network.name == topology.stem
    choices = choose(plan, ["1f1b", "geopipe"])
    plan = with_cases(plan, choices, {choice.label: generate(plan, choice) for choice in choices})
    seconds = []
    for case in plan.cases:
        schedule = schedule_of(plan, case)
        assert schedule is not None
        seconds.append(float(predict_case(plan, case, schedule).makespans()[0]))
    pacing, microbatches = plan.jobs[0].workload.pacing, plan.jobs[0].workload.microbatches
    assert pacing is not None
    tau_s = min(sum(pacing.of(kind, rank) for kind in ("F", "I", "W")) for rank in range(8))
    assert seconds[0] >= seconds[1] >= (microbatches + 8 - 1) * tau_s
    assert topology.name in (ROOT / "docs/presets.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda path: path.stem)
def test_a_workload_has_a_topology_that_comes_with_it(workload: Path) -> None:
    assert any(is_planned(topology, workload) for topology in TOPOLOGIES)


def is_planned(topology: Path, workload: Path) -> bool:
    """Whether there is a plan of them."""
    try:
        plan = load_plan(topology, workload)
    except BadInput:
        return False
    return plan.jobs[0].name == workload.stem


def test_geopipes_models_need_one_more_forward_per_cut_and_have_memory_for_it() -> None:
    for name in ("geopipe-llama2-13b", "geopipe-llama2-70b"):
        plan = load_plan(GEOPIPE, ROOT / f"workloads/{name}.yaml")
        (choice,) = choose(plan, ["geopipe"])
        costs = problem(plan, choice)
        assert cuts(costs) == [2, 5]
        assert hiding(costs) == {2: 1, 5: 1}
