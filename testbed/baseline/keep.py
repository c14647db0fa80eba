"""Measures plans and keeps them as baselines, all that were asked for or none; an untrusted run is not kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from testbed.baseline import store
from testbed.baseline.measure import Measurement, is_paced, measure, of_run, require_possible, with_remade
from testbed.baseline.regression import CheckResult
from testbed.baseline.tolerance import Mode, default_tolerances
from testbed.errors import BadInput, RunFailed, UntrustedRun
from testbed.plan.plan import Plan
from testbed.plan.timeline import LinkEvent
from testbed.planning import file
from testbed.planning.resolve import with_clock, with_costs_of_this_version
from testbed.planning.schedules import choices_in_cases, make, with_schedules
from testbed.progress import Reporter
from testbed.results.load import load_run
from testbed.scratch import scratch_directory


@dataclass(frozen=True)
class Terms:
    """On what terms a baseline is kept."""

    reason: str
    quick: bool
    mode: Mode = Mode.virtual
    shaper: str = "auto"
    files: store.SavedFrom | None = None


def save(directory: Path, plan: Plan, terms: Terms, *, limit_s: float, reporter: Reporter) -> None:
    """Measure a plan, on its clock, and keep it. Raises BadInput, RunFailed or UntrustedRun: then nothing changed."""
    with store.replacing(directory) as fresh:
        task = Measurement(directory.name, plan, terms.mode, _shaper(terms, plan), control=terms.mode is Mode.real)
        _take([(fresh, task, terms)], limit_s, reporter)


def save_run(directory: Path, run: Path, terms: Terms) -> None:
    """Keep a finished run. Raises BadInput or UntrustedRun."""
    outcome, plan = of_run(run), file.read(run)
    manifest = load_run(run).manifest
    mode, vm = Mode(manifest["clock"]), manifest.get("vm", {})
    if mode is Mode.real and vm:
        raise BadInput.of(str(run), "vm", vm, "a run on this machine or the virtual clock: others cannot be repeated")
    if mode is Mode.virtual and "kernel_seed" not in vm:
        raise BadInput.of(str(run / "manifest.json"), "vm", sorted(vm), "a kernel_seed, as runs of this version have")
    plan = with_clock(plan, mode.clock(vm.get("kernel_seed", 1)))
    if not is_paced(plan):
        plan = _before_its_profile(plan)
    with store.replacing(directory) as fresh:
        task = Measurement(directory.name, plan, mode, manifest["shaper"])
        _write(fresh, task, with_remade(outcome, with_costs_of_this_version(plan)), terms)


def _before_its_profile(plan: Plan) -> Plan:
    """The plan of an unpaced run as it was before: what actions take, and the schedules for it, a run finds anew."""
    jobs = tuple(replace(job, profile=None) for job in plan.jobs)
    cases = tuple(
        replace(case, jobs=tuple(replace(chosen, rows=None, proof=None) for chosen in case.jobs)) for case in plan.cases
    )
    return replace(plan, jobs=jobs, cases=cases)


def renew(
    directories: Sequence[Path],
    reason: str,
    *,
    schedules_anew: bool,
    limit_s: float,
    reporter: Reporter,
    plan_of: Callable[[Path], Plan] = store.plan_of,
) -> None:
    """Measure baselines again and keep the new figures, of the plan that `plan_of` its directory is today. Raises
    BadInput, RunFailed or UntrustedRun; then none has changed."""
    with ExitStack() as stack:
        prepared = []
        for directory in directories:
            before, plan = store.read(directory), plan_of(directory)
            if schedules_anew:
                plan = _made_anew(plan, reporter)
            fresh = stack.enter_context(store.replacing(directory))
            task = Measurement(before.name, plan, before.mode, before.shaper, control=before.mode is Mode.real)
            prepared.append((fresh, task, Terms(reason, before.quick, files=before.files)))
        _take(prepared, limit_s, reporter)


def _made_anew(plan: Plan, reporter: Reporter) -> Plan:
    with reporter.solving() as watch:
        made = [
            make(plan, choices_in_cases(plan, job), watch=watch, job=job, strict=True).made
            for job in range(len(plan.jobs))
        ]
    return with_schedules(plan, made)


def _shaper(terms: Terms, plan: Plan) -> str:
    """A guest always has netem, which is taken but where links change."""
    steady = not any(isinstance(event, LinkEvent) for event in plan.events)
    return "netem" if steady and terms.mode is Mode.virtual and terms.shaper == "auto" else terms.shaper


def _take(prepared: Sequence[tuple[Path, Measurement, Terms]], limit_s: float, reporter: Reporter) -> None:
    tasks = [task for _, task, _ in prepared]
    for task in tasks:
        require_possible(task)
    with scratch_directory("testbed-baseline-") as scratch:
        outcomes = measure(tasks, scratch, limit_s=limit_s, reporter=reporter)
    for directory, task, terms in prepared:
        _write(directory, task, outcomes[task.name], terms)


def _write(directory: Path, task: Measurement, outcome: CheckResult, terms: Terms) -> None:
    if outcome.failure:
        raise RunFailed(f"{task.name}: {outcome.failure}; nothing was saved")
    reasons = [f"{figures.name}: {reason}" for figures in outcome.figures for reason in figures.reasons]
    if not all(figures.trusted for figures in outcome.figures):
        raise UntrustedRun(f"{task.name} cannot be trusted, nothing was saved: {'; '.join(reasons)}")
    baseline = store.Baseline(
        name=task.name,
        mode=task.mode,
        saved=datetime.now(UTC).isoformat(timespec="seconds"),
        reason=terms.reason,
        quick=terms.quick,
        shaper=task.shaper,
        tolerances=default_tolerances(
            task.mode,
            paced=is_paced(task.plan),
            controlled=all(figures.control_s is not None for figures in outcome.figures),
            recovers=all(figures.recovers for figures in outcome.figures),
        ),
        environment=dict(outcome.environment),
        figures=outcome.figures,
        files=terms.files,
    )
    store.write(directory, baseline, task.plan)
