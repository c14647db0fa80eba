"""A study from beginning to end: plans made, cells measured or predicted, tables written, claims judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.planning import file, resolve
from testbed.progress import Reporter
from testbed.spec.document import Fault
from testbed.spec.study import StudySpec
from testbed.study import cell_runs, outcomes
from testbed.study.cell_locks import CellLocks, cells_directory
from testbed.study.cells import StudyCell, choices_of
from testbed.study.claim_text import parse
from testbed.study.claims import Claim, Judged, StudyTables
from testbed.study.outcomes import CellOutcome
from testbed.study.pending_cells import PendingCells


class Finished(NamedTuple):
    """What a study came to."""

    outcomes: Sequence[CellOutcome]
    """Of every cell, in their order."""
    judged: Sequence[Judged]
    """A verdict for every claim."""
    taken: int
    """So many cells were measured or predicted now, by this command; the others lay there, or another one took them."""


def claims_of(study: StudySpec, cells: Sequence[StudyCell], source: str) -> list[Claim]:
    """What the study claims. Raises BadInput for all that cannot be understood, and for an axis named as a column."""
    for name in study.over:
        if name in outcomes.RESERVED or name.endswith("_value"):
            raise BadInput.of(
                source, f"over.{name}", name, "a name that is no column of study.parquet, nor ends in _value"
            )
    labels = _labels(study, cells)
    names = {
        "topology": list(dict.fromkeys(cell.topology for cell in cells)),
        "workload": list(dict.fromkeys(cell.workload for cell in cells)),
        "job": list(dict.fromkeys(name for cell in cells for name in _several(cell))),
    }
    found, faults = [], []
    for index, text in enumerate(study.claims):
        try:
            claim = parse(text, study.over, labels, names)
        except ValueError as error:
            faults.append(Fault(f"claims.{index}", text, str(error)))
            continue
        found.append(claim)
        if claim.of_published and study.published is None:
            faults.append(Fault(f"claims.{index}", text, "a section `published` with times to hold ours against"))
    if faults:
        raise BadInput.of_all(source, faults)
    return found


def _several(cell: StudyCell) -> list[str]:
    """The names of its jobs; of one by itself none, since the table has none."""
    names = [job.name for job in cell.unfinished.jobs]
    return names if len(names) > 1 else []


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
    only: Sequence[StudyCell] | None = None,
    shaper: str,
    at_once: int,
    cluster: str | None = None,
    reporter: Reporter,
) -> Finished:
    """Measure, or predict, every cell that does not lie there already; write the tables; judge the claims.

    With `only` some of the cells: no tables, which would have less than what lies there, and no verdicts. Other
    commands may be at work in the directory: no cell is taken twice. `cluster` is the address of a Ray cluster that
    measures them. A cell whose schedules do not fit, that this machine cannot measure, or whose run fails, is an
    outcome. Raises BadInput for another fault of a plan or for the directory, MachineLacks without Ray, and
    Interrupted; what was measured stays, and the next run goes on from there.
    """
    base = cells_directory(directory)
    finished = outcomes.is_predicted if study.clock == "none" else cell_runs.is_measured
    asked = cells if only is None else only
    todo = list({cell.key: cell for cell in asked if not finished(base / cell.key)}.values())
    failures, taken = dict[str, str](), 0
    if todo:
        doing = "predicting" if study.clock == "none" else "measuring"
        with (
            reporter.step(f"{doing} {len(todo)} of {len(asked)} cells", len(todo)) as step,
            CellLocks(directory) as locks,
        ):
            pending = PendingCells(study, todo, base, step, reporter)
            while True:
                batches = pending.batches(locks, finished, at_once)
                _take(study, pending, batches, locks, base, shaper=shaper, at_once=at_once, cluster=cluster)
                if not pending.any_left:
                    break
                pending.wait(locks)
        failures, taken = pending.failures, pending.taken
    found = [outcomes.outcome_of(cell, base / cell.key, failures.get(cell.key, "")) for cell in asked]
    if only is not None:
        return Finished(found, [], taken)
    table = outcomes.table_of(found)
    outcomes.write(outcomes.with_missing(table, found), directory)
    tables = StudyTables(table, outcomes.cell_table(found), study.over, study.clock != "none")
    return Finished(found, [claim.judged(tables) for claim in claims], taken)


def _take(
    study: StudySpec,
    pending: PendingCells,
    batches: Iterator[list[str]],
    locks: CellLocks,
    base: Path,
    *,
    shaper: str,
    at_once: int,
    cluster: str | None,
) -> None:
    """Predict or measure what is handed out."""

    def ended(key: str, failed: str) -> None:
        pending.ended(key, failed)
        locks.release(key)

    if study.clock == "none":
        for (key,) in batches:
            outcomes.predict(file.read(base / key / file.NAME), base / key)
            ended(key, "")
        return
    handed = cell_runs.Batches(base, batches, ended)
    if cluster is not None:
        from testbed.study import cluster as ray_cluster

        ray_cluster.measure(cluster, base, handed, shaper=shaper)
    else:
        virtual = study.clock == "virtual"
        cell_runs.measure(base, handed, virtual=virtual, shaper=shaper, at_once=at_once if virtual else 1)
