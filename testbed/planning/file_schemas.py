"""JSON Schema of each kind of file that a user writes, by name; `testbed schema` prints them, editors read them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, PydanticUserError

from testbed.errors import BadInput, meant
from testbed.planning.resolve import BEST, ROBUST
from testbed.schedule.family import Family
from testbed.schedule.registry import FAMILIES
from testbed.spec import Topology, Workload
from testbed.spec.choice import IN_FILE, SCHEDULE, ScheduleChoice
from testbed.spec.document import whole
from testbed.spec.json_schema import json_schema
from testbed.spec.plugin_options import options_model
from testbed.spec.study import StudySpec

KINDS: dict[str, type[BaseModel]] = {"topology": Topology, "workload": Workload, "study": StudySpec}
"""The models of files by kind."""


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind of file, with the models and schedules that are registered here. Raises BadInput."""
    if kind not in KINDS:
        raise BadInput.of("testbed schema", "KIND", kind, f"one of {', '.join(KINDS)}{meant(kind, KINDS)}")
    schema = json_schema(KINDS[kind])
    definitions = schema.get("$defs", {})
    choice = definitions.get(ScheduleChoice.__name__)
    by_p95 = {"type": "boolean", "description": "chosen by the 95th percentile over drawn slots"}
    options: dict[str, dict[str, Any]] = {BEST: {ROBUST: by_p95}}
    if choice is not None:
        for name, family in FAMILIES.items():
            options[name], needed = _options(name, family)
            definitions |= needed
        choice["allOf"] = _fields_by_schedule(options, list(choice["properties"]))
    known: dict[str, Any] = _with_names(schema, list(options))
    return known


def _with_names(schema: Any, names: list[str]) -> Any:
    """The schema in which every name of a schedule is one of these, or of a file."""
    if isinstance(schema, list):
        return [_with_names(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("pattern") != whole(SCHEDULE):
        return {key: _with_names(value, names) for key, value in schema.items()}
    others = {key: value for key, value in schema.items() if key != "pattern"}
    return {**others, "anyOf": [{"enum": names}, {"pattern": whole(IN_FILE)}]}


def _fields_by_schedule(known: dict[str, dict[str, Any]], of_all: list[str]) -> list[dict[str, Any]]:
    """For every registered schedule the fields that it has beside those `of_all`; one in a file may have any."""
    found = []
    for name, options in known.items():
        fields: dict[str, Any] = dict.fromkeys(of_all, True) | options
        is_it = {"properties": {"schedule": {"const": name}}, "required": ["schedule"]}
        found.append({"if": is_it, "then": {"properties": fields, "additionalProperties": False}})
    return found


def _options(name: str, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a family, of which null leaves one out, and what their schemas refer to.

    An option of a package whose type has no schema may be anything: it is checked when the schedule is made.
    """
    prefix, known = f"{name}.", {"description": f"of {name}: {family.summary}"}
    try:
        made = json_schema(options_model(family.generate, tuple(family.option_names())), prefix)
    except PydanticUserError:
        return dict.fromkeys(family.option_names(), known), {}
    found = {}
    for option, schema in made.get("properties", {}).items():
        default = {key: schema.pop(key) for key in ("default",) if key in schema}
        found[option] = {**known, "anyOf": [schema, {"type": "null"}], **default}
    return found, {f"{prefix}{key}": value for key, value in made.get("$defs", {}).items()}
