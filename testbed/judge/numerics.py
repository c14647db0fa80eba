"""Did a run compute what it should? Its losses against those of one process that trains the same without a pipeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from testbed.judge.thresholds import MAX_LOSS_DIFFERENCE, MIN_ITERATIONS
from testbed.train.job import Reference


def worst_difference(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The largest relative difference between two runs, iteration by iteration; inf where it cannot be told."""
    if len(losses) != len(reference) or not all(map(math.isfinite, [*losses, *reference])):
        return math.inf
    return max((_relative(ours, theirs) for ours, theirs in zip(losses, reference, strict=True)), default=math.inf)


def _relative(value: float, reference: float) -> float:
    difference = abs(value - reference)
    return difference / abs(reference) if reference else (math.inf if difference else 0.0)


def loss_reasons(losses: Sequence[float], reference: Reference) -> list[str]:
    """Why the losses of a case (one per iteration, warm-up included) cannot be trusted; [] when they can."""
    wrong = [iteration for iteration, loss in enumerate(losses) if not math.isfinite(loss)]
    if wrong:
        return [f"the loss of iteration {wrong[0]} is {losses[wrong[0]]}: the training diverged"]
    if reference.refused:
        return [f"its losses could not be checked: {reference.refused}"]
    worst = worst_difference(losses, reference.losses)
    if worst <= MAX_LOSS_DIFFERENCE:
        return []
    return [
        f"its losses differ from those of one process without a pipeline by up to {worst:.1e} "
        f"(limit {MAX_LOSS_DIFFERENCE:.0e})"
    ]


def count_reasons(measured: int, clock: str) -> list[str]:
    """Too few measured iterations to tell a disturbed one from the others; the virtual clock repeats exactly."""
    if clock != "real" or measured >= MIN_ITERATIONS:
        return []
    iterations = "1 iteration was" if measured == 1 else f"{measured} iterations were"
    return [f"only {iterations} measured: below {MIN_ITERATIONS} nothing says whether they were disturbed"]


def as_document(reference: Reference, losses: dict[str, Sequence[float]]) -> dict[str, Any]:
    """numerics.json: the reference's losses, and by how much those of every case (by label) differ."""
    differences = {label: worst_difference(one, reference.losses) for label, one in losses.items()}
    return {
        "reference_losses": [loss if math.isfinite(loss) else None for loss in reference.losses],
        "reference_took_s": round(reference.took_s, 3),
        "refused": reference.refused,
        "limit": MAX_LOSS_DIFFERENCE,
        "worst_difference": {label: one if math.isfinite(one) else None for label, one in differences.items()},
    }
