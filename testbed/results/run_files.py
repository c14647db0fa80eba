"""What the files of a run say of its cases, each read once: in the shape of this version, whichever wrote them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from testbed.errors import BadInput
from testbed.goodput.elastic_training import ElasticTraining, elastic_training
from testbed.judge.fidelity import ClockEvidence, DirectionCounters, NetworkEvidence
from testbed.judge.iterations import IterationRow, Witnesses
from testbed.judge.messages import Likeness, MessageTimes, message_times
from testbed.model.replay import MeasuredIterations, freely_on_the_way_s, on_the_way_s
from testbed.plan.events import at_work, trained, trainings
from testbed.plan.exchange import sites_of
from testbed.plan.left_to_chance import left_to_chance
from testbed.plan.network_state import planned
from testbed.plan.plan import Case, Plan
from testbed.planning import file
from testbed.planning.prediction import parts_of, predict_training
from testbed.planning.training_prediction import link_events_of
from testbed.results.contents import comparison_of, json_of
from testbed.results.destination import COMPARISON
from testbed.results.earlier_runs import baseline_table, upgraded_evidence
from testbed.results.elastic_messages import elastic_message_times
from testbed.results.load import load_traces
from testbed.results.run_tables import case_of, has_table, table_of
from testbed.trace.tables import Trace
from testbed.train.assignment import Expected, Fingerprint, ReferenceOutcome

if TYPE_CHECKING:
    import pyarrow as pa

Printed = TypeVar("Printed", Expected, Fingerprint)


class RunFiles:
    """A results directory of a run, finished or not. What is missing in it or damaged is a BadInput when it is asked
    for; jobs are named by their numbers."""

    def __init__(self, directory: Path, labels: Collection[str] = ()) -> None:
        """With `labels`, traces are asked for of these cases alone."""
        self.directory, self.labels = directory, labels
        self._tables: dict[str, pa.Table] = {}
        self._times: dict[tuple[str, bool], dict[int, MessageTimes]] = {}
        self._elastic: dict[str, ElasticTraining] = {}

    @cached_property
    def plan(self) -> Plan:
        """The input of the run, with what only it could tell."""
        return file.read(self.directory)

    def case(self, label: str) -> Case:
        """The case of this label. Raises BadInput where the plan has none."""
        found = [case for case in self.plan.cases if case.label == label]
        if not found:
            raise BadInput.of(str(self.directory / file.NAME), "cases.label", "none", f"a case called {label}")
        return found[0]

    def needed(self, name: str) -> dict[str, Any]:
        """What a JSON file of the run holds."""
        found = json_of(self.directory / name)
        if found is None:
            raise BadInput.of(str(self.directory), name, "no such file", "the results of a run of this version")
        return found

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """manifest.json"""
        return self.needed("manifest.json")

    @cached_property
    def evidence(self) -> Mapping[str, Any]:
        """evidence.json: by label, what the network counted, and `jobs` by name."""
        version = self.manifest["format"]
        comparison = comparison_of(self.directory / COMPARISON) if version == 2 else None
        compared = comparison["schedules"] if comparison else ()
        return upgraded_evidence(self.needed("evidence.json"), version, compared, self.plan.jobs[0].name)

    @cached_property
    def numerics(self) -> Mapping[str, Any]:
        """numerics.json: of `jobs` by name."""
        document = self.needed("numerics.json")
        return document if "jobs" in document else {"jobs": {self.plan.jobs[0].name: document}}

    def known_of(self, label: str, job: int) -> Mapping[str, Any]:
        """What evidence.json has of a job in a case."""
        found: Mapping[str, Any] = self.evidence[label]["jobs"][self.plan.jobs[job].name]
        return found

    def network(self, label: str) -> NetworkEvidence:
        """What was counted in a case beside traffic."""
        found = self.evidence[label]
        written = {
            name: found[name] for name in NetworkEvidence._fields if name in found
        }  # runs of before had one clock
        clocks = written.get("clocks")
        return NetworkEvidence(**written | {"clocks": clocks and ClockEvidence(**clocks)})

    def traffic(self, label: str) -> list[DirectionCounters]:
        """What every direction carried in a case, network cards last; [] where a network has neither."""
        if not planned(self.plan.network).everything:
            return []
        names = ["label", "wire_bytes", "planned_bytes", "planned_messages"]
        found = case_of(self._table("links"), self._path("links"), label, names[1:], texts=names[:1])
        return [DirectionCounters(*values) for values in zip(*map(found.__getitem__, names), strict=True)]

    def rows(self, label: str, job: int) -> list[IterationRow]:
        """The iterations of a job in a case, warm-up included. Raises BadInput where none counts."""
        rows = self._rows("iterations", label, job)
        if all(row.warmup for row in rows):
            name, path = self.plan.jobs[job].name, str(self._path("iterations"))
            raise BadInput.of(path, "warmup", f"nothing of {label} and {name} that counts", "iterations behind warm-up")
        return rows

    def baseline(self, label: str, job: int) -> list[IterationRow]:
        """Those measured before it; [] where there are none."""
        name = baseline_table(self.manifest["format"])
        return self._rows(name, label, job) if has_table(self._path(name)) else []

    @cached_property
    def _traces(self) -> Mapping[tuple[str, str], Trace]:
        return load_traces(self.directory, self.labels)

    def trace(self, label: str, source: str) -> Trace:
        """Of all jobs at work in a case, "predicted" or "measured" (all of its iterations)."""
        return self._traces[label, source]

    def parts(self, label: str, source: str) -> dict[int, Trace]:
        """The same, job by job: ranks from 0, times from its own start."""
        plan, case = self.plan, self.case(label)
        return dict(zip(at_work(plan, case), parts_of(plan, case, self.trace(label, source)), strict=True))

    def message_times(self, label: str, *, order_sensitive: bool) -> Mapping[int, MessageTimes]:
        """Job by job, the messages of the iterations that count against their predictions.

        `order_sensitive`: whether a prediction of the case hangs on which message comes first. Losses and jitter change
        who is when on the links as well.
        """
        if (label, order_sensitive) not in self._times:
            plan, case = self.plan, self.case(label)
            if (elastic := self.elastic(label)) is not None:
                counted = self._counted_of(label)
                times = elastic_message_times(plan, elastic, *counted, order_sensitive=order_sensitive)
                self._times[label, order_sensitive] = {0: times}
                return self._times[label, order_sensitive]
            predicted, measured = (self.parts(label, source) for source in ("predicted", "measured"))
            training = predict_training(plan, case, strict=False)
            rows = {job: self.rows(label, job) for job in measured}
            loads = training.loads[min(training.loads)]  # a case that goes on from another has none of the first round
            changes = training.loads_of if training.events or training.traffic_s else None
            warmed = {job: [row.iteration for row in mine if row.warmup] for job, mine in rows.items()}
            if plan.rounds == "free":
                begins_s = [np.array([row.begin_s for row in mine]) for mine in rows.values()]
                each = zip(loads, measured.values(), begins_s, warmed.values(), strict=True)
                due_s = freely_on_the_way_s([MeasuredIterations(*one) for one in each])
            measured = {job: trace.without(warmed[job]) for job, trace in measured.items()}
            if plan.rounds == "together":
                by_chance = order_sensitive or left_to_chance(plan, link_events_of(plan, case))
                due_s = on_the_way_s(loads, list(measured.values()), order_sensitive=by_chance, loads_of=changes)
            self._times[label, order_sensitive] = {
                number: message_times(
                    measured[number],
                    predicted[number],
                    paced=plan.jobs[number].workload.pacing is not None,
                    ranks=Likeness(load.problem.first_like, load.problem.tensor, sites_of(plan.jobs[number])),
                    on_the_way_s=due,
                )
                for number, load, due in zip(measured, loads, due_s, strict=True)
            }
        return self._times[label, order_sensitive]

    def elastic(self, label: str) -> ElasticTraining | None:
        """What was foretold of a case whose job goes on with fewer replicas; None of others."""
        if self.plan.recovery is None or self.plan.recovery.elastic is None:
            return None
        if label not in self._elastic:
            self._elastic[label] = elastic_training(self.plan, self.case(label))
        return self._elastic[label]

    def _counted_of(self, label: str) -> tuple[Trace, Trace]:
        """The only job's measured iterations that count, and the predicted ones."""
        (predicted,), (measured,) = (self.parts(label, source).values() for source in ("predicted", "measured"))
        return measured.without([row.iteration for row in self.rows(label, 0) if row.warmup]), predicted

    def reference(self, label: str, job: int) -> ReferenceOutcome:
        """What one process got that trained the same as a job in a case."""
        written = self.numerics["jobs"][self.plan.jobs[job].name]
        (cases,) = (cases for cases in trainings(self.plan.cases) if label in [case.label for case in cases])
        rounding = written.get("rounding", {"loss": 0.0, "norm": 0.0})  # runs of earlier versions did not tell
        whole = ReferenceOutcome(
            losses=_numbers(written["reference_losses"]),
            gradient_norms=tuple(map(_numbers, written["reference_gradient_norms"])),
            took_s=written["reference_took_s"],
            refused=written["refused"],
            loss_rounding=float(rounding["loss"]),
            norm_rounding=float(rounding["norm"]),
        ).of_first(len(trained(self.plan, cases, job)))
        if written["refused"] or "weight" not in written["limits"]:  # runs of earlier versions did not tell
            return whole
        return replace(whole, parameters=tuple(self._printed("", job, Expected)))

    def fingerprints(self, label: str, job: int) -> list[Fingerprint]:
        """What was told of a job's gradients and weights in a case."""
        return self._printed(label, job, Fingerprint)

    def _printed(self, label: str, job: int, kind: type[Printed]) -> list[Printed]:
        texts, lists = ["what", "parameter"], ["projections"]
        numbers: list[str] = [name for name in kind._fields if name not in texts + lists]
        table, path = self._table("parameters"), self._path("parameters")
        found = case_of(table, path, label, ["job", *numbers], lists, texts)
        every = zip(found["job"], *map(found.__getitem__, kind._fields), strict=True)
        return [kind(*values) for number, *values in every if number == job]

    def _rows(self, name: str, label: str, job: int) -> list[IterationRow]:
        """A number that has a default (nan) is a column that a file may lack: one added since it was written."""
        lists = ("peak_in_flight", "held", "gradient_norms")
        names = [name for name in IterationRow._fields if name != "witnesses"]
        numbers = [name for name in (*names, *Witnesses._fields) if name not in lists]
        defaults = {**IterationRow._field_defaults, **Witnesses._field_defaults}
        unknown = [name for name in numbers if name in defaults]
        asked = [*numbers, "job"] if "job" in self._table(name).column_names else numbers
        found = case_of(self._table(name), self._path(name), label, asked, lists, unknown=unknown)
        jobs = found.get("job", [job] * len(found["iteration"]))  # runs of earlier versions had one job
        witnesses = zip(*map(found.__getitem__, Witnesses._fields), strict=True)
        own = zip(*map(found.__getitem__, names), strict=True)
        return [
            IterationRow(**dict(zip(names, values, strict=True)), witnesses=Witnesses(*machine))
            for number, values, machine in zip(jobs, own, witnesses, strict=True)
            if number == job
        ]

    def _table(self, name: str) -> pa.Table:
        """A table of the run, read once."""
        if name not in self._tables:
            self._tables[name] = table_of(self._path(name), ["schedule"])
        return self._tables[name]

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.parquet"


def _numbers(values: list[float | None]) -> tuple[float, ...]:
    """JSON has no number for what is none."""
    return tuple(math.nan if value is None else value for value in values)
