"""Trying every order of small problems beats no bound and no proof; the quick form of benchmarks/brute_force.py."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import brute_force
from parts import small_plans


def seen(seeds: Iterable[int], **parts: bool) -> Counter[str]:
    effort = brute_force.Effort(orders=200, drawn=2, moves=40, solve_s=0.3)
    parts = dict.fromkeys(("solver", "families", "own", "best"), False) | parts
    total: Counter[str] = Counter()
    for seed in seeds:
        for what, count in (+brute_force.check(seed, effort, **parts)).items():
            assert not what.startswith("wrong"), f"case {seed}: {what}"
            total[what] += count
    return total


def test_no_order_beats_the_lower_bound() -> None:
    # those with stages of no length once beat it
    total = seen([*range(48), 1058, 1085, 1211])
    assert total["every order tried"] > 10
    assert total["the lower bound is met"] > 10


def test_no_order_beats_the_solver() -> None:
    assert seen(range(300, 305), solver=True)["optimal"] >= 2


def test_another_model_agrees() -> None:
    """One that shares nothing with the solver's comes to the same optima."""
    total = seen(range(400, 410), own=True)
    assert total["own model asked"] == 10
    assert total["proven by the own model"] >= 2


def test_the_best_is_never_slower_than_what_it_stands_for() -> None:
    total: Counter[str] = Counter()
    for seed in range(4):
        total += small_plans.check(seed)
    assert not [what for what in total if what.startswith("wrong")]
    assert total["plans"] >= 2
