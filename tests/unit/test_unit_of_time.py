"""A unit of time never matters to a schedule: benchmarks/unit_invariance.py in little time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from testbed.model.simulate import makespan
from testbed.pipeline.problem import uniform
from testbed.schedule.greedy import crosspipe_greedy

FILE = Path(__file__).parents[2] / "benchmarks/unit_invariance.py"


@pytest.fixture(scope="module")
def grid() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unit_invariance", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["unit_invariance"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("unit_s", [1.0, 20e-3, 1e-3, 3.7e-3, 1 / 3, 7e-9, 3600.0])
def test_the_greedy_takes_as_many_units(unit_s: float) -> None:
    """Ready times that differed by their last bit made it 125.25 units at 20 ms."""
    problem = uniform(
        8,
        32,
        forward_s=unit_s,
        input_s=unit_s,
        weight_s=unit_s,
        delay_s=2 * unit_s,
        wire_s=unit_s,
        cuts=(3,),
    )
    assert makespan(problem, crosspipe_greedy(problem)) / unit_s == pytest.approx(116)


def test_every_unit_has_the_same_schedules(grid: ModuleType) -> None:
    for name, asked in grid.families(4).items():
        for cell in grid.CELLS[::23]:
            if cell.shape != (8, 32):
                assert all(point.same_schedule for point in grid.points(asked, cell)), f"{name}: {cell}"
