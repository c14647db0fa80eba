"""The plan part of a baseline: topology.yaml, workload.yaml and schedules.json, read and written only here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import BadInput
from testbed.plan import Plan, load_plan, make_plan
from testbed.schedule.registry import Generated
from testbed.schedule.schedule_file import as_document, kept_in
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import ScheduleChoice, Workload

TOPOLOGY, WORKLOAD, SCHEDULES = "topology.yaml", "workload.yaml", "schedules.json"

_UNITS = {"fibre": "m", "delay": "s", "equipment_delay": "s", "rate": "bit/s", "queue": "B", "jitter": "s"} | {
    **dict.fromkeys(("F", "I", "W"), "s"),
    **dict.fromkeys(("message", "parameters"), "B"),
}
"""Fields that are quantities; the files spell their units out."""


@dataclass(frozen=True)
class Subject:
    """What a baseline repeats."""

    plan: Plan
    choices: tuple[ScheduleChoice, ...]
    made: Mapping[str, Generated]
    """Schedules as they were made, so that a solver's is repeated. Empty without pacing: a run makes them anew."""
    topology: Path
    workload: Path
    settings: tuple[str, ...] = ()


def resolve(topology: Path, workload: Path, settings: Sequence[str], names: Sequence[str], **direct: object) -> Plan:
    """The plan of two files with everything laid in: settings, fields in `direct`, and the choice of schedules."""
    plan = load_plan(topology, workload, settings, **direct)
    choices = plan.choose(list(names))
    return make_plan(plan.topology, plan.workload.model_copy(update={"schedules": choices}))


def of_manifest(manifest: Mapping[str, Any], where: str) -> Plan:
    """The plan of a finished run. Raises BadInput."""
    workload = {**_with_units(manifest["workload_spec"]), "schedules": manifest["schedules"]}
    return make_plan(
        validate(Topology, _with_units(manifest["topology_spec"]), where), validate(Workload, _filled(workload), where)
    )


def write(directory: Path, plan: Plan, made: Mapping[str, Generated] | str) -> None:
    """Write the plan; `made` may be the text of a run's schedules.json."""
    specs: tuple[tuple[str, Topology | Workload], ...] = ((TOPOLOGY, plan.topology), (WORKLOAD, plan.workload))
    for name, spec in specs:
        document = _filled(_with_units(spec.model_dump(mode="json")))
        text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
        (directory / name).write_text(text, encoding="utf-8")
    text = made if isinstance(made, str) else _lines(as_document(made))
    (directory / SCHEDULES).write_text(text, encoding="utf-8")


def read(directory: Path, settings: Sequence[str] = ()) -> Subject:
    """The plan of a baseline, with further settings laid over it. Raises BadInput."""
    topology, workload, schedules = (directory / name for name in (TOPOLOGY, WORKLOAD, SCHEDULES))
    plan = load_plan(topology, workload, settings)
    choices = plan.choose([])
    made: dict[str, Generated] = {}
    if plan.workload.pacing:
        try:
            text = schedules.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput.of(str(schedules), "file", str(error), "a readable file") from error
        kept = kept_in(text, str(schedules))
        if lost := [choice.schedule for choice in choices if choice.schedule not in kept]:
            raise BadInput.of(str(schedules), "schedules", list(kept), f"rows for {', '.join(lost)} too")
        made = plan.make(choices, kept)
    return Subject(plan, tuple(choices), made, topology, workload, tuple(settings))


def _with_units(value: Any, field: str = "") -> Any:
    """Quantities as text with their unit, exact to the last bit; None left out."""
    if isinstance(value, dict):
        return {key: _with_units(one, key) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_with_units(one, field) for one in value]
    if field in _UNITS and isinstance(value, int | float):
        return f"{value:.17g} {_UNITS[field]}" if float(f"{value:.15g}") != value else f"{value:.15g} {_UNITS[field]}"
    return value


def _filled(document: dict[str, Any]) -> dict[str, Any]:
    """A workload without pacing must say so."""
    return document if "pacing" in document or "microbatches" not in document else {**document, "pacing": "none"}


def _lines(document: Mapping[str, Any]) -> str:
    """JSON with a row of actions per line: changes show in a diff, and a row fits on a screen better than an action."""
    parts = []
    for name, one in document.items():
        rows = ",\n".join(f"    {json.dumps(row)}" for row in one["rows"])
        solver = json.dumps(one["solver"])
        parts.append(f'{json.dumps(name)}: {{\n  "rows": [\n{rows}\n  ],\n  "solver": {solver}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
