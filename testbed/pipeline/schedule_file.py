"""Schedules as a run's schedules.json keeps them (name -> rows of actions as text), so that a run can be repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from testbed.errors import BadInput
from testbed.pipeline.ir import Row, Schedule, parse_action


def as_document(schedules: Mapping[str, Schedule]) -> dict[str, list[list[str]]]:
    """What schedules.json holds."""
    return {name: [[str(action) for action in row] for row in one.rows] for name, one in schedules.items()}


def rows_from(text: str, where: str) -> dict[str, tuple[Row, ...]]:
    """The rows of every schedule in a schedules.json. Raises BadInput naming schedule, rank and action."""
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise BadInput.of(where, "file", str(error), "JSON as a run's schedules.json has it") from error
    if not isinstance(document, dict):
        raise BadInput.of(where, "file", type(document).__name__, "an object: name -> rows")
    return {name: _rows(rows, where, name) for name, rows in document.items()}


def _rows(rows: Any, where: str, name: str) -> tuple[Row, ...]:
    if not isinstance(rows, list) or not rows:
        raise BadInput.of(where, name, rows, "a list of rows, one per rank")
    parsed = []
    for rank, row in enumerate(rows):
        if not isinstance(row, list) or not all(isinstance(action, str) for action in row):
            raise BadInput.of(where, f"{name}, rank {rank}", row, "a list of actions such as 2F0")
        try:
            parsed.append(tuple(map(parse_action, row)))
        except ValueError as error:
            raise BadInput.of(where, f"{name}, rank {rank}", str(error), "actions such as 2F0 or 0W1[0:2/4]") from error
    return tuple(parsed)
