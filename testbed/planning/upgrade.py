"""plan.json of an earlier format, as this version would have written it.

Format 1 had no events of their own: each case said what was gone (`lost`) and who did not train (`away`), and `event`
when it went on from the case before it. What happened is what two cases of a training differ in. Up to format 2, some
of `host_costs` had other names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from testbed.errors import BadInput
from testbed.plan.plan import Continuation
from testbed.plan.timeline import Event, JobArrives, JobDeparts, LinkLost, Moment
from testbed.spec.document import validate


class _Case(BaseModel):
    """What a case of format 1 said of events; the rest of it is as it was."""

    label: str
    event: Continuation | None = None
    lost: list[str] = []
    away: list[str] = []
    alone_of: str | None = None


class _Name(BaseModel):
    name: str


class _Plan(BaseModel):
    network: dict[str, Any]
    jobs: list[_Name]
    cases: list[_Case]


_GONE = ("event", "lost", "away")

_EARLIER_COSTS = {
    "turn_s": "stagger_s",
    "turn_s_per_byte": "stagger_s_per_byte",
    "shared_turn_s": "shared_stagger_s",
    "shared_turn_s_per_byte": "shared_stagger_s_per_byte",
    "meet_s": "tie_s",
}
"""Of `host_costs`, up to format 2."""


def upgraded(document: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The document of a plan in this version's format. One of this version, or of none that is known, is as it was.

    Raises BadInput for one of format 1 whose trainings have different events: this version has one list for all.
    """
    version = document.get("format", 1)
    if version not in (1, 2) or isinstance(version, bool):
        return document
    costs = document.get("host_costs")
    if isinstance(costs, dict):
        document = {**document, "host_costs": {_EARLIER_COSTS.get(name, name): cost for name, cost in costs.items()}}
    return {**(_of_format_2(document, source) if version == 1 else document), "format": 3}


def _of_format_2(document: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The document of format 1 with one list of events. Raises as `upgraded`."""
    if "events" in document:
        raise BadInput.of(source, "events", document["events"], "no such field in format 1")
    before = validate(_Plan, document, source)
    network = dict(document["network"])
    if (events := network.pop("events", [])) != []:
        raise BadInput.of(source, "network.events", events, "an empty list")
    timelines = [_happened(training, source) for training in _trainings(before.cases)]
    found = timelines[0] if timelines else []
    for training, timeline in zip(_trainings(before.cases), timelines, strict=True):
        if timeline != found and training[0].alone_of is None:
            raise BadInput.of(source, "cases.label", training[0].label, "the same events in every training")
    names = [job.name for job in before.jobs]
    cases = [
        {key: value for key, value in written.items() if key not in _GONE} | _said(case, names)
        for written, case in zip(document["cases"], before.cases, strict=True)
    ]
    events = [{"kind": event.kind, "name": event.name, "at": vars(event.at)} for event in found]
    return {**document, "network": network, "events": events, "cases": cases}


def _trainings(cases: Sequence[_Case]) -> list[list[_Case]]:
    found: list[list[_Case]] = []
    for case in cases:
        if case.event is None or not found:
            found.append([])
        found[-1].append(case)
    return found


def _happened(training: Sequence[_Case], source: str) -> list[Event]:
    """What happened in a training: at a time what was lost first, then who came, then who left."""
    first, found = training[0], list[Event]()
    if first.event is not None or first.lost:
        expected = "a case before it that it goes on from, or the whole network"
        raise BadInput.of(source, "cases.label", first.label, expected)
    for before, case in pairwise(training):
        if case.lost[: len(before.lost)] != before.lost:
            expected = "the same schedules, starts and losses as the case before it"
            raise BadInput.of(source, "cases.lost", case.label, expected)
        at = Moment(case.event.after if case.event else 0)
        happened: list[Event] = [LinkLost(name, at) for name in case.lost[len(before.lost) :]]
        happened += [JobArrives(name, at) for name in before.away if name not in case.away]
        happened += [JobDeparts(name, at) for name in case.away if name not in before.away]
        if not happened:
            raise BadInput.of(source, "cases.event", case.label, "something that is lost, arrives or departs")
        found += happened
    arriving = {event.name for event in found if isinstance(event, JobArrives)}
    if first.alone_of is None and arriving != set(first.away):
        once = ", ".join(sorted(arriving.symmetric_difference(first.away)))
        raise BadInput.of(source, "cases.away", once, "a job that is there once, and does not come back")
    return found


def _said(case: _Case, names: Sequence[str]) -> dict[str, Any]:
    """The fields of this version that stand for those of format 1."""
    said: dict[str, Any] = {} if case.event is None else {"continues": vars(case.event)}
    if case.alone_of is not None:
        there = [name for name in names if name not in case.away]
        said["alone"] = there[0] if len(there) == 1 else ""
    return said
