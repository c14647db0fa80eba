"""Tuning at full scale: slots, messages and memory follow from FLOP, bytes and HBM; times are those of full scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.plan import counts
from testbed.planning import file
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.sweep import reshape, tune
from testbed.sweep.reshape import Shape
from testbed.sweep.tune import Setting

ROOT = Path(__file__).parents[2]
TOPOLOGY = ROOT / "topologies/multicore-410km.yaml"
WORKLOAD = ROOT / "workloads/paper-llama2-13b.yaml"


def test_hbm_bounds_dn_and_times_do_not_depend_on_the_labs_scale() -> None:
    grid = tune.space(load_topology(TOPOLOGY), load_workload(WORKLOAD), [1, 2], [4096])
    assert grid.tokens == 32 * 4096
    one, two = (grid.shapes[Shape(size, 4096)].problem for size in (1, 2))
    assert one.n_microbatches == 2 * two.n_microbatches == 32
    assert one.memory_limit[0] == pytest.approx(2 * two.memory_limit[0], rel=0.01)
    best = tune.exhaustive(grid)[0]
    full = load_workload(WORKLOAD).full_scale
    assert full is not None
    flop = [counts.stage_flop(full, rank, 8) for rank in range(8)]
    tau_s = min(counts.seconds(full, each.forward + each.input + each.weight) for each in flop)
    assert 1.0 < best.seconds / ((32 + 8 - 1) * tau_s) < 1.15
    slow = load_workload(WORKLOAD, {"lab.slot": "40 ms", "lab.message": "140 kB"})
    again = tune.space(load_topology(TOPOLOGY), slow, [1], [4096])
    point = Setting(Shape(1, 4096), (1,))
    assert again.judge(point).seconds == pytest.approx(grid.judge(point).seconds, rel=2e-3)
    with pytest.raises(BadInput, match="--fixed"):
        tune.space(load_topology(TOPOLOGY), slow, [1], [4096], 1e-3)


def test_learned_positions_make_another_model_and_rotary_ones_do_not() -> None:
    assert "parameters" not in (tune.altered(load_workload(WORKLOAD), 8192) or "parameters")
    gpt3 = load_workload(ROOT / "workloads/paper-gpt3-175b.yaml")
    assert f"{2048 * 12288:+} parameters: another model" in (tune.altered(gpt3, 4096) or "")
    assert tune.altered(gpt3, 2048) is None


def test_one_efficiency_for_all_microbatches_is_said_and_a_curve_can_prefer_larger_ones() -> None:
    network = load_topology(TOPOLOGY)
    flat = tune.space(network, load_workload(WORKLOAD), [1, 2, 4], [4096])
    assert "smallest by assumption" in (reshape.efficiency_remark(flat.workload) or "")
    assert tune.exhaustive(flat)[0].point.shape.microbatch_size == 1
    points = ", ".join(f"{{tokens: {n}, share: {x}}}" for n, x in ((4096, 0.2), (8192, 0.4), (16384, 0.45)))
    curve = load_workload(WORKLOAD, {"full_scale.accelerator.efficiency": f"[{points}]"})
    assert reshape.efficiency_remark(curve) is None
    assert tune.exhaustive(tune.space(network, curve, [1, 2, 4], [4096]))[0].point.shape.microbatch_size > 1


def test_a_curve_of_efficiency_is_level_beyond_its_ends_and_kept_in_a_plan() -> None:
    field, curve = "full_scale.accelerator.efficiency", "[{tokens: 4096, share: 0.2}, {tokens: 16384, share: 0.4}]"
    full = load_workload(WORKLOAD, {field: curve}).full_scale
    assert full is not None
    known = [full.accelerator.efficiency_at(tokens) for tokens in (1, 4096, 8192, 16384, 10**6)]
    assert known == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.4])
    plan = load_plan(TOPOLOGY, WORKLOAD, settings=[f"{field}={curve}", "schedules=[1f1b]"])
    made = make(plan, choose(plan))
    whole = with_cases(plan, made.choices, made.made)
    assert file.from_json(file.to_json(whole), "plan.json") == whole
    for wrong in ("[]", "[{tokens: 4096, share: 1.5}]", "[{tokens: 2, share: 0.5}, {tokens: 1, share: 0.5}]", "0"):
        with pytest.raises(BadInput, match="efficiency"):
            load_workload(WORKLOAD, {field: wrong})
