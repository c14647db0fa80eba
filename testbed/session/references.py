"""The trainings in one process that the schedules of a plan are held against: trained while the lab is built.

In a boot of many plans a training that one of them has asked for already is not trained again: a study's cells differ
in their links, slots or messages, not in their models, and half of the time to build a lab went into it.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path

from testbed.files import saving
from testbed.goodput.elastic_spans import continued
from testbed.goodput.elastic_training import elastic_training
from testbed.plan.events import trained, trainings
from testbed.plan.plan import Job, Plan
from testbed.session import deadlines
from testbed.spec.workload import Workload
from testbed.thresholds import COMPARED_ITERATIONS
from testbed.train.assignment import ReferenceOutcome
from testbed.train.launcher import Launcher
from testbed.train.protocol import TrainReference


class References:
    """Of every job of a plan. They are asked for when this is made; `outcomes` waits for them."""

    def __init__(self, plan: Plan, launchers: Sequence[Launcher], kept: Path | None) -> None:
        """`kept`: a directory of this boot's own, with those of earlier plans. Raises RunFailed."""
        requests = [_request(plan, job) for job in plan.jobs]
        self._launchers = launchers
        self._files = [None if kept is None else kept / _name(request) for request in requests]
        self._known = [None if file is None or not file.is_file() else _read(file) for file in self._files]
        for launcher, request, known in zip(launchers, requests, self._known, strict=True):
            if known is None:
                launcher.ask_for_reference(request)

    def outcomes(self) -> list[ReferenceOutcome]:
        """One per job, once all of them are trained. Raises RunFailed when a fork server is gone."""
        found = []
        for launcher, file, known in zip(self._launchers, self._files, self._known, strict=True):
            outcome = launcher.reference() if known is None else known
            if known is None and file is not None and not outcome.refused:
                with saving(file) as partial:
                    partial.write_bytes(pickle.dumps(outcome))
            found.append(outcome)
        return found


def all_kept(plan: Plan, kept: Path | None) -> bool:
    """Whether all that a plan asks for has been trained already."""
    return kept is not None and all((kept / _name(_request(plan, job))).is_file() for job in plan.jobs)


def _request(plan: Plan, job: Job) -> TrainReference:
    number = plan.jobs.index(job)
    most = max(len(trained(plan, cases, number)) for cases in trainings(plan.cases))
    iterations = min(most, COMPARED_ITERATIONS)
    lasts = {min(iterations, len(trained(plan, cases, number))) - 1 for cases in trainings(plan.cases)}
    # it is trained in two orders of sums
    deadline_s = 2 * deadlines.of_reference(job.workload, iterations).seconds
    resized = bool(plan.adaptation and plan.adaptation.microbatches)
    resized |= any(case.jobs[number].microbatches is not None for case in plan.cases)
    replicas: tuple[int, ...] = ()
    if plan.recovery is not None and plan.recovery.elastic is not None:
        (case,) = plan.cases
        training = elastic_training(plan, case)
        replicas = tuple(map(len, training.sets[:iterations]))
        lasts |= {number for number in continued(training.spans) if number < iterations}
    compared = tuple(sorted(last for last in lasts if last >= 0))
    return TrainReference(job.workload, iterations, deadline_s, compared, resized, replicas)


def _name(request: TrainReference) -> str:
    """Equal for equal trainings only, whatever else is asked of a job; two that are equal may have two."""
    asked = request.iterations, request.lasts, request.resized, request.replicas
    return hashlib.sha256(pickle.dumps((trained_from(request.workload), asked))).hexdigest()


def trained_from(workload: Workload) -> tuple[object, ...]:
    """All of a job that its training in one process looks at: model, batch, seed and optimizer."""
    batch = workload.microbatches, workload.microbatch_size, workload.parallelism.data
    return workload.model, *batch, workload.seed, workload.optimizer


def _read(file: Path) -> ReferenceOutcome:
    outcome = pickle.loads(file.read_bytes())  # this boot wrote it, and nobody else sees the directory
    assert isinstance(outcome, ReferenceOutcome)
    return outcome
