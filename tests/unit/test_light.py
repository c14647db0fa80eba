"""Light models: smaller, with the same messages, so that nothing of a prediction changes; what is kept says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from in_process import run_testbed

from testbed.errors import BadInput
from testbed.plan.plan import Clock, Plan
from testbed.planning.light import lighter
from testbed.planning.prediction import ranges_of_plan
from testbed.planning.resolve import load_plan, with_clock
from testbed.planning.schedules import choose, make, with_cases
from testbed.spec.presets import preset


def plan_of(*settings: str) -> Plan:
    plan = load_plan(preset("two-dc-longhaul"), preset("tiny-gpt-pp4"), settings=settings)
    made = make(plan, choose(plan))
    return with_clock(with_cases(plan, made.choices, made.made), Clock("virtual"))
