"""What guests find compiled: the event model's machine code, where this process has predicted a large plan with it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_plan import planned

from testbed.model.simulate import COMPILED, LARGE
from testbed.vm import command
from testbed.vm.guest_machine import GuestMachine
from testbed.vm.guest_request import JOB_DIRECTORY, JOB_FILE, GuestJob
from testbed.vm.guest_work import write_job


def job_of(place: Path) -> tuple[Path, GuestJob]:
    """A guest's job directory, and what it is told."""
    job = write_job(place, GuestMachine(place, virtual=True, seed=1, modules=(), build={}), [], training=True)
    return job, GuestJob.from_json((job / JOB_FILE).read_text())


def test_a_guest_has_a_cache_of_its_own_with_what_this_process_has_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, COMPILED, raising=False)
    (tmp_path / "without").mkdir()
    job, told = job_of(tmp_path / "without")
    assert told.environment["XDG_CACHE_HOME"] == f"{JOB_DIRECTORY}/cache"
    assert list((job / "cache").iterdir()) == []

    from testbed.schedule.compile_all import event_model

    event_model()
    (tmp_path / "with").mkdir()
    job, _ = job_of(tmp_path / "with")
    (kept,) = (job / "cache/testbed/compiled").iterdir()
    assert kept.name.startswith("testbed.model.execute-")
    assert list(kept.rglob("*.nbi")), "its functions"


def test_actions_of_all_iterations_make_a_plan_large() -> None:
    plan = planned(schedules="[1f1b]")
    (job,), (case,) = plan.jobs, plan.cases
    rows = sum(map(len, case.jobs[0].rows or ()))
    assert rows
    rounds = job.workload.warmup + job.workload.iterations
    assert command._actions(plan) == rows * rounds < LARGE
    longer = job.workload.model_copy(update={"iterations": 400})
    assert command._actions(replace(plan, jobs=(replace(job, workload=longer),))) > LARGE
