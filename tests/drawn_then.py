"""Plans that benchmarks/ranges.py once drew, and that were measured: whatever has been registered since then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import ranges
from harness import plans

THEN = (
    *("gpipe", "1f1b", "zb-h1", "zb-h2", "geopipe", "interleaved-1f1b", "looped-bfs", "zb1p", "zb-v", "dualpipe-v"),
    *("crosspipe-greedy", "wave-greedy"),
)
"""The families that they drew from."""


def documents(number: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Topology and workload of a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "quick_schedules", lambda: list(THEN))
        return ranges.documents(number, seed)
