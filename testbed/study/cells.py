"""The cells of a study: what each is of, and its plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from testbed import source
from testbed.errors import BadInput, DoesNotFit, listed
from testbed.plan.plan import Clock, Plan
from testbed.planning import file, resolve, schedules
from testbed.planning.light import lighter
from testbed.planning.prediction import predict_training
from testbed.planning.training_prediction import link_events_of
from testbed.routing.apply import with_policies
from testbed.routing.policies import choose
from testbed.spec.choice import ScheduleChoice
from testbed.spec.presets import located
from testbed.spec.study import MOST_CELLS, AxisValue, StudySpec
from testbed.study.published import PublishedTimes

_KEY_DIGITS = 16


class StudyCell(NamedTuple):
    """One plan of the grid, of which only the schedules are still to be made."""

    number: int
    """In the order of the grid, from 0."""
    key: str
    """Of all that decides what it gives: its plan, what chooses its schedules and routes, and this version's code."""
    topology: str
    workload: str
    """The jobs' names, joined by " + "."""
    values: Mapping[str, AxisValue]
    """By axis."""
    repetition: int
    """From 1."""
    unfinished: Plan
    sources: tuple[Path, ...]
    """The workloads' files."""
    published: Mapping[str, float]
    """What a paper says an iteration takes, in seconds, by label of the schedule."""
    said: tuple[str, ...] = ()
    """Of its models, where light ones are asked for."""

    def words(self) -> str:
        """What tells it from the others, in a line."""
        places = [f"{name}={value.shown}" for name, value in self.values.items()]
        return ", ".join([f"{self.workload} on {self.topology}", *places, f"repetition {self.repetition}"])


def cells_of(study: StudySpec, written_in: Path, shaper: str = "auto") -> list[StudyCell]:
    """All cells, ordered by topology, workload, the axes as they are written, and repetition.

    `written_in` is the study's file: others that it names lie relative to it. Raises BadInput for what is wrong with
    any of them.
    """
    axes = {name: axis.places() for name, axis in study.over.items()}
    n_cells = len(study.topologies) * len(study.workloads) * prod(map(len, axes.values())) * study.repetitions
    if n_cells > MOST_CELLS:
        raise BadInput.of(str(written_in), "over", f"{n_cells} cells", f"at most {MOST_CELLS}")
    for policy in study.policies:
        choose(policy)
    found = list(_cells(study, written_in, axes, shaper, _published(study, written_in)))
    if study.published is not None and not any(cell.published for cell in found):
        expected = f"places of this grid in its columns ({listed(['topology', 'workload', *axes])})"
        raise BadInput.of(str(written_in), "published", study.published.file, expected)
    return found


def _published(study: StudySpec, written_in: Path) -> PublishedTimes | None:
    """What is published of the study's cells. Raises BadInput."""
    if study.published is None:
        return None
    if any(not isinstance(workload, str) and len(workload) > 1 for workload in study.workloads):
        expected = "one job in every cell: what is published is of one"
        raise BadInput.of(str(written_in), "published", study.published.file, expected)
    return PublishedTimes(study.published, located(written_in).parent / study.published.file, list(study.over))


def _cells(
    study: StudySpec,
    written_in: Path,
    axes: Mapping[str, Sequence[AxisValue]],
    shaper: str,
    published: PublishedTimes | None,
) -> Iterator[StudyCell]:
    digest, number = source.identity()["source"], 0
    named: dict[tuple[str, ...], tuple[str, Any]] = {}
    everywhere = dict(study.set) | (
        {} if study.schedules is None or names_of(study) else {"schedules": study.schedules}
    )
    for topology, workload, *places in product(study.topologies, study.workloads, *axes.values()):
        files = [_file(name, written_in) for name in ([workload] if isinstance(workload, str) else workload)]
        values = dict(zip(axes, places, strict=True))
        settings = everywhere | {key: value for place in places for key, value in place.settings.items()}
        made = resolve.load_plan(
            _file(topology, written_in),
            *files,
            settings=[f"{key}={json.dumps(value)}" for key, value in settings.items()],
            iterations=study.iterations,
        )
        names = made.network.name, " + ".join(job.name for job in made.jobs)
        shown = tuple(place.shown for place in places)
        _refuse_namesake(named, (*names, *shown), (topology, workload), written_in)
        times_s = {} if published is None else published.at(*names, values, made.jobs[0].workload.microbatches)
        if published is not None and published.only and not times_s:
            continue
        said: list[str] = []
        if study.light:
            made, said = lighter(made, _choices(made, study))
        for repetition in range(1, study.repetitions + 1):
            virtual = study.clock == "virtual"
            clock = Clock("virtual", repetition) if virtual else Clock("real")
            plan = resolve.with_clock(made, clock)
            if study.clock != "none":
                resolve.require_trainable(plan)
            decides = [
                file.to_json(plan),
                *names_of(study),
                *study.policies,
                study.clock,
                shaper,
                str(repetition),
                str(digest),
            ]
            key = hashlib.sha256("\n".join(decides).encode()).hexdigest()[:_KEY_DIGITS]
            yield StudyCell(number, key, *names, values, repetition, plan, tuple(files), times_s, tuple(said))
            number += 1


def _refuse_namesake(
    taken: dict[tuple[str, ...], tuple[str, Any]], place: tuple[str, ...], files: tuple[str, Any], written_in: Path
) -> None:
    """Raises BadInput where other files have the names of this place of the grid: tables would take both for one."""
    for field, one, other, name in zip(
        ("topologies", "workloads"), files, taken.setdefault(place, files), place[:2], strict=True
    ):
        if one != other:
            raise BadInput.of(str(written_in), field, one, f"a name of its own in it, not {name!r} as in {other}")


def _file(name: str, written_in: Path) -> Path:
    """What a study names: a file relative to it, else as on the command line."""
    beside = written_in.parent / name
    return beside if beside.is_file() else Path(name)


def names_of(study: StudySpec) -> list[str]:
    """The schedules that the study names as --schedule does; [] where it has options for one, or leaves them all."""
    listed = study.schedules or []
    return list(listed) if all(isinstance(entry, str) for entry in listed) else []


def choices_of(cell: StudyCell, study: StudySpec) -> list[list[ScheduleChoice]]:
    """By job, the schedules that a cell is to be measured with. Raises BadInput."""
    return _choices(cell.unfinished, study)


def _choices(plan: Plan, study: StudySpec) -> list[list[ScheduleChoice]]:
    return [schedules.choose(plan, names_of(study), job=job) for job in range(len(plan.jobs))]


def finished_plan(cell: StudyCell, study: StudySpec) -> Plan:
    """The plan of a cell with its schedules and routes. Raises BadInput, DoesNotFit where no schedule fits."""
    plan = cell.unfinished
    selected = [
        schedules.make(plan, choices, job=job, source=str(cell.sources[job]))
        for job, choices in enumerate(choices_of(cell, study))
    ]
    plan = schedules.with_selected(plan, selected)
    resolve.require_room_for_parameters(plan)
    if study.policies:
        plan, _ = with_policies(plan, tuple(map(choose, study.policies)))
    _require_events_in_time(plan)
    return plan


def _require_events_in_time(plan: Plan) -> None:
    """Raises DoesNotFit where an event comes after the training, or cannot be played in it."""
    for case in plan.cases:
        if link_events_of(plan, case) and all(chosen.rows is not None for chosen in case.jobs):
            try:
                predict_training(plan, case)
            except BadInput as error:
                raise DoesNotFit(str(error)) from error


def described(cell: StudyCell) -> dict[str, Any]:
    """For machines: what a cell is of."""
    return {
        "number": cell.number,
        "key": cell.key,
        "topology": cell.topology,
        "workload": cell.workload,
        "values": {name: value.shown for name, value in cell.values.items()},
        "repetition": cell.repetition,
    }
