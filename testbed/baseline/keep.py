"""Measures plans and keeps them as baselines, all that were asked for or none; an untrusted run is not kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from testbed.baseline import plan_files, store
from testbed.baseline.measure import Measurement, measure, of_run, require_possible, with_remade
from testbed.baseline.regression import CheckResult
from testbed.baseline.tolerance import Mode, default_tolerances
from testbed.errors import BadInput, RunFailed, UntrustedRun
from testbed.files import MOST_JSON_BYTES, read_text
from testbed.planning import file
from testbed.planning.resolve import make_plan, with_clock
from testbed.planning.schedules import make
from testbed.progress import Reporter
from testbed.results.load import load_run
from testbed.scratch import scratch_directory


@dataclass(frozen=True)
class Terms:
    """On what terms a baseline is kept."""

    reason: str
    quick: bool
    mode: Mode = Mode.virtual
    seed: int = 1
    shaper: str = "auto"


def save(directory: Path, specs: plan_files.Specs, terms: Terms, *, limit_s: float, reporter: Reporter) -> None:
    """Measure a plan and keep it. Raises BadInput, RunFailed or UntrustedRun; then nothing has changed."""
    unfinished = with_clock(make_plan(*specs), terms.mode.clock)
    with reporter.solving() as watch:
        selected = make(unfinished, specs.workload.schedules, watch=watch, strict=True)
    specs = specs._replace(workload=specs.workload.model_copy(update={"schedules": selected.choices}))
    with store.replacing(directory) as fresh:
        plan_files.write(fresh, specs, selected.made)
        task = Measurement(directory.name, plan_files.read(fresh, terms.mode), terms.mode, terms.seed, _shaper(terms))
        _take([(fresh, task, terms)], limit_s, reporter)


def save_run(directory: Path, run: Path, terms: Terms) -> None:
    """Keep a finished run. Raises BadInput or UntrustedRun."""
    outcome = of_run(run)
    manifest = load_run(run).manifest
    specs = plan_files.of_run(file.read(run), str(run / file.NAME))
    mode, vm = Mode(manifest["clock"]), manifest.get("vm", {})
    if mode is Mode.real and vm:
        raise BadInput.of(str(run), "vm", vm, "a run on this machine or the virtual clock: others cannot be repeated")
    if mode is Mode.virtual and "kernel_seed" not in vm:
        raise BadInput.of(str(run / "manifest.json"), "vm", sorted(vm), "a kernel_seed, as runs of this version have")
    with store.replacing(directory) as fresh:
        plan_files.write(fresh, specs, read_text(run / "schedules.json", MOST_JSON_BYTES))
        task = Measurement(
            directory.name, plan_files.read(fresh, mode), mode, vm.get("kernel_seed", 1), manifest["shaper"]
        )
        _write(fresh, task, with_remade(outcome, task.subject), terms)


def renew(
    directories: Sequence[Path], reason: str, *, schedules_anew: bool, limit_s: float, reporter: Reporter
) -> None:
    """Measure baselines again and keep the new figures. Raises RunFailed or UntrustedRun; then none has changed."""
    with ExitStack() as stack:
        prepared = []
        for directory in directories:
            before = store.read(directory)
            subject = plan_files.read(directory, before.mode)
            made = subject.made
            if schedules_anew:
                with reporter.solving() as watch:
                    made = make(subject.plan, subject.choices, watch=watch, strict=True).made
            fresh = stack.enter_context(store.replacing(directory))
            plan_files.write(fresh, subject.specs, made)
            task = Measurement(
                before.name, plan_files.read(fresh, before.mode), before.mode, before.seed, before.shaper
            )
            prepared.append((fresh, task, Terms(reason, before.quick)))
        _take(prepared, limit_s, reporter)


def _shaper(terms: Terms) -> str:
    """A guest always has netem."""
    return "netem" if terms.mode is Mode.virtual and terms.shaper == "auto" else terms.shaper


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
    reasons = [f"{one.schedule}: {reason}" for one in outcome.figures for reason in one.reasons]
    if not all(one.trusted for one in outcome.figures):
        raise UntrustedRun(f"{task.name} cannot be trusted, nothing was saved: {'; '.join(reasons)}")
    baseline = store.Baseline(
        name=task.name,
        mode=task.mode,
        saved=datetime.now(UTC).isoformat(timespec="seconds"),
        reason=terms.reason,
        quick=terms.quick,
        seed=task.seed,
        shaper=task.shaper,
        tolerances=default_tolerances(task.mode, paced=task.subject.paced),
        environment=dict(outcome.environment),
        figures=outcome.figures,
    )
    store.write(directory, baseline)
