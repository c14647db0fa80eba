"""What a guest does with a plan: a session, or a calibration of its links, in a sandbox as on any machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from testbed.errors import ExitCode, TestbedError
from testbed.lab.host_settings import HostPriority
from testbed.lab.machine_witness import MachineWitness
from testbed.lab.sandbox import run_in_sandbox
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.progress import Marks
from testbed.vm.guest_request import GuestTask

HOST_PRIORITY = HostPriority.off
"""In a guest the one processor is shared by all, and virtual time would stand still while something spins."""


def perform(task: GuestTask, answer: Path) -> int:
    """Do it and write the document to `answer`; returns the exit code that the command line would return."""
    try:
        plan = file.read(Path(task.plan))
        if task.what == "calibrate":
            return run_in_sandbox(lambda: _calibrate(plan, task, answer))
        body = _train if task.what == "train" else _measure_engine
        with MachineWitness() as witness:
            return run_in_sandbox(lambda: body(plan, task, answer, witness))
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _train(plan: Plan, task: GuestTask, answer: Path, witness: MachineWitness) -> int:
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
