"""The network-wide metric of a run's cases, told from its files alone, as the verdict is (recheck.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.judge.network_metric import LATER_OUTCOMES, CaseFairness, fairness_of
from testbed.results.load import load_run
from testbed.results.run_files import RunFiles
from testbed.trace.predictions import predicted_times_s, predictions_of

_SAME = 1e-6
"""Relative: what adding and taking away the start of a job does to its times is far less."""


def fairness_again(directory: Path) -> list[CaseFairness]:
    """An entry for every one that the comparison has. Raises BadInput where a file is missing."""
    files, found = RunFiles(directory), load_run(directory).comparison.get("fairness", ())
    return [fairness_in_case(files, row["label"]) for row in found]


def same(one: Any, other: Any) -> bool:
    """Whether two documents say the same, but for the last digits of numbers; `one` may be of an earlier version, which
    knew less."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        later = other.keys() - one.keys()
        return later <= LATER_OUTCOMES and all(name in other and same(one[name], other[name]) for name in one)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_SAME)
    return bool(one == other)


def fairness_in_case(files: RunFiles, label: str) -> CaseFairness:
    """Of a case that was trained. Raises BadInput where a file is missing."""
    predicted, measured = (files.trace(label, source) for source in ("predicted", "measured"))
    rows = {number: files.rows(label, number) for number in files.parts(label, "predicted")}
    measured = measured.without(sorted({row.iteration for mine in rows.values() for row in mine if row.warmup}))
    parts, of_each = files.parts(label, "predicted"), list[float]()
    for number, mine in rows.items():
        own = [row.iteration for row in mine if not row.warmup]
        of_each.append(float(np.median(predicted_times_s(parts[number], own))))
    seconds = of_each, [float(np.median([row.makespan_s for row in mine if not row.warmup])) for mine in rows.values()]
    traces = predictions_of(predicted, measured.iterations().tolist()), measured
    iterations = [len(mine) for mine in rows.values()]
    return fairness_of(files.plan, files.case(label), traces, files.traffic(label), seconds, iterations)
