"""Our generators of the schedules that torch ships give torch's orders, action by action.

torch's pipelining is imported by the tests: it takes two seconds, which every process that collects tests would need.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from testbed.pipeline.ir import COMPUTE, Action, Kind, Row, parse_action
from testbed.pipeline.problem import uniform
from testbed.schedule.registry import FAMILIES, generate


def flattened(actions: list[Any]) -> Row:
    """torch's actions as ours: no idle slots, only what is computed, F and B computed at once one after the other."""
    result: list[Action] = []
    for action in actions:
        if action is not None:
            result += [parse_action(str(part)) for part in action.sub_actions or (action,)]
    return tuple(action for action in result if action.kind in COMPUTE)


def repaired(row: Row) -> Row:
    """torch 2.13 lists the last rank of 1F1B (no warm-up) with forwards 1..M; what it executes are 0..M-1."""
    return tuple(a._replace(microbatch=a.microbatch - 1) if a.kind is Kind.F and a.microbatch else a for a in row)


def rows(name: str, p: int, m: int) -> tuple[Row, ...]:
    placement = FAMILIES[name].stage_to_rank(p)
    return generate(name, uniform(p, m, memory=float(2 * p + m), stage_to_rank=placement)).rows


SINGLE = {"gpipe": "GPipe", "1f1b": "1F1B"}
CHUNKED = {
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "zb1p": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
SHAPES = [
    *((1, m) for m in (1, 2, 5)),
    *((p, m) for p in (2, 3) for m in range(1, 4 * p + 1)),
    *((4, m) for m in (1, 3, 4, 5, 8, 9, 16)),
    *((8, m) for m in (8, 17)),
]
"""Pipeline ranks, microbatches."""


def torch_takes(name: str, p: int, m: int) -> bool:
    if name == "1f1b":
        return m >= p
    if name in ("interleaved-1f1b", "zb1p", "zb-h1"):
        return m % max(1, m // p) == 0
    return name != "dualpipe-v" or m >= 2 * p


@pytest.mark.parametrize("name", [*SINGLE, *CHUNKED])
def test_the_order_is_torchs(name: str) -> None:
    from torch.distributed.pipelining import _schedule_visualizer

    compared = 0
    for p, m in SHAPES:
        if torch_takes(name, p, m):
            theirs = _schedule_visualizer.get_schedule_ops((SINGLE | CHUNKED)[name], p, m)
            expected = [flattened(row) for row in theirs]
            if name == "1f1b":
                expected[-1] = repaired(expected[-1])
            assert rows(name, p, m) == tuple(expected), (p, m)
            compared += 1
    assert compared > 12


def test_zb_h1_is_torchs_interleaved_zero_bubble_with_one_stage_per_rank() -> None:
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining.stage import PipelineStage

    for p, m in SHAPES:
        if torch_takes("zb-h1", p, m):
            stage = mock.create_autospec(PipelineStage, instance=True)
            stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, p, p, None
            theirs = schedules.ScheduleInterleavedZeroBubble([stage], m).pipeline_order
            assert rows("zb-h1", p, m) == tuple(flattened(theirs[rank]) for rank in range(p)), (p, m)
