"""The plan of a baseline of format 1, which had no plan.json: topology.yaml, workload.yaml and schedules.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.baseline.tolerance import Mode
from testbed.errors import BadInput
from testbed.files import MOST_JSON_BYTES, read_text
from testbed.plan.plan import Plan
from testbed.planning.resolve import load_plan, with_cases, with_clock
from testbed.planning.schedules import choose, make
from testbed.schedule.schedule_file import kept_in
from testbed.spec.document import validate


@dataclass(frozen=True)
class _Taken:
    """What is read of its baseline.json: how the figures were taken."""

    mode: Mode
    seed: int


def plan_of_format_1(directory: Path, document: object) -> Plan:
    """The plan that its files lead to; `document`: its baseline.json. Raises BadInput naming the file."""
    taken = validate(_Taken, document, str(directory / "baseline.json"))
    workload, schedules = directory / "workload.yaml", directory / "schedules.json"
    plan = load_plan(directory / "topology.yaml", workload)
    plan = with_clock(plan, taken.mode.clock(taken.seed))
    choices = choose(plan)
    if plan.jobs[0].workload.pacing is None:
        return with_cases(plan, choices, {})
    kept = kept_in(read_text(schedules, MOST_JSON_BYTES), str(schedules))
    if lost := [choice.label for choice in choices if choice.label not in kept]:
        raise BadInput.of(str(schedules), "schedules", list(kept), f"rows for {', '.join(lost)} too")
    return with_cases(plan, choices, make(plan, choices, kept, source=str(workload), strict=True).made)
