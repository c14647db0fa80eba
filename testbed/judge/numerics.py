"""Did a run compute what it should? Its losses against those of one process that trains the same without a pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.judge.iterations import IterationRow
from testbed.judge.thresholds import MAX_GRADIENT_DIFFERENCE, MAX_LOSS_DIFFERENCE, MIN_ITERATIONS
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


def gradient_reasons(rows: Sequence[IterationRow], reference: Reference) -> list[str]:
    """Why the gradients of a case (one row per iteration, warm-up included) cannot be trusted; [] when they can."""
    worst = worst_gradient_difference(rows, reference)
    if reference.refused or worst <= MAX_GRADIENT_DIFFERENCE:
        return []
    return [
        f"the norm of a layer's gradients differs from that in one process without a pipeline by up to {worst:.1e} "
        f"(limit {MAX_GRADIENT_DIFFERENCE:.0e})"
    ]


def worst_gradient_difference(rows: Sequence[IterationRow], reference: Reference) -> float:
    """As `worst_difference`, over the gradient norms of all layers in all iterations."""
    if len(rows) != len(reference.gradient_norms):
        return math.inf
    pairs = zip(rows, reference.gradient_norms, strict=True)
    return max((worst_difference(row.gradient_norms, norms) for row, norms in pairs), default=math.inf)


def count_reasons(measured: int, clock: str) -> list[str]:
    """Too few measured iterations to tell a disturbed one from the others; the virtual clock repeats exactly."""
    if clock != "real" or measured >= MIN_ITERATIONS:
        return []
    iterations = "1 iteration was" if measured == 1 else f"{measured} iterations were"
    return [f"only {iterations} measured: below {MIN_ITERATIONS} nothing says whether they were disturbed"]


def as_document(reference: Reference, cases: Mapping[str, Sequence[IterationRow]]) -> dict[str, Any]:
    """numerics.json: the reference's losses, and by how much losses and gradients of every case (by label) differ."""
    return {
        "reference_losses": [_written(loss) for loss in reference.losses],
        "reference_took_s": round(reference.took_s, 3),
        "refused": reference.refused,
        "limits": {"loss": MAX_LOSS_DIFFERENCE, "gradient_norm": MAX_GRADIENT_DIFFERENCE},
        "worst": {
            label: {
                "loss": _written(worst_difference([row.loss for row in rows], reference.losses)),
                "gradient_norm": _written(worst_gradient_difference(rows, reference)),
            }
            for label, rows in cases.items()
        },
    }


def _written(value: float) -> float | None:
    """JSON knows no infinity, nor what is not a number."""
    return value if math.isfinite(value) else None
