"""Trying every order of small problems beats no bound and no proof; the quick form of benchmarks/brute_force.py."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "brute_force.py"


@pytest.fixture(scope="module")
def brute_force() -> ModuleType:
    spec = importlib.util.spec_from_file_location("brute_force", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["brute_force"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seen(brute_force: ModuleType, seeds: Iterable[int], *, solver: bool) -> Counter[str]:
    effort = brute_force.Effort(orders=200, drawn=2, moves=40, solve_s=0.3)
    total: Counter[str] = Counter()
    for seed in seeds:
        for what, count in brute_force.check(seed, effort, solver=solver, families=False).items():
            assert not what.startswith("wrong"), f"case {seed}: {what}"
            total[what] += count
    return total


def test_no_order_beats_the_lower_bound(brute_force: ModuleType) -> None:
    # those with stages of no length once beat it
    total = seen(brute_force, [*range(200), 1058, 1085, 1211], solver=False)
    assert total["every order tried"] > 50
    assert total["the lower bound is met"] > 50


def test_no_order_beats_the_solver(brute_force: ModuleType) -> None:
    assert seen(brute_force, range(300, 310), solver=True)["optimal"] >= 4
