"""Problems and options with which every schedule family can be tried quickly."""

from __future__ import annotations

from typing import Any

from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.registry import FAMILIES, generate

QUICK = sorted(name for name, family in FAMILIES.items() if not family.solver)
"""Everything but the solvers, which have tests of their own."""

OPTIONS: dict[str, dict[str, Any]] = {"search": {"evaluations": 8}}


def quick(name: str, problem: Problem, **options: Any) -> Schedule:
    """A family's schedule, validated, in little time."""
    return generate(name, problem, **(OPTIONS.get(name, {}) | options))


def fitting(name: str, p: int, m: int, **costs: Any) -> Problem:
    """A uniform problem in the family's own placement, with memory for any schedule."""
    costs.setdefault("memory", float(2 * max(p, m)))
    return uniform(p, m, stage_to_rank=stage_to_rank(FAMILIES[name].placement, p), **costs)
