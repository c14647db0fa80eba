"""The testbed from Python: predictions, results of runs, two of them side by side, and studies, as pandas frames.

Columns have the names and units of `docs/data-format.md`: `_s` is seconds, `_bytes` bytes. Every error is a
`testbed.errors.BadInput` that names the file (of a document "topology" or "workload"), field, value and what was
expected.
"""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from testbed.errors import BadInput, listed
from testbed.full_scale.similitude import scale_warnings
from testbed.full_scale.similitude_bound import full_scale_times
from testbed.judge.comparison import job_of, row_type, rows_of
from testbed.plan.plan import Plan
from testbed.planning.left_out import warnings
from testbed.planning.prediction import PredictedRow, predicted_rows, ranges_of_rows
from testbed.planning.resolve import load_plan, overrides_of_one
from testbed.planning.schedules import with_every_job
from testbed.progress import Lines
from testbed.results.load import load_run, require_readable
from testbed.results.run_tables import frame_of
from testbed.spec.study import OWN_FIELD, study_of
from testbed.study import outcomes, study_run
from testbed.study.cells import cells_of
from testbed.study.claims import Judged

Source = str | Path | Mapping[str, Any]
"""A file's path, or what such a file holds."""

_SHAPER = "netem"
"""Of a study's guests."""

_NESTED = ("checks", "messages", "memory", "full_scale", "solver")
"""Of an entry of comparison.json, what is no single value; `Results.verdict` has the checks."""

_OF_A_CHECK = ("question", "found", "limit", "ok", "why", "reasons")
_PREDICTED = ("label", "job", "predicted_s", "predicted_low_s", "predicted_high_s")


def predict(
    topology: Source,
    workload: Source | Sequence[Source],
    *,
    schedules: str | Path | Iterable[str | Path] | None = None,
    settings: Mapping[str, object] | None = None,
) -> pd.DataFrame:
    """What the model says an iteration takes, a row per case and job; of one job a case is a schedule.

    `workload` is one, or several that train at the same time. `schedules` are labels, names of families, FILE.py:NAME
    or FILE.csv; default: those of the workload. `settings` are laid over the workloads, by dotted key
    (`{"microbatches": 16, "pacing.F": "30 ms"}`); over the topology where only topologies have such a field
    (`"links.0.delay"`), or with `topology.` in front. Names of files in a document
    are relative to the current directory.

    The columns are `label` (of the case), `job`, `schedule`, and as in comparison.json `predicted_s`,
    `predicted_p95_s` (nan where one iteration stands for all), `predicted_low_s` and `predicted_high_s` (nan where
    nothing hangs on who comes first), `predicted_alone_s` (as if no other job were there), `slowdown_predicted`,
    `bubble_predicted` (shares), `peak_in_flight_predicted` (microbatches), `full_scale_s`
    (nan where a job stands for itself), and `speedup_predicted` (over the job's first case with 1F1B; nan without one).
    In `attrs` are `topology`, `left_out` (schedules that do not fit, by label, and why) and `warnings` (what was asked
    for and is not in the model, and what else a user should know).

    Raises BadInput. Where plans are large, processes help to make their schedules: a script then has to have its own
    calls under `if __name__ == "__main__":`, as multiprocessing asks.
    """
    workloads: list[object] = [workload]
    if isinstance(workload, Sequence) and not isinstance(workload, str):
        workloads = list(workload)
    if not workloads:
        raise BadInput.of("predict", "workload", workload, "one at least")
    jobs = [_as_source(each, "workload") for each in workloads]
    unfinished = load_plan(_as_source(topology, "topology"), *jobs, settings=_as_settings(settings or {}))
    names = _as_names(schedules)
    sources = [
        str(each) if isinstance(each, Path) else job.name for each, job in zip(jobs, unfinished.jobs, strict=True)
    ]
    plan = with_every_job(unfinished, names, sources=sources)
    rows = predicted_rows(plan)
    at_full_scale = full_scale_times(plan)
    frame = pd.DataFrame([_row(row, at_full_scale.get(row.case.label)) for row in rows])
    frame.attrs = {
        "topology": plan.network.name,
        "left_out": dict(plan.left_out),
        "warnings": [*warnings(plan, ranges_of_rows(rows)), *scale_warnings(plan), *_remarks(plan)],
    }
    return frame


def _as_source(source: object, field: str) -> Path | Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    if not isinstance(source, str | Path):
        raise BadInput.of("predict", field, source, "a path, or a mapping of fields")
    return Path(source)


def _as_names(schedules: object) -> list[str]:
    """Of schedules; none where those of the workload are meant. Raises BadInput."""
    if schedules is None:
        return []
    one = isinstance(schedules, str | Path) or not isinstance(schedules, Iterable)
    names = [schedules] if one else list(schedules)  # type: ignore[call-overload]
    for name in names:
        if not isinstance(name, str | Path):
            raise BadInput.of("predict", "schedules", name, "labels, names of families, or files")
    return [str(name) for name in names]


def _as_settings(settings: Mapping[str, object]) -> list[str]:
    """As the command line has them: JSON is YAML. Raises BadInput."""
    if not isinstance(settings, Mapping):
        raise BadInput.of("settings", "settings", settings, "a mapping of fields to values")
    found = []
    for key, value in settings.items():
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain_number)
            found.append(f"{key}={text}")
        except (TypeError, ValueError) as error:
            raise BadInput.of("settings", str(key), value, "text, a finite number, a list or a mapping") from error
    return found


def _plain_number(value: object) -> int | float:
    """A number of numpy's as one of Python's. Raises TypeError for what is none."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(type(value).__name__)


def _row(row: PredictedRow, at_full_scale: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "label": row.case.label,
        "job": row.job,
        "schedule": row.schedule,
        "predicted_s": row.predicted_s,
        "predicted_p95_s": math.nan if row.predicted_p95_s is None else row.predicted_p95_s,
        **{name: math.nan if end is None else end for name, end in row.ends.items()},
        "predicted_alone_s": row.predicted_alone_s,
        "slowdown_predicted": row.slowdown_predicted,
        "bubble_predicted": row.bubble_predicted,
        "peak_in_flight_predicted": float(row.peak_in_flight_predicted),
        "full_scale_s": math.nan if at_full_scale is None else float(at_full_scale["predicted_s"]),
        "speedup_predicted": math.nan if row.speedup_predicted is None else row.speedup_predicted,
    }


def _remarks(plan: Plan) -> list[str]:
    """What is to be known of how schedules were made, each once."""
    said = (f"{made.choice.label}: {remark}" for case in plan.cases for made in case.jobs for remark in made.remarks)
    return list(dict.fromkeys(said))


@dataclass(frozen=True, eq=False)
class Results:
    """What a results directory holds. Tables are read when they are asked for: BadInput where one is missing."""

    directory: Path
    complete: bool
    """Whether every schedule that was asked for is finished."""
    manifest: dict[str, Any]
    """manifest.json: what was run, on what."""
    comparison: pd.DataFrame
    """A row per case and job: `label`, `job`, and the single values and lists of an entry of comparison.json, what was
    measured beside what was predicted (`measured_s`, `predicted_s`, `error` ...)."""
    verdict: pd.DataFrame
    """A row per case, job and check: `label`, `job`, `question`, `found`, `limit`, `ok`, `why`, `reasons`."""

    @property
    def trusted(self) -> bool:
        """Whether all that is finished can be trusted; False where nothing is."""
        return bool(len(self.comparison)) and bool(self.comparison["trusted"].all())

    @cached_property
    def actions(self) -> pd.DataFrame:
        """A row per action, the columns of actions.parquet; `source` is "predicted" or "measured"."""
        return frame_of(self.directory / "actions.parquet", ("schedule", "source", "job", "iteration"))

    @cached_property
    def messages(self) -> pd.DataFrame:
        """A row per message between ranks, the columns of messages.parquet; `source` as above."""
        return frame_of(self.directory / "messages.parquet", ("schedule", "source", "job", "iteration"))

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """A row per iteration of a job, the columns of iterations.parquet; `source` is "measured"."""
        return self._measured("iterations.parquet", ("job", "iteration", "warmup", "makespan_s"))

    @cached_property
    def links(self) -> pd.DataFrame:
        """A row per case and direction of a link, the columns of links.parquet; `source` is "measured"."""
        return self._measured("links.parquet", ("direction", "label", "wire_bytes"))

    def _measured(self, name: str, columns: Sequence[str]) -> pd.DataFrame:
        frame = frame_of(self.directory / name, ("schedule", *columns))
        frame.insert(list(frame.columns).index("schedule") + 1, "source", "measured")
        return frame

    @property
    def jobs(self) -> list[str]:
        """Their names, by the numbers that tables have."""
        return _jobs_of(self.manifest)


def _jobs_of(manifest: Mapping[str, Any]) -> list[str]:
    return [job["name"] for job in manifest.get("jobs", ())] or [str(manifest.get("workload", ""))]


def load(directory: str | Path) -> Results:
    """The results of a run, finished or not. Raises BadInput for a directory that holds none, or of another format."""
    if not isinstance(directory, str | Path):
        raise BadInput.of("load", "directory", directory, "a path")
    place = Path(directory)
    run = load_run(place)
    if not run.manifest:
        raise BadInput.of(str(place), "manifest.json", "no such file", "a run that measured its links")
    require_readable(run.manifest, place)
    rows, only = rows_of(run.comparison), _jobs_of(run.manifest)[0]
    entries, checks = [], []
    for row in rows:
        named = {"label": row.label, "job": job_of(row) or only}
        entries.append(named | {key: value for key, value in vars(row).items() if key not in (*named, *_NESTED)})
        checks += [named | {key: check.get(key) for key in _OF_A_CHECK} for check in row.checks]
    kind = row_type(run.comparison)
    names = [field.name for field in fields(kind) if field.name not in ("label", "job", *_NESTED)]
    comparison = pd.DataFrame(entries, columns=["label", "job", *names])
    for field in fields(kind):
        if field.name in names and str(field.type).removesuffix(" | None") in ("float", "int"):
            comparison[field.name] = comparison[field.name].astype(float)
    verdict = pd.DataFrame(checks, columns=["label", "job", *_OF_A_CHECK])
    return Results(place, run.complete, run.manifest, comparison, verdict)


def compare(a: Results | pd.DataFrame | str | Path, b: Results | pd.DataFrame | str | Path) -> pd.DataFrame:
    """Two runs, two predictions, or one of each side by side: a row per case and job that either has.

    Each is what `load` or `predict` gives, or a results directory. The columns are `label`, `job`, and of both (with
    `a_` and `b_` in front) `source` ("measured" or "predicted"), `s`, `low_s`, `high_s`: of a run the median iteration
    and the quartiles of the iterations, of a prediction its time and its range; then `ratio` (b over a) and `overlap`,
    whether the ranges have a time in common. What only one side has is nan (`overlap`: <NA>). Where both have one job,
    their cases are matched whatever the jobs' names are.

    Raises BadInput, also where the two have no case in common.
    """
    of_a, of_b = _times(a, "a"), _times(b, "b")
    if of_a["job"].nunique() == of_b["job"].nunique() == 1:
        of_b["job"] = of_a["job"].iloc[0]
    of_a, of_b = (side.set_index(["label", "job"]) for side in (of_a, of_b))
    if of_a.index.intersection(of_b.index).empty:
        expected = f"one of {listed(_named(of_a))}, as the other has them"
        raise BadInput.of("compare", "label", listed(_named(of_b)), expected)
    both = of_a.index.append(of_b.index.difference(of_a.index, sort=False))
    frame = of_a.add_prefix("a_").reindex(both).join(of_b.add_prefix("b_"))
    frame["ratio"] = frame["b_s"] / frame["a_s"]
    overlap = (frame["a_low_s"] <= frame["b_high_s"]) & (frame["b_low_s"] <= frame["a_high_s"])
    frame["overlap"] = overlap.astype("boolean").mask(frame["ratio"].isna())
    return frame.reset_index()


def _named(times: pd.DataFrame) -> list[str]:
    return [f"{label}: {job}" for label, job in times.index]


def _times(given: Results | pd.DataFrame | str | Path, side: str) -> pd.DataFrame:
    """`label`, `job`, `source`, `s`, `low_s` and `high_s` of what one side is. Raises BadInput."""
    if isinstance(given, pd.DataFrame):
        missing = [name for name in _PREDICTED if name not in given.columns]
        if missing:
            raise BadInput.of("compare", side, list(given.columns), f"a prediction, with {', '.join(_PREDICTED)}")
        if given.empty:
            raise BadInput.of("compare", side, "no rows", "a prediction with a case or more")
        if (twice := given.duplicated(["label", "job"])).any():
            name, job = given.loc[twice, ["label", "job"]].iloc[0]
            raise BadInput.of("compare", side, f"{name}: {job}, twice", "each case and job once")
        found = given[["label", "job"]].assign(source="predicted", s=given["predicted_s"])
        for end in ("low_s", "high_s"):
            found[end] = given[f"predicted_{end}"].fillna(given["predicted_s"])
        return found
    if not isinstance(given, Results | str | Path):
        raise BadInput.of("compare", side, given, "what predict or load gives, or a results directory")
    run = given if isinstance(given, Results) else load(given)
    if run.comparison.empty:
        raise BadInput.of(str(run.directory), "finished schedules", 0, "one or more: there is nothing to compare")
    counted = run.iterations[~run.iterations["warmup"].astype(bool)]
    names = dict(enumerate(run.jobs))
    times_s = counted.assign(job=counted["job"].map(names)).groupby(["schedule", "job"])["makespan_s"]
    found = run.comparison[["label", "job"]].assign(source="measured", s=run.comparison["measured_s"])
    keys = pd.MultiIndex.from_frame(found[["label", "job"]])
    return found.assign(
        low_s=times_s.quantile(0.25).reindex(keys).to_numpy(), high_s=times_s.quantile(0.75).reindex(keys).to_numpy()
    )


# --- studies -------------------------------------------------------------------------------------


class TakenStudy(NamedTuple):
    """What a study came to."""

    table: pd.DataFrame
    """A row for every cell, schedule and job, as study.parquet has it (docs/studies.md)."""
    claims: pd.DataFrame
    """A row for every claim: `claim`, `verdict` (holds, fails, undecided), `why`, `cells` (of how many it speaks)."""


class Study:
    """A grid of plans, and what is claimed of it (docs/studies.md)."""

    def __init__(self, source: Source, *, settings: Mapping[str, object] | None = None) -> None:
        """`source` is a file's path, a preset's name, or what such a file holds; `settings` are laid over its fields.

        Raises BadInput.
        """
        found = _as_source(source, "study")
        self._written_in = found if isinstance(found, Path) else Path("study")
        self._study = study_of(found, overrides_of_one(_as_settings(settings or {}), OWN_FIELD))
        self._cells = cells_of(self._study, self._written_in, _SHAPER)
        self._claims = study_run.claims_of(self._study, self._cells, str(self._written_in))

    @property
    def cells(self) -> pd.DataFrame:
        """A row for every cell, with what it is of."""
        return outcomes.cell_table([outcomes.not_taken(cell) for cell in self._cells])

    def take(self, directory: str | Path, *, at_once: int | None = None, quiet: bool = False) -> TakenStudy:
        """Measure (or predict, as its `clock` says) the cells that do not lie in the directory yet.

        What this machine cannot measure is an outcome, as in study.parquet. `at_once` is the number of guests, by
        default one per processor. Progress goes to standard error, unless `quiet`. Raises BadInput.
        """
        if not isinstance(directory, (str, Path)):
            raise BadInput.of("study", "directory", directory, "the name of a directory")
        if at_once is not None and not (type(at_once) is int and at_once >= 1):
            raise BadInput.of("study", "at_once", at_once, "a whole number, 1 or more")
        done = study_run.run(
            self._study,
            self._cells,
            self._claims,
            Path(directory),
            shaper=_SHAPER,
            at_once=at_once or len(os.sched_getaffinity(0)),
            reporter=Lines(quiet=quiet),
        )
        claims = pd.DataFrame([judged._asdict() for judged in done.judged], columns=list(Judged._fields))
        return TakenStudy(outcomes.with_missing(outcomes.table_of(done.outcomes), done.outcomes), claims)
