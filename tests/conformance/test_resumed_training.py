"""Workers that load what others have saved train on as if nothing had happened; one that forgets a part is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_workers import scheduled, task_of, workers
from test_swapped_schedules import MESHES, PATIENCE, RANKS, plan_of

from testbed.session.loop import Loop, Resumed
from testbed.train.assignment import IterationRecord, TrainingTask
from testbed.train.launcher import Launcher
from testbed.train.protocol import SaveState
from testbed.train.training_state import TrainingState

ITERATIONS, SAVED = 5, 2
EXACT = [mesh for mesh in MESHES if mesh != "three in two levels"]
"""Whose sums have one order: those of three replicas are in the order in which gradients come, in any training."""

Gradient = np.ndarray[Any, Any]


def gradients(loop: Loop, mesh: str, directory: Path) -> dict[str, Gradient]:
    """Of the last iteration, of workers that saved their state and go on from it, as others would."""
    case = scheduled(plan_of(mesh, "early", directory), "zb-h1")
    task, saved = task_of(case, ITERATIONS), directory / "saved"
    saved.mkdir()
    going = loop.run([task], PATIENCE)
    for _ in range(SAVED):
        next(going)
    loop.ask({0: SaveState(str(saved))}, PATIENCE, "save")
    next(going)  # what was trained since is lost, and what waits for its messages
    loop.leave(PATIENCE)
    (launcher,) = loop.launchers
    assert isinstance(launcher, Launcher)
    assert launcher.world is not None
    loop.restart([replace(launcher.world, store=f"file://{directory}/another")], PATIENCE)
    return last(loop, task, Resumed(SAVED, str(saved)))


def last(loop: Loop, task: TrainingTask, resumed: Resumed | None) -> dict[str, Gradient]:
    records: list[IterationRecord] = []
    for (records,) in loop.run([task], PATIENCE, resumed=resumed):
        assert len(records) == RANKS
    assert records[0].iteration == ITERATIONS - 1
    found: dict[str, Gradient] = {}
    for record in records:
        for name, part in record.gradients.items():
            found[name] = found[name] + part if name in found else part
    return found


def whole(loop: Loop, mesh: str, directory: Path) -> dict[str, Gradient]:
    """The same of a training that nothing interrupts."""
    return last(loop, task_of(scheduled(plan_of(mesh, "early", directory), "zb-h1"), ITERATIONS), None)


@pytest.mark.parametrize("mesh", EXACT)
def test_gradients_are_the_same_to_the_last_bit(mesh: str, tmp_path: Path) -> None:
    with workers(RANKS, tmp_path, PATIENCE) as loop:
        resumed, expected = gradients(loop, mesh, tmp_path), whole(loop, mesh, tmp_path)
    assert resumed.keys() == expected.keys()
    assert all((resumed[name] == expected[name]).all() for name in expected)


def without_the_optimizer(state: TrainingState, directory: Path) -> None:
    saved = torch.load(directory / f"rank{state.rank}.pt", weights_only=True)
    for index, stage in state.stages.items():
        stage.layers.load_state_dict(saved["layers"][index])
    state.iteration = saved["iteration"]


def without_weights(state: TrainingState, directory: Path) -> None:
    saved = torch.load(directory / f"rank{state.rank}.pt", weights_only=True)
    state.optimizer.load_state_dict(saved["optimizer"])
    state.iteration = saved["iteration"]


@pytest.mark.parametrize("load", [without_the_optimizer, without_weights])
def test_what_is_not_loaded_changes_gradients(load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingState, "load", load)  # workers are forked from here, where torch is imported
    with workers(RANKS, tmp_path, PATIENCE) as loop:
        resumed, expected = gradients(loop, "two replicas", tmp_path), whole(loop, "two replicas", tmp_path)
    assert any((resumed[name] != expected[name]).any() for name in expected)
