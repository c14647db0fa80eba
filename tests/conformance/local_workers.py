"""Workers on this machine, without containers: what conformance tests train with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.pipeline.ir import Schedule
from testbed.plan.memory_bytes import predicted_bytes
from testbed.plan.plan import Job
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.train.job import IterationRecord
from testbed.train.launcher import Launcher
from testbed.train.protocol import Place, WorldSpec
from testbed.train.reference import Reference


@contextmanager
def local_workers(ranks: int, directory: Path) -> Iterator[Loop]:
    """So many workers, connected over the loopback interface and ready for jobs; `directory` gets their logs."""
    with Launcher(ranks) as workers:
        world = WorldSpec(
            places=tuple(Place(None, "lo") for _ in range(ranks)),
            store=str(directory / "store"),
            timeout_s=60,
            warmup_bytes=1000,
            neighbours=tuple((rank, rank + 1) for rank in range(ranks - 1)),
            logs=str(directory),
        )
        workers.imported()
        loop = Loop([workers])
        loop.start([world], Deadline(120, "a test"))
        yield loop


def require_trained_alike(
    losses: list[float], gradients: dict[str, np.ndarray[Any, Any]], expected: Reference, tolerance: float
) -> None:
    """Losses and the last gradients are those of one process, and the loss went down."""
    assert losses == pytest.approx(expected.losses, rel=tolerance)
    assert losses[-1] < losses[0]
    assert gradients.keys() == expected.gradients.keys()
    for parameter, gradient in gradients.items():
        reference = expected.gradients[parameter].numpy()
        worst = float(np.abs(gradient - reference).max() / np.abs(reference).max())
        assert worst <= tolerance, f"{parameter} differs by {worst:.1e}"


def require_memory_as_predicted(records: Sequence[IterationRecord], job: Job, schedule: Schedule) -> None:
    """What ranks counted in the first iteration is what was predicted; later iterations count nothing."""
    counted = [record.memory for record in records]
    if records[0].iteration > 0:
        assert counted == [None] * len(records)
        return
    predicted = predicted_bytes(job, schedule)
    assert predicted is not None
    for one, expected in zip(counted, predicted, strict=True):
        assert one is not None
        assert one.parameters == expected.parameters
        assert one.gradients == expected.gradients
        assert one.buffers == expected.buffers
        # AdamW keeps a number of steps for every parameter, too
        assert one.optimizer == pytest.approx(expected.optimizer, rel=0.01)
        assert one.activations == pytest.approx(expected.activations, rel=0.04)
