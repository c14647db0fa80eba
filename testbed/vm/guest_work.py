"""What a guest is asked to do, and the files that tell it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from testbed.model.machine_code import copy_used_last
from testbed.plugins import in_file
from testbed.session.machine_report import MACHINE_VARIABLE
from testbed.vm import guest_request as request
from testbed.vm.guest_files import SEARCH_PATH
from testbed.vm.guest_machine import GuestMachine
from testbed.vm.kernel_process import KERNEL_LOG, python_environment

_LONGEST_PHASE_S = 0.01
_CACHE = "cache"
"""A guest's, in its job directory: all of its processes find there what one of them, or of this user, has compiled."""


@dataclass(frozen=True)
class Assignment:
    """A plan to `train` or `calibrate` in the guest, or to measure the `engine` with."""

    what: Literal["train", "calibrate", "engine"]
    plan: str
    """The text of plan.json: all that the guest is told of it."""
    out: Path | None = None
    """Results directory on this machine; made when it does not exist."""
    shaper: str = "netem"
    quiet: bool = False
    beside_mininet: bool = False
    strict: bool = False
    sizes: tuple[int, ...] = ()
    shown: tuple[str, ...] = ()
    """Directories that a job's code may read: the guest sees them, wherever they lie."""


def write_job(
    private: Path,
    machine: GuestMachine,
    assignments: Sequence[Assignment],
    training: bool,
    results: Sequence[str | None] = (),
    *,
    copied: bool = False,
) -> Path:
    """All that the guest gets to know, below a directory of the boot's; `results` and `copied` as in GuestJob."""
    job, out = private / "job", private / "out"
    for directory in (job, out, private / "memory", private / "uml"):
        directory.mkdir()
    (private / KERNEL_LOG).touch()
    tasks = []
    for number, assignment in enumerate(assignments):
        if assignment.out is not None:
            (out / str(number)).mkdir()
        # names do not tell where anything came from: in virtual time even a name's length is input
        (job / f"{number}.plan.json").write_text(assignment.plan, encoding="utf-8")
        directory_there = None if assignment.out is None else f"{request.GUEST_OUT}/{number}"
        plan_there = f"{request.JOB_DIRECTORY}/{number}.plan.json"
        asked = (
            _shaper(assignment.shaper, job, number),
            assignment.quiet,
            assignment.beside_mininet,
            assignment.strict,
            assignment.sizes,
            assignment.shown,
        )
        tasks.append(request.GuestTask(assignment.what, plan_there, directory_there, *asked))
        (job / request.standard_error(number)).touch()
    (job / request.REPORT_FILE).touch()
    (job / request.GUEST_LOG).touch()
    copy_used_last(job / _CACHE / "testbed" / "compiled")
    environment = {
        **python_environment(),
        "HOME": "/run/tmp",
        "TMPDIR": "/run/tmp",
        "LANG": "C.UTF-8",
        "PATH": SEARCH_PATH,
        "XDG_CACHE_HOME": f"{request.JOB_DIRECTORY}/{_CACHE}",
        MACHINE_VARIABLE: json.dumps(machine.identity()),
    }
    # another one for every seed, so that the spread over seeds shows what the ticks of timers cost
    phase_s = _LONGEST_PHASE_S * random.Random(machine.seed).random() if machine.virtual else 0.0
    asked_of_all = environment, machine.modules, training, machine.virtual, tuple(results), phase_s, copied
    (job / request.JOB_FILE).write_text(request.GuestJob(tuple(tasks), *asked_of_all).as_json(), encoding="utf-8")
    return job


def _shaper(name: str, job: Path, number: int) -> str:
    """The name of a shaper; of FILE.py:NAME with a copy of the file."""
    reference = in_file(name)
    if reference is None:
        return name
    copy = f"{number}.shaper.py"
    shutil.copyfile(reference.file, job / copy)
    return f"{request.JOB_DIRECTORY}/{copy}:{reference.name}"
