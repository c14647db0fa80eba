"""What runs of earlier formats wrote, in the shape of this version: formats 2 and 3, see `testbed.trace.tables.FORMAT`.

Of a single job, format 2 had nothing by the job's name. Up to format 3, what was measured before a schedule was called
"usual", and the route of a flow its "ways".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BASELINE_TABLE = "baseline_iterations"
_EARLIER_BASELINE_TABLE = "usual"

_EARLIER_KEYS = {
    "usual_extra_s": "baseline_extra_s",
    "usual_differs_s": "baseline_differs_s",
    "ways": "routes",
}
"""Of a job's entry in evidence.json, up to format 3."""


def baseline_table(version: int) -> str:
    """Name of the table of the iterations that were measured before each schedule."""
    return BASELINE_TABLE if version > 3 else _EARLIER_BASELINE_TABLE


def upgraded_evidence(
    document: Mapping[str, Any], version: int, compared: Sequence[Mapping[str, Any]], job: str
) -> Mapping[str, Any]:
    """evidence.json of a run of format `version`; of format 2 with the entries of its comparison, and its first job."""
    if version > 3:
        return document
    by_job = document if version == 3 else _evidence_of_format_2(document, compared, job)
    return {
        label: {**entry, "jobs": {name: _renamed(known) for name, known in entry["jobs"].items()}}
        for label, entry in by_job.items()
    }


def _renamed(known: Mapping[str, Any]) -> dict[str, Any]:
    return {_EARLIER_KEYS.get(name, name): value for name, value in known.items()}


def _evidence_of_format_2(
    document: Mapping[str, Any], compared: Sequence[Mapping[str, Any]], job: str
) -> Mapping[str, Any]:
    """Of a single job it was not by name, and what was expected on this machine stood in the comparison only."""
    found = {label: {"jobs": {}, **entry} for label, entry in document.items()}
    for row in compared:
        case = found[row["label"]]
        known = case["jobs"][row["job"]] if "job" in row else case
        low_s, high_s = row.get("predicted_low_s"), row.get("predicted_high_s")
        earlier = {
            "usual_differs_s": (),
            "super_packets_s": (),
            "ways": (),
            "in_run_s": None,
            "modelled": known["usual_extra_s"] is not None,
            "range_s": None if low_s is None or high_s is None else (low_s, high_s),
            "on_this_host_s": row["predicted_on_this_host_s"],
        }
        case["jobs"][row.get("job", job)] = earlier | known
    return found
