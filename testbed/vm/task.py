"""What a guest does with a plan: a session, or a calibration of its links, in a sandbox as on any machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import ExitCode, TestbedError
from testbed.lab.host_settings import HostPriority
from testbed.lab.machine_witness import MachineWitness
from testbed.lab.sandbox import run_in_sandbox
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.progress import Marks
from testbed.vm.guest_request import GuestTask

if TYPE_CHECKING:
    from testbed.session.standing_lab import StandingLab

HOST_PRIORITY = HostPriority.off
"""In a guest the one processor is shared by all, and virtual time would stand still while something spins."""


def perform(tasks: Sequence[GuestTask], answers: Sequence[Path], goes_on: Callable[[int, int], None]) -> int:
    """Do the first task, and write its document to its answer; returns the exit code that the command line would.

    Trainings behind it that its lab and its workers serve as well are done in its process. Each is announced by
    `goes_on`, with the code of the one before it and its own place; the code returned is the last one's.
    """
    task, answer = tasks[0], answers[0]
    try:
        plan = file.read(Path(task.plan))
        if task.what == "calibrate":
            return run_in_sandbox(lambda: _calibrate(plan, task, answer))
        with MachineWitness() as witness:
            if task.what == "engine":
                return run_in_sandbox(lambda: _measure_engine(plan, task, answer, witness))
            return run_in_sandbox(lambda: _train_in_turn(plan, tasks, answers, witness, goes_on))
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _train_in_turn(
    plan: Plan,
    tasks: Sequence[GuestTask],
    answers: Sequence[Path],
    witness: MachineWitness,
    goes_on: Callable[[int, int], None],
) -> int:
    from testbed.session.standing_lab import StandingLab

    with ExitStack() as stack:
        standing = StandingLab(stack, tasks[0].shown)
        code = _train(plan, tasks[0], answers[0], witness, standing)
        for place in range(1, len(tasks)):
            following = _following(tasks[place], tasks[0], standing, answers[place].parent)
            if following is None:
                break
            goes_on(code, place)
            code = _train(following, tasks[place], answers[place], witness, standing)
    return code


def _following(task: GuestTask, first: GuestTask, standing: StandingLab, kept_references: Path) -> Plan | None:
    """The plan of another task, if what has served the first one serves it and is ready to; None otherwise."""
    if (task.what, task.shaper, task.shown) != (first.what, first.shaper, first.shown):
        return None
    try:
        plan = file.read(Path(task.plan))
        if not standing.suits(plan, kept_references):
            return None
        standing.leave()
    except TestbedError:  # of this plan it will be said where it is begun with; of workers, nothing is lost
        return None
    return plan


def _train(plan: Plan, task: GuestTask, answer: Path, witness: MachineWitness, standing: StandingLab) -> int:
    from testbed.session.machine_report import this_machine
    from testbed.session.run import SessionOptions, run

    assert task.out is not None
    options = SessionOptions(
        Path(task.out),
        task.shaper,
        this_machine(),
        witness,
        HOST_PRIORITY,
        strict=task.strict,
        kept_references=answer.parent,
        standing=standing,
    )
    document = run(plan, options, Marks(quiet=task.quiet))
    _write(document, answer)
    return ExitCode.OK if all(row["trusted"] for row in document["schedules"]) else ExitCode.UNTRUSTED


def _measure_engine(plan: Plan, task: GuestTask, answer: Path, witness: MachineWitness) -> int:
    from testbed.session.engine_costs import measure_engine
    from testbed.session.machine_report import this_machine

    document = measure_engine(
        plan,
        task.sizes,
        machine=this_machine(),
        shaper=task.shaper,
        host_priority=HOST_PRIORITY,
        witness=witness,
        reporter=Marks(quiet=task.quiet),
    )
    _write(document, answer)
    return ExitCode.OK


def _calibrate(plan: Plan, task: GuestTask, answer: Path) -> int:
    from testbed.session.links import measure_links

    document = measure_links(
        plan,
        shaper=task.shaper,
        host_priority=HOST_PRIORITY,
        beside_mininet=task.beside_mininet,
        reporter=Marks(quiet=task.quiet),
    )
    _write(document, answer)
    return ExitCode.OK if all(link["ok"] for link in document["links"]) else ExitCode.UNTRUSTED


def _write(document: dict[str, Any], answer: Path) -> None:
    answer.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
