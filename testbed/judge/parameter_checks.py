"""Did a run train the weights that one process trains? Parameter by parameter, from what every rank told of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from testbed.grouping import grouped
from testbed.judge.fidelity import Check
from testbed.thresholds import FIRST_GRADIENTS, ROUNDING_FACTOR, WEIGHTS, Limit
from testbed.train.assignment import ALL, GRADIENT, Expected, Fingerprint, IterationRecord, ReferenceOutcome


def put_together(records: Iterable[IterationRecord]) -> list[Fingerprint]:
    """What all ranks keep of one iteration: projections and counts of parts add up."""
    found: dict[tuple[object, ...], Fingerprint] = {}
    for record in records:
        for fingerprint in record.fingerprints:
            known = found.get(key := fingerprint[:5])
            if known is not None:
                both = tuple(a + b for a, b in zip(known.projections, fingerprint.projections, strict=True))
                fingerprint = fingerprint._replace(
                    elements=known.elements + fingerprint.elements,
                    square=known.square + fingerprint.square,
                    projections=both,
                )
            found[key] = fingerprint
    return list(found.values())


class Difference(NamedTuple):
    """Of one copy of a parameter, or of its gradient, from that of one process."""

    name: str
    off: float
    """Norm of the difference, relative to the gradient's, or to how far training has moved the weight; inf where it
    cannot be told."""
    limit: float

    @property
    def excess(self) -> float:
        """Above 1 where it is too far off."""
        return self.off / self.limit


def differences(
    found: Sequence[Fingerprint], reference: ReferenceOutcome, compared: Collection[int], *, weights: bool
) -> list[Difference]:
    """Of all gradients in the first iteration, or of the `weights` in the first and in the other `compared` ones.

    Something that the reference has and no rank told of is infinitely far off.
    """
    by_name = grouped((fingerprint[:3], fingerprint) for fingerprint in found)
    groups = grouped(
        (each[:2], each)
        for each in reference.parameters or ()
        if each.iteration in (0, *compared) and (each.what != GRADIENT) is weights
    )
    common = {key: float(np.percentile([_rounding(each) for each in group], 75)) for key, group in groups.items()}
    return [
        _difference(copy, expected, _limit(expected, common[key]))
        for key, group in groups.items()
        for expected in group
        for copy in by_name.get(expected[:3], ()) or [Fingerprint(*expected[:3], ALL, ALL, 0, 0.0, ())]
    ]


def _limit(expected: Expected, common: float) -> float:
    """What rounding does to a parameter, or in `common` to three in four of the others, is no fault."""
    least = (FIRST_GRADIENTS if expected.what == GRADIENT else WEIGHTS).value
    return max(least, ROUNDING_FACTOR * max(_rounding(expected), common))


def _rounding(expected: Expected) -> float:
    """Relative."""
    return expected.rounding / expected.size if expected.size else 0.0


def _difference(copy: Fingerprint, expected: Expected, limit: float) -> Difference:
    off = math.inf
    if copy.elements == expected.elements and len(copy.projections) == len(expected.projections):
        distance = math.sqrt(float(np.mean(np.square(np.subtract(copy.projections, expected.projections)))))
        if expected.what != GRADIENT:
            longer = abs(math.sqrt(copy.square) - math.sqrt(expected.square))
            distance = max(distance, (longer - expected.last_digit) * math.sqrt(copy.elements))
        if math.isfinite(distance):
            off = distance / expected.size if expected.size else (math.inf if distance else 0.0)
    return Difference(_called(copy), off, limit)


def _called(copy: Fingerprint) -> str:
    ends = [f"replica {copy.replica}"] if copy.replica != ALL else []
    ends += [f"tensor rank {copy.tensor_rank}"] if copy.tensor_rank != ALL else []
    where = f" ({', '.join(ends)})" if any(place > 0 for place in copy[3:5]) else ""
    return f"{copy.what} of {copy.parameter} in iteration {copy.iteration}{where}"


def parameter_checks(
    found: Sequence[Fingerprint], reference: ReferenceOutcome, compared: Collection[int]
) -> list[Check]:
    """Whether each gradient of the first iteration, and each weight, is the reference's; none where it is not known."""
    if reference.parameters is None:
        return []
    return [
        _check("first gradients, one by one", differences(found, reference, compared, weights=False), FIRST_GRADIENTS),
        _check("weights, one by one", differences(found, reference, compared, weights=True), WEIGHTS),
    ]


def _check(question: str, seen: Sequence[Difference], limit: Limit) -> Check:
    if not seen:
        reason = f"{question}: one process told of none"
        return Check(question, "unknown", f"{limit.value:.0e}", limit.why, (reason,))
    worst = max(seen, key=lambda difference: difference.excess)
    off = [difference for difference in seen if not difference.off <= difference.limit]
    reason = (
        f"{len(off)} of {len(seen)} {'weights' if limit is WEIGHTS else 'gradients'} differ from those of one process, "
        f"most the {worst.name}, by {worst.off:.1e} (limit {worst.limit:.0e})"
    )
    return Check(question, f"{worst.off:.1e}", f"{worst.limit:.0e}", limit.why, (reason,) if off else ())
