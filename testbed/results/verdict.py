"""The verdict on a run again, from its files: nobody has to believe what comparison.json says of `trusted`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.errors import BadInput
from testbed.judge.evidence import Evidence, Profiling, judge
from testbed.judge.fidelity import Check, NetworkEvidence, Traffic
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.judge.messages import Likeness, by_flow, message_times
from testbed.plan.routes import datacenter_of
from testbed.results.contents import json_of
from testbed.results.load import load_run, load_traces
from testbed.trace.tables import Trace
from testbed.train.job import Reference


def recheck(directory: Path) -> dict[str, list[Check]]:
    """By label of every finished schedule: the questions of its verdict, answered from the data files alone.

    A schedule can be trusted when all of its checks are `ok`. Raises BadInput where a file is missing.
    """
    run, traces = load_run(directory), load_traces(directory)
    found = _needed(directory, "evidence.json")
    return {
        row["label"]: judge(_evidence(directory, run.manifest, row, found[row["label"]], traces))
        for row in run.comparison["schedules"]
    }


def _evidence(
    directory: Path,
    manifest: dict[str, Any],
    compared: dict[str, Any],
    known: dict[str, Any],
    traces: dict[tuple[str, str], Trace],
) -> Evidence:
    label = compared["label"]
    predicted, measured = traces[label, "predicted"], traces[label, "measured"]
    paced = manifest["workload_spec"]["pacing"] is not None
    rows = _rows(directory / "iterations.parquet", label)
    warmup = [row.iteration for row in rows if row.warmup]
    usual = directory / "usual.parquet"
    alike, tensor = known["alike_replicas"], manifest["workload_spec"]["parallelism"]["tensor"]
    ranks = Likeness(alike, tensor, [datacenter_of(node) for node in manifest["nodes"]])
    times = message_times(measured.without(warmup), predicted, paced=paced, ranks=ranks)
    profiling = None
    if not paced:
        profiling = Profiling(manifest["pinning"]["reasons"], _needed(directory, "profile.json")["spread"])
    return Evidence(
        paced=paced,
        real=manifest["clock"] == "real",
        link_reasons=manifest["links"]["reasons"],
        profiling=profiling,
        rows=rows,
        usual=_rows(usual, label) if usual.is_file() else [],
        network=NetworkEvidence(**{name: known[name] for name in NetworkEvidence._fields}),
        traffic=_traffic(directory / "links.parquet", label),
        reference=_reference(_needed(directory, "numerics.json")),
        predicted_s=float(predicted.makespans()[0]),
        on_this_host_s=compared["predicted_on_this_host_s"],
        alike_replicas=alike,
        flows=by_flow(times),
        usual_extra_s=known["usual_extra_s"],
    )


def _rows(path: Path, label: str) -> list[IterationRow]:
    frame = _of_case(path, label)
    for name in ("peak_in_flight", "held", "gradient_norms"):  # a file holds lists
        frame[name] = frame[name].map(tuple)
    machine = [Witnesses(*values) for values in frame[list(Witnesses._fields)].itertuples(index=False)]
    names = [name for name in IterationRow._fields if name != "witnesses"]
    own = (dict(zip(names, values, strict=True)) for values in frame[names].itertuples(index=False))
    return [IterationRow(**row, witnesses=one) for row, one in zip(own, machine, strict=True)]


def _traffic(path: Path, label: str) -> list[Traffic]:
    names = ["label", "wire_bytes", "planned_bytes", "planned_messages"]
    return [Traffic(*values) for values in _of_case(path, label)[names].itertuples(index=False)]


def _of_case(path: Path, label: str) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError:
        raise BadInput.of(str(path.parent), path.name, "no such file", "the tables of a run") from None
    return frame[frame["schedule"] == label].copy()


def _reference(written: dict[str, Any]) -> Reference:
    return Reference(
        losses=_numbers(written["reference_losses"]),
        gradient_norms=tuple(map(_numbers, written["reference_gradient_norms"])),
        took_s=written["reference_took_s"],
        refused=written["refused"],
    )


def _numbers(values: list[float | None]) -> tuple[float, ...]:
    """JSON has no number for what is none."""
    return tuple(math.nan if value is None else value for value in values)


def _needed(directory: Path, name: str) -> dict[str, Any]:
    found = json_of(directory / name)
    if found is None:
        raise BadInput.of(str(directory), name, "no such file", "the results of a run of this version")
    return found
