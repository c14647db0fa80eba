"""The network-wide metric of a run again, from its data files: nobody has to believe comparison.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.errors import BadInput
from testbed.judge.network_metric import CaseFairness, fairness_of
from testbed.plan.events import at_work
from testbed.plan.plan import Case, Plan
from testbed.planning import file
from testbed.results.load import load_run, load_traces
from testbed.results.recheck import iteration_rows, traffic_of
from testbed.trace.tables import Trace

_SAME = 1e-6
"""Relative: what adding and taking away the start of a job does to its times is far less."""


def fairness_again(directory: Path) -> list[CaseFairness]:
    """An entry for every one that the comparison has. Raises BadInput where a file is missing."""
    labels = [row["label"] for row in load_run(directory).comparison.get("fairness", ())]
    if not labels:
        return []
    plan, traces = file.read(directory), load_traces(directory)
    cases = {case.label: case for case in plan.cases}
    missing = [label for label in labels if label not in cases]
    if missing:
        raise BadInput.of(str(directory / "comparison.json"), "fairness.label", missing[0], "a case of plan.json")
    return [_of_case(directory, plan, cases[label], traces) for label in labels]


def same(one: Any, other: Any) -> bool:
    """Whether two documents say the same, but for the last digits of numbers."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_SAME)
    return bool(one == other)


def _of_case(directory: Path, plan: Plan, case: Case, traces: Mapping[tuple[str, str], Trace]) -> CaseFairness:
    predicted, measured = (traces[case.label, source] for source in ("predicted", "measured"))
    seconds: tuple[list[float], list[float]] = [], []
    warmup: list[int] = []
    for number in at_work(plan, case):
        start_s = case.starts_s[number] if case.starts_s else plan.jobs[number].start_s
        rows = iteration_rows(directory / "iterations.parquet", case.label, number)
        seconds[0].append(float(predicted.of_job(number, plan.jobs[number].mesh.ranks, start_s).makespans()[0]))
        seconds[1].append(float(np.median([row.makespan_s for row in rows if not row.warmup])))
        warmup = [row.iteration for row in rows if row.warmup]
    traffic = traffic_of(directory / "links.parquet", case.label)
    return fairness_of(plan, case, (predicted, measured.without(warmup)), traffic, seconds)
