"""What conformance tests train with, and what they require; benchmarks/harness/local_training.py for all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from harness.local_training import (
    OPTIMIZERS,
    TOLERANCE,
    Scheduled,
    Trained,
    memory_difference,
    scheduled,
    task_of,
    trained,
    workers,
)

from testbed.train.reference import Reference

__all__ = ["OPTIMIZERS", "TOLERANCE", "Scheduled", "Trained", "scheduled", "task_of", "trained", "workers"]


def require_equally_trained(got: Trained, expected: Reference, tolerance: float) -> None:
    """Losses, the last gradients and their norms are those of one process, and the loss went down."""
    assert got.losses == pytest.approx(expected.losses, rel=tolerance)
    assert got.losses[-1] < got.losses[0]
    assert got.gradients.keys() == expected.gradients.keys()
    for parameter, gradient in got.gradients.items():
        reference = expected.gradients[parameter].numpy()
        worst = float(abs(gradient - reference).max() / abs(reference).max())
        assert worst <= tolerance, f"{parameter} differs by {worst:.1e}"
    for norms, expected_norms in zip(got.norms, expected.gradient_norms, strict=True):
        assert norms == pytest.approx(expected_norms, rel=tolerance)


def require_memory_as_predicted(got: Trained, case: Scheduled) -> None:
    """What every rank counted is what was predicted."""
    found = memory_difference(got, case)
    assert found.fine, found.by_kind
