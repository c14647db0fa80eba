"""Which of the measured iterations of a case stands for it in pictures: the one nearest to the medians."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def typical_iteration(
    measured: Iterable[Mapping[Any, Any]], compared: Sequence[Mapping[str, Any]], jobs: Sequence[str]
) -> int:
    """Its number, of those that every job has. `measured` are the rows of iterations.parquet of a case that count, at
    least one, with `iteration` and `makespan_s`; `compared` the case's entries of comparison.json; `jobs` names those
    of the run, () of one.
    """
    medians_s = {jobs.index(row["job"]) if jobs else 0: row["measured_s"] for row in compared}
    far: dict[int, float] = {}
    having: dict[int, int] = {}
    for row in measured:
        iteration, job = row["iteration"], row.get("job", 0)  # runs of earlier versions had one job
        far[iteration] = far.get(iteration, 0.0) + abs(row["makespan_s"] / medians_s[job] - 1)
        having[iteration] = having.get(iteration, 0) + 1
    # jobs that run freely may have iterations that others do not have
    return int(min(far, key=lambda iteration: (-having[iteration], far[iteration])))
