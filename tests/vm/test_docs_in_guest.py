"""The pages' commands that train, and what they leave, as the tutorial and the page on planning have them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from documents import PLANNING, TUTORIAL, commands, trains, write_files
from in_process import run_testbed

from testbed.vm.kernel import Kernel

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


def test_the_tutorial_measures_and_reports(tmp_path: Path, time_travel_kernel: Kernel) -> None:
    write_files(TUTORIAL, tmp_path)
    lines = [line for line in commands(TUTORIAL) if trains(line)]
    for line in lines:
        done = run_testbed(*shlex.split(line)[1:], directory=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
        if line.startswith("testbed run "):
            assert done.stdout.rstrip().endswith("all trusted"), done.stdout
    assert len(lines) == 4
    assert (tmp_path / "mine.html").is_file()


def test_the_page_on_planning_confirms_what_it_advises(tmp_path: Path, time_travel_kernel: Kernel) -> None:
    write_files(PLANNING, tmp_path)
    lines = [line for line in commands(PLANNING) if trains(line)]
    for line in lines:
        done = run_testbed(*shlex.split(line)[1:], directory=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
    assert len(lines) == 2
    assert "trusted" in done.stdout
