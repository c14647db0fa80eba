"""A case that goes on with another schedule trains that one, or is not trusted: on the real clock, with real links."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from in_sandbox import in_sandbox

from testbed.lab.machine_witness import MachineWitness
from testbed.plan.plan import Plan
from testbed.plan.timeline import Moment, ScheduleSwapped
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.progress import Lines
from testbed.routing.rerouting import Controller, with_continuations, with_timeline
from testbed.session.machine_report import this_machine
from testbed.session.run import SessionOptions, run

pytestmark = pytest.mark.root

TOPOLOGY = """
name: pair
datacenters: {a: {nodes: 1}, b: {nodes: 1}}
links: [{between: [a, b], delay: 1 ms, rate: 200 Mbit/s}]
"""
WORKLOAD = """
name: swapped
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2}
microbatches: 3
microbatch_size: 1
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
message: 20 kB
memory: 3
schedules: [1f1b, zb-h1]
iterations: 4
warmup: 1
"""
AFTER = 2


def plan_of(directory: Path) -> Plan:
    """1F1B for two measured iterations, ZB-H1 for two more of the same training."""
    files = []
    for name, text in (("topology", TOPOLOGY), ("workload", WORKLOAD)):
        files.append(directory / f"{name}.yaml")
        files[-1].write_text(text)
    plan = load_plan(*files)
    made = make(plan, choose(plan))
    plan = with_cases(plan, made.choices, made.made)
    timed = with_timeline(plan, [ScheduleSwapped(plan.jobs[0].name, Moment(AFTER), "zb-h1")])
    return with_continuations(timed, Controller())


def train(directory: str, faulty: bool) -> list[Any]:
    """`faulty`: workers are never told of the second schedule, as they were not before."""
    plan = plan_of(Path(directory))
    with MachineWitness() as witness, ExitStack() as stack:
        if faulty:
            stack.enter_context(mock.patch("testbed.session.case._swaps", return_value={}))
        (Path(directory) / "out").mkdir()
        options = SessionOptions(Path(directory) / "out", "relay", this_machine(), witness)
        rows: list[Any] = run(plan, options, Lines(quiet=True))["schedules"]
    return rows


@pytest.mark.parametrize("faulty", [False, True])
def test_what_is_trained_is_what_the_label_says(tmp_path: Path, faulty: bool) -> None:
    first, second = in_sandbox(train, str(tmp_path), faulty, timeout_s=300)
    assert (first["label"], second["label"]) == ("1f1b", "zb-h1 from 2")
    assert first["memory"]["measured"]
    assert second["memory"]["measured"] is None, "counted in the first iteration, which had the other schedule"
    executed = [check for row in (first, second) for check in row["checks"] if "executed" in check["question"]]
    assert [check["ok"] for check in executed] == [True, not faulty]
    for row in (first, second):
        assert all(check["ok"] for check in row["checks"] if "one process" in check["question"])
    if faulty:
        assert not second["trusted"]
        assert "2 of 2 ranks executed another schedule than the plan's" in " ".join(second["reasons"])
