"""Schedules as a run's schedules.json keeps them, so that a run can be repeated: {name: {"rows": ..., "solver": ...}}.

Rows are lists of actions as text, one list per rank; `solver` is what a solver proved of the schedule, or null.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.files import json_object
from testbed.pipeline.ir import Row, parse_action
from testbed.schedule.registry import Generated
from testbed.search.proof import Proof
from testbed.spec.document import validate


class RecordedSchedule(NamedTuple):
    """A schedule's rows, not yet checked against any problem, and what was proven of it where it was made."""

    rows: tuple[Row, ...]
    proof: Proof | None
    file: str = ""
    """That it stands in; "" where that is the plan's."""


def as_entry(generated: Generated) -> dict[str, Any]:
    """What schedules.json holds of one schedule."""
    return {
        "rows": [[str(action) for action in row] for row in generated.schedule.rows],
        "solver": generated.proof and generated.proof._asdict(),
    }


def kept_in(text: str, where: str) -> dict[str, RecordedSchedule]:
    """What a schedules.json holds. Raises BadInput naming schedule, rank and action."""
    document = json_object(text, where, "name -> rows and solver, as a run's schedules.json has it")
    return {name: _kept(value, where, name) for name, value in document.items()}


def _kept(value: Any, where: str, name: str) -> RecordedSchedule:
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if isinstance(jobs, dict) and len(jobs) == 1:  # a run's, by job; those of earlier versions had one without a name
        (value,) = jobs.values()
    if not isinstance(value, dict) or set(value) != {"rows", "solver"}:
        raise BadInput.of(where, name, value, "an object with `rows` and `solver`")
    rows, proven = value["rows"], value["solver"]
    if not isinstance(rows, list) or not rows:
        raise BadInput.of(where, f"{name}.rows", rows, "a list of rows, one per rank")
    parsed = []
    for rank, row in enumerate(rows):
        if not isinstance(row, list) or not all(isinstance(action, str) for action in row):
            raise BadInput.of(where, f"{name}.rows.{rank}", row, "a list of actions such as 2F0")
        try:
            parsed.append(tuple(map(parse_action, row)))
        except ValueError as error:
            raise BadInput.of(where, f"{name}.rows.{rank}", str(error), "actions such as 2F0 or 0W1[0:2/4]") from error
    proof = None if proven is None else validate(Proof, proven, where, at=f"{name}.solver")
    return RecordedSchedule(tuple(parsed), proof, where)
