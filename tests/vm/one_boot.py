"""Plans trained one after another in one boot of the virtual clock: a boot costs as much as many small plans.

A test file that wants plans measured has a function `asked(directory)`, which gives them names; its tests take the
fixture `measured`. All files that are collected share a boot for every test process (shared_boots.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from in_process import run_testbed

from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.light import lighter

MARKS = [pytest.mark.root, pytest.mark.timeout(1800)]
"""Of a file whose plans share the boot: the first test waits for all of them, on a machine that has much to do."""

ROOT = Path(__file__).parents[2]
DEADLINE_S = 1780


class Asked(NamedTuple):
    """What a boot is to train."""

    plan: Plan
    shaper: str = "netem"
    quiet: bool = True
    light: bool = True
    """Whether its models may be smaller ones, with the same messages in the same time (planning/light.py)."""

    @property
    def trained(self) -> Plan:
        """The plan that is trained."""
        return lighter(self.plan)[0] if self.light else self.plan


class Measured(NamedTuple):
    """What came of it."""

    plan: Plan
    document: dict[str, Any]
    """comparison.json."""
    out: Path
    said: str
    """On standard error, by all plans of the boot that are not quiet."""


def planned(directory: Path, *words: str | Path) -> Plan:
    """What `testbed plan` makes of these words, for the virtual clock."""
    done = run_testbed("plan", *words, "--clock", "virtual", "-o", directory / "plan.json")
    assert done.returncode == 0, done.stderr
    return file.read(directory / "plan.json")


def train(directory: Path, asked: Mapping[str, Asked]) -> dict[str, Measured]:
    """Train all in one boot; everything is written below `directory`. What fails, fails the test."""
    trainings = []
    for number, one in enumerate(asked.values()):
        plan = directory / f"{number}.plan.json"
        plan.write_text(file.to_json(one.trained))
        trainings.append([str(plan), str(directory / str(number)), one.shaper, one.quiet])
    listed = directory / "trainings.json"
    listed.write_text(json.dumps(trainings))
    command = [sys.executable, str(Path(__file__).with_name("train_in_one_boot.py")), str(listed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    documents = json.loads(done.stdout.splitlines()[-1])
    return {
        name: Measured(one.trained, document, directory / str(number), done.stderr)
        for number, ((name, one), document) in enumerate(zip(asked.items(), documents, strict=True))
    }
