"""What the files of a results directory must hold for a report: checked when they are read, field by field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.files import read_json
from testbed.full_scale.similitude_bound import FullScaleTime
from testbed.judge.comparison import RunJob, job_of, jobs_of, row_type
from testbed.judge.messages import FlowMessages
from testbed.judge.network_metric import LATER_OUTCOMES, CaseFairness
from testbed.pipeline.memory import RankBytes
from testbed.results.comparison_entries import AdaptationEntry, EventEntry, GoodputEntry, LinkEventEntry, check_together
from testbed.results.damaged import as_document
from testbed.search.proof import Proof
from testbed.spec.document import validate
from testbed.thresholds import TIE


@dataclass(frozen=True)
class _Check:
    """An entry of `checks`; see judge/fidelity.py."""

    question: str
    found: str
    limit: str
    why: str
    ok: bool
    notes: list[str] = field(default_factory=list)
    not_taken: str = ""


@dataclass(frozen=True)
class _Memory:
    """The `memory` of an entry; see plan/memory_bytes.py."""

    measured: list[RankBytes] | None
    predicted: list[RankBytes] | None
    activations_limit: list[float] | None


@dataclass(frozen=True)
class _AtFullScale(FullScaleTime):
    """The `full_scale` of an entry."""

    measured_s: float


@dataclass(frozen=True)
class _Named:
    """An entry of the manifest's `schedules`."""

    label: str


@dataclass(frozen=True)
class _Manifest:
    """What is read of manifest.json."""

    format: int = 1
    nodes: tuple[str, ...] = ()
    schedules: tuple[_Named, ...] = ()
    jobs: tuple[RunJob, ...] = ()


@dataclass(frozen=True)
class _Comparison:
    """What is shown of comparison.json beside its rows."""

    name: str
    shaper: str
    transport: str
    clock: str
    ranking_as_predicted: bool
    schedules: list[dict[str, Any]]
    complete: bool = True
    ranking_tie: float = TIE
    """Schedules predicted within this share of each other are not ranked."""
    fairness: tuple[CaseFairness, ...] = ()
    jobs: tuple[RunJob, ...] = ()
    """Of several: each has an entry for every case."""
    events: tuple[EventEntry, ...] = ()
    link_events: tuple[LinkEventEntry, ...] = ()
    goodput: tuple[GoodputEntry, ...] = ()
    adaptation: AdaptationEntry | None = None


_TIMES = ("measured_s", "predicted_s", "predicted_on_this_host_s")


def json_of(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file. Raises BadInput."""
    if not path.exists():
        return None
    found: dict[str, Any] = as_document(read_json(path, "a JSON document of a run"), str(path))
    return found


def manifest_of(directory: Path) -> dict[str, Any] | None:
    """manifest.json; None where there is none. Raises BadInput."""
    path = directory / "manifest.json"
    document = json_of(path)
    if document is not None:
        validate(_Manifest, document, str(path))
    return document


def comparison_of(path: Path) -> dict[str, Any] | None:
    """comparison.json of a run; None where there is none. Raises BadInput."""
    document = json_of(path)
    if document is None:
        return None
    source = str(path)
    validate(_Comparison, document, source)
    _check_fairness(document.get("fairness", ()), source)
    check_together(document, source)
    kind, names = row_type(document), [job.name for job in jobs_of(document)]
    known = {declared.name for declared in fields(kind)}
    for index, row in enumerate(document["schedules"]):
        at = f"schedules.{index}"
        for name in row.keys() - known:
            raise BadInput.of(source, f"{at}.{name}", row[name], "fields of this version")
        found = validate(kind, row, source, at=at)
        if names and job_of(found) not in names:
            raise BadInput.of(source, f"{at}.job", job_of(found), f"one of {', '.join(names)}")
        for name in _TIMES:
            seconds = getattr(found, name)
            if seconds is not None and not 0 < seconds < math.inf:
                raise BadInput.of(source, f"{at}.{name}", seconds, "a time above 0, in seconds")
        validate(list[_Check], found.checks, source, at=f"{at}.checks")
        validate(list[FlowMessages], found.messages, source, at=f"{at}.messages")
        if found.memory is not None:
            validate(_Memory, found.memory, source, at=f"{at}.memory")
        if found.full_scale is not None:
            validate(_AtFullScale, found.full_scale, source, at=f"{at}.full_scale")
        if found.solver is not None:
            validate(Proof, found.solver, source, at=f"{at}.solver")
    return document


def _check_fairness(cases: Sequence[dict[str, Any]], source: str) -> None:
    """That every list has an entry for each job."""
    for index, case in enumerate(cases):
        for name in ("filled", "predicted", "measured"):
            for key, values in case[name].items():
                of_earlier = key in LATER_OUTCOMES and not values
                if isinstance(values, list) and not of_earlier and len(values) != len(case["jobs"]):
                    expected = f"an entry for each of {len(case['jobs'])} jobs"
                    raise BadInput.of(source, f"fairness.{index}.{name}.{key}", len(values), expected)
