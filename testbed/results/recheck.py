"""The verdict on a run again, from its files: nobody has to believe what comparison.json says of `trusted`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from testbed.errors import BadInput
from testbed.judge.comparison import jobs_of
from testbed.judge.evidence import Evidence, Profiling, judge
from testbed.judge.execution import executed_rows, planned_rows
from testbed.judge.fidelity import Check, DirectionCounters, NetworkEvidence
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.judge.messages import Likeness, by_flow, by_iteration, message_times
from testbed.model.network import Floats
from testbed.model.replay import on_the_way_s
from testbed.pipeline.ir import Row
from testbed.plan import costs
from testbed.plan.events import trained, trainings
from testbed.plan.routes import datacenter_of
from testbed.planning import file
from testbed.planning.prediction import loads_of
from testbed.results.contents import case_of, json_of
from testbed.results.load import load_run, load_traces
from testbed.trace.predictions import predicted_times_s
from testbed.trace.tables import Trace
from testbed.train.assignment import Expected, Fingerprint, ReferenceOutcome

Printed = TypeVar("Printed", Expected, Fingerprint)


def recheck(directory: Path) -> dict[str, list[Check]]:
    """By name of every entry of the comparison: the questions of its verdict, answered from the data files alone.

    A schedule can be trusted when all of its checks are `ok`. Raises BadInput where a file is missing.
    """
    run, traces = load_run(directory), load_traces(directory)
    found, worst = _needed(directory, "evidence.json"), _needed(directory, "numerics.json")
    checks = {}
    for label in run.schedules:
        jobs = [_job(run.manifest, row) for row in run.comparison["schedules"] if row["label"] == label]
        for job, due_s in zip(jobs, _due_s(directory, label, jobs, traces[label, "measured"]), strict=True):
            known = found[label] if job.alone else found[label] | found[label]["jobs"][job.row["job"]]
            reference = _reference(worst) if job.alone else _reference(worst["jobs"][job.row["job"]])
            if not job.alone:
                reference = reference.of_first(len(_rounds(directory, label, job.number)))
            both = [_part(job, traces[label, source]) for source in ("predicted", "measured")]
            judged = _evidence(directory, run.manifest, job, (known, reference), both, due_s)
            checks[name_of(job.row)] = judge(_with_parameters(judged, directory, label, job.number))
    return checks


def name_of(row: Mapping[str, Any]) -> str:
    """What an entry of the comparison is called among all: its label, of several jobs with the job's name."""
    return f"{row['label']}: {row['job']}" if "job" in row else str(row["label"])


class _Job(NamedTuple):
    """Which part of the files an entry of the comparison is about."""

    row: Mapping[str, Any]
    alone: bool
    number: int
    ranks: range
    start_s: float
    workload: dict[str, Any]


def _job(manifest: Mapping[str, Any], row: Mapping[str, Any]) -> _Job:
    jobs = jobs_of(manifest)
    if not jobs:
        return _Job(row, True, 0, range(len(manifest["nodes"])), 0.0, manifest["workload_spec"])
    number = [job.name for job in jobs].index(row["job"])
    job = jobs[number]
    ranks = range(job.first_rank, job.first_rank + job.ranks)
    return _Job(row, False, number, ranks, row["start_s"], manifest["workload_specs"][number])


def _part(job: _Job, trace: Trace) -> Trace:
    return trace.of_job(job.number, job.ranks, job.start_s)


def _rounds(directory: Path, label: str, job: int) -> range:
    """In which a job has a part, of the training that a case belongs to."""
    plan = file.read(directory)
    (cases,) = (cases for cases in trainings(plan.cases) if label in [one.label for one in cases])
    return trained(plan, cases, job)


def _due_s(directory: Path, label: str, jobs: Sequence[_Job], measured: Trace) -> list[Floats | None]:
    """Per job, what its messages should have taken by all that was sent; None where that is what was predicted."""
    order_sensitive = any(job.row.get("predicted_low_s") is not None for job in jobs)
    if len(jobs) == 1 and not order_sensitive:
        return [None]
    plan = file.read(directory)
    (case,) = (one for one in plan.cases if one.label == label)
    schedules = [costs.schedule_of(plan, case, job=number) for number in range(len(plan.jobs))]
    loads = loads_of(plan, case, [one for one in schedules if one is not None])
    rows = iteration_rows(directory / "iterations.parquet", label, jobs[0].number)
    warmup = [row.iteration for row in rows if row.warmup]  # of the others the same, as far as they were there
    return on_the_way_s(loads, [_part(job, measured).without(warmup) for job in jobs], order_sensitive=order_sensitive)


def _evidence(
    directory: Path,
    manifest: Mapping[str, Any],
    job: _Job,
    written: tuple[Mapping[str, Any], ReferenceOutcome],
    traces: Sequence[Trace],
    due_s: Floats | None,
) -> Evidence:
    label, (predicted, measured), (known, reference) = job.row["label"], traces, written
    paced = job.workload["pacing"] is not None
    rows = iteration_rows(directory / "iterations.parquet", label, job.number)
    warmup = [row.iteration for row in rows if row.warmup]
    baseline = directory / "usual.parquet"
    first_like, tensor = known["alike_replicas"], job.workload["parallelism"]["tensor"]
    nodes = [manifest["nodes"][rank] for rank in job.ranks]
    ranks = Likeness(first_like, tensor, [datacenter_of(node) for node in nodes])
    times = message_times(measured.without(warmup), predicted, paced=paced, ranks=ranks, on_the_way_s=due_s)
    own_predicted_s = predicted_times_s(predicted, [row.iteration for row in rows if not row.warmup])
    profiling = None
    if not paced:
        profiling = Profiling(manifest["pinning"]["reasons"], _needed(directory, "profile.json")["spread"])
    return Evidence(
        paced=paced,
        real=manifest["clock"] == "real",
        link_reasons=manifest["links"]["reasons"],
        profiling=profiling,
        rows=rows,
        baseline=iteration_rows(baseline, label, job.number) if baseline.is_file() else [],
        network=NetworkEvidence(**{name: known[name] for name in NetworkEvidence._fields}),
        traffic=traffic_of(directory / "links.parquet", label),
        reference=reference,
        predicted_s=float(np.median(own_predicted_s)),
        own_predicted_s=own_predicted_s,
        on_this_host_s=job.row["predicted_on_this_host_s"],
        first_like_replicas=first_like,
        flows=by_flow(times, job.ranks.start),
        overtaken_s=times.median_overtaken_s(),
        baseline_extra_s=known["usual_extra_s"],
        baseline_differs_s=known.get("usual_differs_s", ()),  # runs of earlier versions did not tell, nor the next
        super_packets_s=known.get("super_packets_s", ()),
        quartiles_s=by_iteration(times),
        executed=executed_rows(measured, job.ranks.start),
        planned=_planned(directory, label, job.number),
        routes=known.get("ways", ()),
        range_s=_range_s(job.row),
        in_run_s=known.get("in_run_s"),
        modelled=known.get("modelled", known["usual_extra_s"] is not None),
    )


def _planned(directory: Path, label: str, job: int) -> dict[int, Row]:
    """What every rank of a job should have executed; {} where no plan was kept."""
    if not (directory / file.NAME).is_file():
        return {}
    plan = file.read(directory)
    (case,) = (one for one in plan.cases if one.label == label)
    return planned_rows(plan.jobs[job].mesh, case.jobs[job].rows)


def _range_s(row: Mapping[str, Any]) -> tuple[float, float] | None:
    low_s, high_s = row.get("predicted_low_s"), row.get("predicted_high_s")
    return None if low_s is None or high_s is None else (low_s, high_s)


def iteration_rows(path: Path, label: str, job: int) -> list[IterationRow]:
    """The iterations of a job in a case, as a table of a run has them. Raises BadInput."""
    lists = ("peak_in_flight", "held", "gradient_norms")
    names = [name for name in IterationRow._fields if name != "witnesses"]
    numbers = [name for name in (*names, *Witnesses._fields) if name not in lists]
    frame = case_of(path, label, numbers, lists)
    if "job" in frame:  # runs of earlier versions had one job
        frame = frame[frame["job"] == job].copy()
    for name in lists:  # a file holds lists
        frame[name] = frame[name].map(tuple)
    machine = [Witnesses(*values) for values in frame[list(Witnesses._fields)].itertuples(index=False)]
    own = (dict(zip(names, values, strict=True)) for values in frame[names].itertuples(index=False))
    return [IterationRow(**row, witnesses=one) for row, one in zip(own, machine, strict=True)]


def traffic_of(path: Path, label: str) -> list[DirectionCounters]:
    """What every direction carried in a case, network cards last. Raises BadInput."""
    names = ["label", "wire_bytes", "planned_bytes", "planned_messages"]
    frame = case_of(path, label, names[1:], texts=names[:1])
    return [DirectionCounters(*values) for values in frame[names].itertuples(index=False)]


def _reference(written: dict[str, Any]) -> ReferenceOutcome:
    return ReferenceOutcome(
        losses=_numbers(written["reference_losses"]),
        gradient_norms=tuple(map(_numbers, written["reference_gradient_norms"])),
        took_s=written["reference_took_s"],
        refused=written["refused"],
        parameters=() if "weight" in written["limits"] and not written["refused"] else None,
    )


def _numbers(values: list[float | None]) -> tuple[float, ...]:
    """JSON has no number for what is none."""
    return tuple(math.nan if value is None else value for value in values)


def _with_parameters(case: Evidence, directory: Path, label: str, job: int) -> Evidence:
    """With what was told of gradients and weights; runs of earlier versions did not."""
    if case.reference.parameters is None:
        return case
    path = directory / "parameters.parquet"
    reference = replace(case.reference, parameters=tuple(_fingerprints(path, "", job, Expected)))
    return case._replace(fingerprints=_fingerprints(path, label, job, Fingerprint), reference=reference)


def _fingerprints(path: Path, label: str, job: int, kind: type[Printed]) -> list[Printed]:
    texts, lists = ["what", "parameter"], ["projections"]
    numbers: list[str] = [name for name in kind._fields if name not in texts + lists]
    frame = case_of(path, label, ["job", *numbers], lists, texts)
    frame = frame[frame["job"] == job].copy()
    frame["projections"] = frame["projections"].map(tuple)
    return [kind(*values) for values in frame[list(kind._fields)].itertuples(index=False)]


def _needed(directory: Path, name: str) -> dict[str, Any]:
    found = json_of(directory / name)
    if found is None:
        raise BadInput.of(str(directory), name, "no such file", "the results of a run of this version")
    return found
