"""Takes the figures of plans: by the model alone, in guests (many plans in one boot), or on the real clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.baseline import environment
from testbed.baseline.plan_files import Subject
from testbed.baseline.regression import CheckResult, Figures
from testbed.baseline.tolerance import Mode
from testbed.errors import BadInput, Interrupted, RunFailed
from testbed.plan.costs import predict
from testbed.plan.plan import Clock
from testbed.planning.resolve import require_trainable, with_clock
from testbed.planning.schedules import candidates
from testbed.progress import Reporter
from testbed.results.contents import table_of
from testbed.results.destination import is_complete
from testbed.results.load import load_run
from testbed.schedule.registry import family_of
from testbed.trace.summary import summaries


@dataclass(frozen=True)
class Measurement:
    """A plan, and how its figures are to be taken."""

    name: str
    subject: Subject
    mode: Mode
    seed: int
    shaper: str


def require_possible(task: Measurement) -> None:
    """Raises BadInput for a plan whose figures cannot be taken that way."""
    plan = task.subject.plan
    if task.mode is Mode.predict:
        if not task.subject.paced:
            raise BadInput.of(task.name, "pacing", "none", "seconds for F, I and W: nothing else can be predicted")
        return
    require_trainable(plan)
    if task.mode is Mode.virtual and not task.subject.paced:
        raise BadInput.of(task.name, "pacing", "none", "seconds for F, I and W: computation takes no virtual time")


def measure(
    tasks: Sequence[Measurement], scratch: Path, *, limit_s: float, reporter: Reporter
) -> dict[str, CheckResult]:
    """What every task gives, by name; results of runs go to `scratch`/NAME.

    Plans under the virtual clock with the same seed share a boot. A run that fails is an outcome, not an error.
    Generators make their schedules anew as well, for comparison. Raises MachineLacks before anything is started.
    """
    failures: dict[str, str] = {}
    by_seed: dict[int, list[Measurement]] = {}
    for task in tasks:
        if task.mode is Mode.virtual:
            by_seed.setdefault(task.seed, []).append(task)
    for seed, together in by_seed.items():
        failures |= _run_in_guest(together, seed, scratch, limit_s, reporter)
    stopped = ""
    for task in tasks:
        if task.mode is Mode.real:
            failures[task.name] = stopped or _run_here(task, scratch / task.name, reporter)
            if failures[task.name] and not stopped:  # perhaps interrupted: a sandbox does not tell
                stopped = f"not repeated, as {task.name} failed before it"
    outcomes = {}  # files are read when all is over: a sandbox must be entered by a process of one thread
    with reporter.step("predicting", total=len(tasks)) as step:
        for task in tasks:
            step.detail(f"predicting {task.name}")
            failure = failures.get(task.name, "")
            outcome = _predicted(task.subject) if task.mode is Mode.predict else _of_run(scratch / task.name, failure)
            outcomes[task.name] = with_remade(outcome, task.subject)
            step.advance()
    return outcomes


def of_run(directory: Path) -> CheckResult:
    """The figures of a finished run. Raises BadInput where something is missing."""
    found = load_run(directory)
    if not found.complete or not found.manifest:
        raise BadInput.of(str(directory), "comparison.json", "complete: false", "the results of a finished run")
    losses = _losses(directory / "iterations.parquet")
    figures = []
    for index, row in enumerate(found.comparison["schedules"]):
        mine = losses.get(row["label"], [])
        named = row | {"schedule": row["label"], "losses": mine}
        figures.append(Figures.from_json(named, str(directory / "comparison.json"), f"schedules.{index}"))
    return CheckResult(tuple(figures), environment=environment.of_run(found.manifest, str(directory / "manifest.json")))


def with_remade(outcome: CheckResult, subject: Subject) -> CheckResult:
    """The same with what generators make today. One that refuses the plan now has no time."""
    if not subject.paced:
        return outcome
    times: dict[str, float] = {}
    for choice in subject.choices:
        if not family_of(choice).solver:
            try:
                found = candidates(subject.plan, [choice]).found
            except BadInput:
                continue  # the judge calls it missing, as the baseline has a time
            times |= {one.choice.label: one.makespan_s for one in found}
    figures = tuple(replace(one, remade_s=times.get(one.schedule)) for one in outcome.figures)
    return replace(outcome, figures=figures)


def _predicted(subject: Subject) -> CheckResult:
    figures = []
    for choice in subject.choices:
        schedule = subject.made[choice.label].schedule
        (found,) = summaries(predict(subject.plan, choice, schedule))
        figures.append(Figures(choice.label, found.makespan_s, found.bubble_ratio, max(found.peaks)))
    return CheckResult(tuple(figures), environment=environment.of_this_process())


def _run_in_guest(
    tasks: Sequence[Measurement], seed: int, scratch: Path, limit_s: float, reporter: Reporter
) -> dict[str, str]:
    """Train all plans in one boot; returns why, for those that left no comparison."""
    from testbed.vm import command

    clock = Clock("virtual", seed)
    machine = command.choose_machine(clock)
    trainings = [
        command.Training(with_clock(task.subject.plan, clock), _made(scratch / task.name), task.shaper)
        for task in tasks
    ]
    try:
        boot, documents = command.train(machine, trainings, limit_s=limit_s, reporter=reporter)
    except Interrupted:
        raise
    except RunFailed as error:
        return {task.name: str(error) for task in tasks if not is_complete(scratch / task.name)}
    failures = {}
    for number, task in enumerate(tasks):
        if number >= len(documents) or documents[number] is None:
            code = boot.ended[number].code if number < len(boot.ended) else "none"
            failures[task.name] = f"the run ended with exit code {code}"
    return failures


def _run_here(task: Measurement, directory: Path, reporter: Reporter) -> str:
    """Train one plan on the real clock, in a sandbox; returns why it failed, or nothing."""
    from testbed.lab.machine_witness import MachineWitness
    from testbed.lab.sandbox import run_with_own_files

    subject = task.subject
    _made(directory)

    def body() -> int:
        from testbed.session.machine_report import this_machine
        from testbed.session.run import SessionOptions, run

        run(subject.plan, SessionOptions(directory, task.shaper, this_machine(), witness), reporter)
        return 0

    with MachineWitness() as witness:
        code = run_with_own_files(body)
    return f"the run ended with exit code {code}" if code else ""


def _made(directory: Path) -> Path:
    (directory / "logs").mkdir(parents=True)
    return directory


def _of_run(directory: Path, failure: str) -> CheckResult:
    if not failure:
        return of_run(directory)
    manifest: Mapping[str, Any] = {}
    if (directory / "manifest.json").is_file():
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    return CheckResult((), failure, environment.of_run(manifest) if manifest else {})


def _losses(path: Path) -> dict[str, list[float]]:
    """Per schedule, the loss of every measured iteration."""
    frame = table_of(path, ["schedule", "warmup", "loss"])
    measured = frame[~frame["warmup"]]
    return {str(name): [float(x) for x in rows["loss"]] for name, rows in measured.groupby("schedule", sort=False)}
