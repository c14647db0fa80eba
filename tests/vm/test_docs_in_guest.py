"""The tutorial's commands that train, and what they leave, as it has them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from documents import TRAINED, TUTORIAL, blocks, commands
from in_process import run_testbed

from testbed.vm.kernel import Kernel

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


def test_the_tutorial_measures_and_reports(tmp_path: Path, time_travel_kernel: Kernel) -> None:
    for block in blocks(TUTORIAL, "yaml"):
        (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    lines = [line for line in commands(TUTORIAL) if line.startswith(TRAINED)]
    for line in lines:
        done = run_testbed(*shlex.split(line)[1:], directory=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
        if line.startswith("testbed run "):
            assert done.stdout.rstrip().endswith("all trusted"), done.stdout
    assert len(lines) == 4
    assert (tmp_path / "mine.html").is_file()
