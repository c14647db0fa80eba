"""What guests find compiled: of every set of modules what this user has used last."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from test_plan import planned

from testbed.model import machine_code
from testbed.model.simulate import LARGE
from testbed.vm import command
from testbed.vm.guest_machine import GuestMachine
from testbed.vm.guest_request import JOB_DIRECTORY, JOB_FILE, GuestJob
from testbed.vm.guest_work import write_job


def job_of(place: Path) -> tuple[Path, GuestJob]:
    """A guest's job directory, and what it is told."""
    place.mkdir()
    job = write_job(place, GuestMachine(place, virtual=True, seed=1, modules=(), build={}), [], training=True)
    return job, GuestJob.from_json((job / JOB_FILE).read_text())


def test_a_guest_has_a_cache_of_its_own_with_what_was_compiled_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    job, told = job_of(tmp_path / "without")
    assert told.environment["XDG_CACHE_HOME"] == f"{JOB_DIRECTORY}/cache"
    assert list((job / "cache/testbed/compiled").iterdir()) == []

    for age, name in enumerate(("one.loop-1", "one.loop-2", "two-3", "one.loop-4")):
        directory = machine_code.caches() / name
        directory.mkdir(parents=True)
        (directory / "function.nbi").write_text(name)
        os.utime(directory, (10.0**9 - age, 10.0**9 - age))
    job, _ = job_of(tmp_path / "with")
    found = {path.parent.name: path.read_text() for path in (job / "cache/testbed/compiled").rglob("*.nbi")}
    assert found == {"one.loop-1": "one.loop-1", "two-3": "two-3"}


def test_actions_of_all_iterations_make_a_plan_large() -> None:
    plan = planned(schedules="[1f1b]")
    (job,), (case,) = plan.jobs, plan.cases
    rows = sum(map(len, case.jobs[0].rows or ()))
    assert rows
    rounds = job.workload.warmup + job.workload.iterations
    assert command._actions(plan) == rows * rounds < LARGE
    longer = job.workload.model_copy(update={"iterations": 400})
    assert command._actions(replace(plan, jobs=(replace(job, workload=longer),))) > LARGE
