"""Takes the figures of plans: by the model alone, in guests (many plans in one boot), or on the real clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed import extras
from testbed.baseline import environment
from testbed.baseline.regression import CheckResult, Figures
from testbed.baseline.settings import decided_in, made_anew
from testbed.baseline.tolerance import Mode
from testbed.errors import BadInput, Interrupted, RunFailed
from testbed.goodput.elastic_training import training_as_played
from testbed.goodput.foretelling import foretold_of_case
from testbed.judge.comparison import jobs_of
from testbed.plan.events import at_work
from testbed.plan.plan import Plan
from testbed.planning.free_training import own_phase_of
from testbed.planning.prediction import parts_of
from testbed.planning.resolve import require_trainable
from testbed.planning.schedules import candidates, choices_in_cases, with_schedules
from testbed.progress import Reporter
from testbed.results import control_times
from testbed.results.destination import is_complete
from testbed.results.load import load_run
from testbed.results.run_tables import frame_of
from testbed.schedule.registry import Generated, family_of
from testbed.trace.predictions import predicted_summary


@dataclass(frozen=True)
class Measurement:
    """A plan, and how its figures are to be taken."""

    name: str
    plan: Plan
    mode: Mode
    shaper: str
    control: bool = False
    """Whether its schedules are trained without shaping, too: on the real clock only."""


def is_paced(plan: Plan) -> bool:
    """Whether it is known what all actions take, before a run."""
    return all(job.workload.pacing is not None for job in plan.jobs)


def require_possible(task: Measurement) -> None:
    """Raises BadInput for a plan whose figures cannot be taken that way, MachineLacks without what a run needs."""
    plan = task.plan
    if task.mode is Mode.predict:
        if not is_paced(plan):
            raise BadInput.of(task.name, "pacing", "none", "seconds for F, I and W: nothing else can be predicted")
        return
    require_trainable(plan)
    if task.mode is Mode.virtual and not is_paced(plan):
        raise BadInput.of(task.name, "pacing", "none", "seconds for F, I and W: computation takes no virtual time")
    extras.require("train")
    if task.mode is Mode.virtual:
        from testbed.vm.command import require_no_limits

        require_no_limits(plan)


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
            by_seed.setdefault(task.plan.clock.seed, []).append(task)
    for together in by_seed.values():
        failures |= _run_in_guest(together, scratch, limit_s, reporter)
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
            outcome = _predicted(task.plan) if task.mode is Mode.predict else _of_run(scratch / task.name, failure)
            outcomes[task.name] = with_remade(outcome, task.plan)
            step.advance()
    return outcomes


def of_run(directory: Path) -> CheckResult:
    """The figures of a finished run. Raises BadInput where something is missing."""
    found = load_run(directory)
    if not found.complete or not found.manifest:
        raise BadInput.of(str(directory), "comparison.json", "complete: false", "the results of a finished run")
    losses, jobs = _losses(directory / "iterations.parquet"), [job.name for job in jobs_of(found.comparison)]
    controls = control_times.read(directory)
    goodputs = {entry["label"]: entry for entry in found.comparison.get("goodput", ())}
    figures = []
    for index, row in enumerate(found.comparison["schedules"]):
        number, label = jobs.index(row["job"]) if jobs else 0, row["label"]
        named = row | {"schedule": label, "losses": losses.get((label, number), [])}
        if (control := controls.get((label, row.get("job", "")))) is not None:
            named["control_s"] = control.median_s
        if (goodput := goodputs.get(label)) is not None:
            named |= {f"goodput_{whose}": goodput[whose]["goodput"] for whose in ("predicted", "measured")}
        figures.append(Figures.from_json(named, str(directory / "comparison.json"), f"schedules.{index}"))
    return CheckResult(tuple(figures), environment=environment.of_run(found.manifest, str(directory / "manifest.json")))


def with_remade(outcome: CheckResult, plan: Plan) -> CheckResult:
    """The same with what a case takes whose schedules generators make today, on the nodes that ranks are given today.

    A solver's schedule has no such time, nor one whose generator refuses the plan now.
    """
    if not is_paced(plan):
        return outcome
    plan = plan if decided_in(plan) else made_anew(plan, [], "plan.json")
    remade = [_made_today(plan, job) for job in range(len(plan.jobs))]
    names = {job.name: number for number, job in enumerate(plan.jobs)}
    chosen = {case.label: case.jobs for case in plan.cases}
    times_s = {(found.schedule, found.job): found.predicted_s for found in _figures(with_schedules(plan, remade))}

    def remade_s(kept: Figures) -> float | None:
        number = names[kept.job] if kept.job else 0
        made = kept.schedule in chosen and chosen[kept.schedule][number].choice.label in remade[number]
        return times_s.get((kept.schedule, kept.job)) if made else None

    return replace(outcome, figures=tuple(replace(kept, remade_s=remade_s(kept)) for kept in outcome.figures))


def _made_today(plan: Plan, job: int) -> dict[str, Generated]:
    """By label, what generators make of a job's choices; not a solver, which would take its whole time limit."""
    made: dict[str, Generated] = {}
    for choice in choices_in_cases(plan, job):
        if not family_of(choice).solver:
            try:
                found = candidates(plan, [choice], job=job, judge=False).found
            except BadInput:
                continue  # the judge calls it missing, as the baseline has a time
            made |= {candidate.choice.label: candidate.generated for candidate in found}
    return made


def _predicted(plan: Plan) -> CheckResult:
    return CheckResult(tuple(_figures(plan)), environment=environment.of_this_process())


def _figures(plan: Plan) -> list[Figures]:
    """What the model says of every case, job by job at work."""
    figures = []
    for case in plan.cases:
        parts = parts_of(plan, case, training_as_played(plan, case).trace)
        for number, part in zip(at_work(plan, case), parts, strict=True):
            name = plan.jobs[number].name if len(plan.jobs) > 1 else ""
            rounds = own_phase_of(plan, case, number).measured
            found = predicted_summary(part, rounds, mean=plan.rounds == "free")
            goodput = None if plan.recovery is None else foretold_of_case(plan, case)["predicted"]["goodput"]
            figures.append(
                Figures(
                    case.label,
                    found.makespan_s,
                    found.bubble_ratio,
                    max(found.peaks),
                    job=name,
                    goodput_predicted=goodput,
                )
            )
    return figures


def _run_in_guest(tasks: Sequence[Measurement], scratch: Path, limit_s: float, reporter: Reporter) -> dict[str, str]:
    """Train all plans, of one seed, in one boot; returns why, for those that left no comparison."""
    from testbed.vm import command

    machine = command.choose_machine(tasks[0].plan.clock)
    trainings = [command.GuestTraining(task.plan, _made(scratch / task.name), task.shaper) for task in tasks]
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

    _made(directory)

    def body() -> int:
        from testbed.session.machine_report import this_machine
        from testbed.session.run import SessionOptions, run

        how = SessionOptions(directory, task.shaper, this_machine(), witness, control=task.control)
        run(task.plan, how, reporter)
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


def _losses(path: Path) -> dict[tuple[str, int], list[float]]:
    """Per schedule and number of a job, the loss of every measured iteration."""
    frame = frame_of(path, ["schedule", "job", "warmup", "loss"])
    found: dict[tuple[str, int], list[float]] = {}
    for name, job, warmup, loss in frame[["schedule", "job", "warmup", "loss"]].itertuples(index=False):
        if not warmup:
            found.setdefault((str(name), int(job)), []).append(float(loss))
    return found
