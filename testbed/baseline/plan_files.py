"""The plan part of a baseline: topology.yaml, workload.yaml and schedules.json, read and written only here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from testbed.baseline.tolerance import Mode
from testbed.errors import BadInput
from testbed.files import MOST_JSON_BYTES, read_text
from testbed.plan.network_state import planned
from testbed.plan.plan import Network, Plan
from testbed.planning.resolve import load_files, make_plan, network_of, with_cases, with_clock
from testbed.planning.schedules import choose, make
from testbed.schedule.registry import Generated
from testbed.schedule.schedule_file import as_document, kept_in
from testbed.spec.choice import ScheduleChoice
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

TOPOLOGY, WORKLOAD, SCHEDULES = "topology.yaml", "workload.yaml", "schedules.json"

_UNITS = {"fibre": "m", "delay": "s", "equipment_delay": "s", "rate": "bit/s", "queue": "B", "jitter": "s"} | {
    **dict.fromkeys(("F", "I", "W"), "s"),
    **dict.fromkeys(("message", "parameters"), "B"),
}
"""Fields that are quantities; the files spell their units out."""


class Specs(NamedTuple):
    """What the files of a baseline say."""

    topology: Topology
    workload: Workload


@dataclass(frozen=True)
class Subject:
    """What a baseline repeats."""

    specs: Specs
    plan: Plan
    choices: tuple[ScheduleChoice, ...]
    made: Mapping[str, Generated]
    """Schedules as they were made, so that a solver's is repeated. Empty without pacing: a run makes them anew."""

    @property
    def paced(self) -> bool:
        """Whether it is known what actions take."""
        return self.specs.workload.pacing is not None


def resolve(topology: Path, workload: Path, settings: Sequence[str], names: Sequence[str], **direct: object) -> Specs:
    """What two files say with everything laid in: settings, fields in `direct`, and the choice of schedules."""
    network, (job,) = load_files(topology, workload, settings=settings, **direct)
    choices = choose(make_plan(network, job), names)
    return Specs(network, job.model_copy(update={"schedules": choices}))


def of_run(plan: Plan, where: str) -> Specs:
    """What the files of a finished run's plan would say. Raises BadInput for more than one job."""
    if len(plan.jobs) != 1:
        raise BadInput.of(where, "jobs", len(plan.jobs), "one job")
    choices = [case.jobs[0].choice for case in plan.cases]
    workload = plan.jobs[0].workload.model_copy(update={"schedules": choices})
    return Specs(_topology_of(plan.network, where), workload)


def _topology_of(network: Network, where: str) -> Topology:
    """A topology with these nodes, directions and routes; what it was made of (fibre, equipment) is in the delay."""
    directions = planned(network).links
    sides = (
        ("delay_s", "delay"),
        ("rate_bps", "rate"),
        ("queue_bytes", "queue"),
        ("jitter_s", "jitter"),
        ("loss", "loss"),
    )

    def side(index: int) -> dict[str, Any]:
        values = {field: getattr(directions[index], name) for name, field in sides}
        return {field: value for field, value in values.items() if value or field in ("delay", "rate")}

    document: dict[str, Any] = {
        "name": network.name,
        "datacenters": dict(Counter(node.datacenter for node in network.nodes)),
        "links": [
            {
                "name": directions[index].link,
                "between": [directions[index].source, directions[index].target],
                "forward": side(index),
                "reverse": side(index + 1),
            }
            for index in range(0, len(directions), 2)
        ],
    }
    cards = {card.target: {"delay": card.delay_s, "rate": card.rate_bps} for card in network.cards}
    document["datacenters"] = {
        name: {"nodes": count} | ({"inside": cards[name]} if name in cards else {})
        for name, count in document["datacenters"].items()
    }
    for link in document["links"]:
        if link["name"] == "--".join(link["between"]):
            del link["name"]
    plain = validate(Topology, _with_units(document), where)
    default = {(one.source, one.target): one.route for one in network_of(plain).routes}
    document["routes"] = [
        {"from": one.source, "to": one.target, "via": [directions[index].link for index in one.route]}
        for one in network.routes
        if default[one.source, one.target] != one.route
    ]
    return validate(Topology, _with_units(document), where)


def write(directory: Path, specs: Specs, made: Mapping[str, Generated] | str) -> None:
    """Write what the files say; `made` may be the text of a run's schedules.json."""
    named: tuple[tuple[str, Topology | Workload], ...] = ((TOPOLOGY, specs.topology), (WORKLOAD, specs.workload))
    for name, spec in named:
        document = _filled(_with_units(spec.model_dump(mode="json", by_alias=True)))
        text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
        (directory / name).write_text(text, encoding="utf-8")
    text = made if isinstance(made, str) else _lines(as_document(made))
    (directory / SCHEDULES).write_text(text, encoding="utf-8")


def read(directory: Path, mode: Mode, settings: Sequence[str] = ()) -> Subject:
    """The plan of a baseline whose figures come by a mode, with further settings laid over it. Raises BadInput."""
    topology, workload, schedules = (directory / name for name in (TOPOLOGY, WORKLOAD, SCHEDULES))
    network, (job,) = load_files(topology, workload, settings=settings)
    plan = with_clock(make_plan(network, job), mode.clock)
    choices = choose(plan)
    made: dict[str, Generated] = {}
    if job.pacing:
        kept = kept_in(read_text(schedules, MOST_JSON_BYTES), str(schedules))
        if lost := [choice.label for choice in choices if choice.label not in kept]:
            raise BadInput.of(str(schedules), "schedules", list(kept), f"rows for {', '.join(lost)} too")
        made = make(plan, choices, kept, source=str(workload), strict=True).made
    return Subject(Specs(network, job), with_cases(plan, choices, made), tuple(choices), made)


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
