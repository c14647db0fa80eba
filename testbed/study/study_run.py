"""A study from beginning to end: plans made, cells measured or predicted, tables written, claims judged."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput, DoesNotFit
from testbed.grouping import grouped
from testbed.planning import file, resolve
from testbed.progress import ProgressStep, Reporter
from testbed.spec.document import Fault
from testbed.spec.study import StudySpec
from testbed.study import cell_runs, outcomes
from testbed.study.cells import StudyCell, choices_of, finished_plan
from testbed.study.claim_text import parse
from testbed.study.claims import Claim, Judged, StudyTables
from testbed.study.outcomes import CellOutcome

CELLS = "cells"
"""The directory, in that of the study, with one for every cell."""

_LOCK = ".lock"


class Finished(NamedTuple):
    """What a study came to."""

    outcomes: Sequence[CellOutcome]
    """Of every cell, in their order."""
    judged: Sequence[Judged]
    """A verdict for every claim."""
    taken: int
    """So many cells were to be measured or predicted now; the others lay there."""


@contextmanager
def study_directory(path: Path) -> Iterator[Path]:
    """The directory of a study, new or that of an earlier try, for one command at a time. Raises BadInput."""
    try:
        (path / CELLS).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise BadInput.of("--out", "directory", str(path), f"a place to write ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    except BlockingIOError:
        raise BadInput.of("--out", "directory", str(path), "one that no other study is writing to") from None
    finally:
        os.close(descriptor)


def claims_of(study: StudySpec, cells: Sequence[StudyCell], source: str) -> list[Claim]:
    """What the study claims. Raises BadInput for all that cannot be understood, and for an axis named as a column."""
    for name in study.over:
        if name in outcomes.RESERVED or name.endswith("_value"):
            raise BadInput.of(
                source, f"over.{name}", name, "a name that is no column of study.parquet, nor ends in _value"
            )
    labels = _labels(study, cells)
    found, faults = [], []
    for index, text in enumerate(study.claims):
        try:
            found.append(parse(text, study.over, labels))
        except ValueError as error:
            faults.append(Fault(f"claims.{index}", text, str(error)))
    if faults:
        raise BadInput.of_all(source, faults)
    return found


def _labels(study: StudySpec, cells: Sequence[StudyCell]) -> list[str]:
    """What schedules may be called: with several policies as cases are labelled, or by the schedule alone."""
    own: dict[str, None] = {}
    for cell in cells:
        own |= dict.fromkeys(case.label for case in resolve.combinations(cell.unfinished, choices_of(cell, study)))
    on_policies = [f"{label} on {policy}" for label in own for policy in study.policies if len(study.policies) > 1]
    return on_policies or list(own)


def run(
    study: StudySpec,
    cells: Sequence[StudyCell],
    claims: Sequence[Claim],
    directory: Path,
    *,
    shaper: str,
    at_once: int,
    cluster: str | None = None,
    reporter: Reporter,
) -> Finished:
    """Measure, or predict, every cell that does not lie there already; write the tables; judge the claims.

    `cluster` is the address of a Ray cluster that measures them. A cell whose schedules do not fit, or whose run
    fails, is an outcome. Raises BadInput for another fault of a plan,
    MachineLacks, and Interrupted; what was measured stays, and the next run goes on from there.
    """
    base, failures = directory / CELLS, dict[str, str]()
    virtual = study.clock == "virtual"
    finished = outcomes.is_predicted if study.clock == "none" else cell_runs.is_measured
    todo = {cell.key: cell for cell in cells if not finished(base / cell.key)}
    if todo:
        doing = "predicting" if study.clock == "none" else "measuring"
        with reporter.step(f"{doing} {len(todo)} of {len(cells)} cells", len(todo)) as step:
            batches = _made(study, todo, base, failures, step, at_once)
            if study.clock == "none":
                for (key,) in batches:
                    outcomes.predict(file.read(base / key / file.NAME), base / key)
                    step.advance(todo[key].words())
            else:

                def heard(key: str, failed: str) -> None:
                    if failed:
                        failures[key] = failed
                        reporter.say(f"{todo[key].words()}: {failed}")
                    step.advance(todo[key].words())

                handed = cell_runs.Batches(base, batches, heard)
                if cluster is not None:
                    from testbed.study import cluster as ray_cluster

                    ray_cluster.measure(cluster, base, handed, shaper=shaper)
                else:
                    most = at_once if virtual else 1
                    cell_runs.measure(base, handed, virtual=virtual, shaper=shaper, at_once=most)
    found = [outcomes.outcome_of(cell, base / cell.key, failures.get(cell.key, "")) for cell in cells]
    table = outcomes.table_of(found)
    outcomes.write(table, directory)
    evidence = StudyTables(table, outcomes.cell_table(found), study.over, study.clock != "none")
    return Finished(found, [claim.judged(evidence) for claim in claims], len(todo))


def _made(
    study: StudySpec,
    todo: Mapping[str, StudyCell],
    base: Path,
    failures: dict[str, str],
    step: ProgressStep,
    at_once: int,
) -> Iterator[list[str]]:
    """Keys of cells whose plans lie there, as many together as share a boot: made when they are asked for."""
    size = min(cell_runs.MOST_IN_A_BOOT, -(-len(todo) // at_once)) if study.clock == "virtual" else 1
    by_seed = grouped((cell.unfinished.clock.seed, cell) for cell in todo.values())
    for together in by_seed.values():
        batch: list[str] = []
        for cell in together:
            if not _has_plan(cell, study, base / cell.key, failures):
                step.advance(cell.words())
                continue
            batch.append(cell.key)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch


def _has_plan(cell: StudyCell, study: StudySpec, directory: Path, failures: dict[str, str]) -> bool:
    """Write the plan of a cell where it does not lie there; whether there is one."""
    if (directory / file.NAME).is_file():
        return True
    try:
        plan = finished_plan(cell, study)
    except DoesNotFit as error:
        failures[cell.key] = f"{outcomes.DOES_NOT_FIT}{error}"
        return False
    directory.mkdir(exist_ok=True)
    file.write(plan, directory / file.NAME)
    return True
