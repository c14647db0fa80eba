"""Did a run compute what it should? Its losses against those of one process that trains the same without a pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.judge.fidelity import Check
from testbed.judge.iterations import IterationRow
from testbed.spec.workload import Workload
from testbed.thresholds import (
    COMPARED_ITERATIONS,
    FIRST_GRADIENTS,
    GRADIENT_DIFFERENCE,
    ITERATIONS,
    LARGEST_GRADIENT_DIFFERENCE,
    LARGEST_LOSS_DIFFERENCE,
    LOSS_DIFFERENCE,
    ROUNDINGS,
    WEIGHTS,
)
from testbed.train.assignment import ReferenceOutcome
from testbed.units import finite


def worst_difference(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The largest relative difference between two runs, value by value; inf where it cannot be told."""
    if len(losses) != len(reference) or not all(map(math.isfinite, [*losses, *reference])):
        return math.inf
    return max((_relative(ours, theirs) for ours, theirs in zip(losses, reference, strict=True)), default=math.inf)


def _relative(value: float, reference: float) -> float:
    difference = abs(value - reference)
    return difference / abs(reference) if reference else (math.inf if difference else 0.0)


def compared(workload: Workload) -> int:
    """How many iterations of a run the reference trains."""
    return min(workload.warmup + workload.iterations, COMPARED_ITERATIONS)


def loss_check(losses: Sequence[float], reference: ReferenceOutcome) -> Check:
    """Whether the losses of a case (one per iteration, warm-up included) are the reference's."""
    worst = worst_difference(losses[:COMPARED_ITERATIONS], reference.losses)
    limit, why = loss_limit(reference), LOSS_DIFFERENCE.why
    wrong = [iteration for iteration, loss in enumerate(losses) if not math.isfinite(loss)]
    reason = ""
    if wrong:
        reason = f"the loss of iteration {wrong[0]} is {losses[wrong[0]]}: the training diverged"
    elif reference.refused:
        reason = f"its losses could not be checked: {reference.refused}"
    elif worst > limit:
        reason = f"its losses differ from those of one process without a pipeline by up to {worst:.1e} "
        reason += f"(limit {limit:.0e})"
    return Check("losses off one process's", f"{worst:.1e}", f"{limit:.0e}", why, (reason,) if reason else ())


def loss_limit(reference: ReferenceOutcome) -> float:
    """By how much losses may differ, relatively: where rounding does more to one process, by a multiple of that."""
    return max(LOSS_DIFFERENCE.value, min(ROUNDINGS * reference.loss_rounding, LARGEST_LOSS_DIFFERENCE))


def gradient_limit(reference: ReferenceOutcome) -> float:
    """The same of the norms of layers' gradients."""
    return max(GRADIENT_DIFFERENCE.value, min(ROUNDINGS * reference.norm_rounding, LARGEST_GRADIENT_DIFFERENCE))


def gradient_check(rows: Sequence[IterationRow], reference: ReferenceOutcome) -> Check:
    """Whether the gradients of a case (one row per iteration, warm-up included) are the reference's."""
    worst = worst_gradient_difference(rows, reference)
    limit, why = gradient_limit(reference), GRADIENT_DIFFERENCE.why
    reason = (
        f"the norm of a layer's gradients differs from that in one process without a pipeline by up to {worst:.1e} "
        f"(limit {limit:.0e})"
    )
    off = not reference.refused and worst > limit
    return Check("gradients off one process's", f"{worst:.1e}", f"{limit:.0e}", why, (reason,) if off else ())


def worst_gradient_difference(rows: Sequence[IterationRow], reference: ReferenceOutcome) -> float:
    """As `worst_difference`, over the gradient norms of all layers in the iterations that are compared."""
    first = rows[:COMPARED_ITERATIONS]
    if len(first) != len(reference.gradient_norms):
        return math.inf
    pairs = zip(first, reference.gradient_norms, strict=True)
    return max((worst_difference(row.gradient_norms, norms) for row, norms in pairs), default=math.inf)


def count_check(measured: int) -> Check:
    """Whether a real clock measured often enough to tell a disturbed iteration from the others."""
    least, why = ITERATIONS
    iterations = "1 iteration was" if measured == 1 else f"{measured} iterations were"
    reason = f"only {iterations} measured: below {least:g} nothing says whether they were disturbed"
    return Check("iterations measured", f"{measured}", f"{least:g} or more", why, (reason,) if measured < least else ())


def as_document(reference: ReferenceOutcome, cases: Mapping[str, Sequence[IterationRow]]) -> dict[str, Any]:
    """numerics.json: the reference's losses, and by how much losses and gradients of every case (by label) differ."""
    return {
        "reference_losses": [finite(loss) for loss in reference.losses],
        "reference_gradient_norms": [[finite(norm) for norm in norms] for norms in reference.gradient_norms],
        "reference_took_s": round(reference.took_s, 3),
        "refused": reference.refused,
        "rounding": {"loss": reference.loss_rounding, "norm": reference.norm_rounding},
        "limits": {"loss": loss_limit(reference), "gradient_norm": gradient_limit(reference)}
        | ({} if reference.parameters is None else {"gradient": FIRST_GRADIENTS.value, "weight": WEIGHTS.value}),
        "worst": {
            label: {
                "loss": finite(worst_difference([row.loss for row in rows[:COMPARED_ITERATIONS]], reference.losses)),
                "gradient_norm": finite(worst_gradient_difference(rows, reference)),
            }
            for label, rows in cases.items()
        },
    }
