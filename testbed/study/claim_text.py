"""What a study claims, read from a line of text each.

crosspipe-greedy <= 0.9 * 1f1b at lat=2, bw=0.25
zb-h1 < 620 ms
crosspipe-greedy is fastest at lat=2
order as the model's
error <= 0.05 %
crossing of gpipe and crosspipe-greedy between 30 ms and 45 ms along delay
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from testbed.errors import listed, meant
from testbed.spec.study import StudyAxis, quantity
from testbed.study.claims import (
    Claim,
    Conditions,
    CrossingClaim,
    ErrorClaim,
    FastestClaim,
    Operand,
    OrderClaim,
    RelationClaim,
)

_SIGNS = {"≤": "<=", "≥": ">=", "×": "*"}
_ORDER = re.compile(r"order as (the model's|predicted)")
_ERROR = re.compile(r"error\s*(<=|<)\s*(?P<limit>[0-9.]+)\s*%")
_FASTEST = re.compile(r"(?P<label>.+) is fastest")
_CROSSING = re.compile(
    r"crossing of (?P<one>.+) and (?P<other>.+) between (?P<low>.+) and (?P<high>.+?)( along (?P<axis>\S+))?"
)
_RELATION = re.compile(r"(?P<left>.+?)\s*(?P<sign><=|>=|<|>)\s*(?P<right>.+)")
_SIDE = re.compile(r"((?P<factor>[0-9.]+)\s*[*x]\s*)?(?P<label>.+)")
_FORMS = (
    "A <= 0.9 * B, A < 620 ms, A is fastest, order as the model's, error <= 0.05 %, "
    "or crossing of A and B between 30 ms and 45 ms along AXIS; behind it maybe: at AXIS=VALUE, ..."
)


def parse(text: str, axes: Mapping[str, StudyAxis], labels: Sequence[str]) -> Claim:
    """The claim that a text makes of a study with these axes and schedules. Raises ValueError in words."""
    plain = " ".join(text.split())
    for sign, ours in _SIGNS.items():
        plain = plain.replace(sign, ours)
    said, places = _with_places(plain, ("topology", "workload", "job", *axes))
    if _ORDER.fullmatch(said):
        return OrderClaim(text, places)
    if match := _ERROR.fullmatch(said):
        return ErrorClaim(text, places, float(match["limit"]) / 100)
    if match := _FASTEST.fullmatch(said):
        return FastestClaim(text, places, _label(match["label"], labels))
    if match := _CROSSING.fullmatch(said):
        low, high = quantity(match["low"]), quantity(match["high"])
        if low is None or high is None or not low <= high:
            raise ValueError("between two values of an axis, the smaller one first, as in between 30 ms and 45 ms")
        axis = match["axis"] or _axis_along(axes, places)
        if axis not in axes:
            raise ValueError(f"an axis behind along ({listed(axes)}){meant(axis, axes)}")
        pair = _label(match["one"], labels), _label(match["other"], labels)
        return CrossingClaim(text, places, *pair, (low, high), axis)
    if match := _RELATION.fullmatch(said):
        sides = _side(match["left"], labels), _side(match["right"], labels)
        if all(side.seconds is not None for side in sides):
            raise ValueError("a schedule on one side at least")
        return RelationClaim(text, places, *sides, match["sign"])
    raise ValueError(_FORMS)


def _with_places(text: str, known: Sequence[str]) -> tuple[str, Conditions]:
    said, separator, where = text.rpartition(" at ")
    if not separator or "=" not in where:
        return text, Conditions(())
    conditions = []
    for part in where.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or name not in known:
            raise ValueError(f"at NAME=VALUE, where NAME is one of {listed(known)}{meant(name, known)}")
        conditions.append((name, value))
    return said, Conditions(conditions)


def _axis_along(axes: Mapping[str, StudyAxis], places: Conditions) -> str:
    """The one axis with several numbers that no condition keeps at one of them. Raises ValueError in words."""
    kept = [name for name, _ in places.conditions]
    free = [name for name, axis in axes.items() if name not in kept and axis.kind != "word" and len(axis.values) > 1]
    if len(free) != 1:
        raise ValueError(
            f"along AXIS behind it, or at AXIS=VALUE for all but one ({listed(free)} have several numbers)"
        )
    return free[0]


def _label(text: str, labels: Sequence[str]) -> str:
    label = text.strip()
    if label not in labels:
        raise ValueError(f"a schedule of the study ({listed(labels)}) in place of {label}{meant(label, labels)}")
    return label


def _side(text: str, labels: Sequence[str]) -> Operand:
    if text.strip() in labels:
        return Operand(1.0, text.strip(), None)
    seconds = quantity(text.strip())
    if seconds is not None and not text.strip().replace(".", "").isdecimal():
        return Operand(1.0, "", seconds)
    match = _SIDE.fullmatch(text.strip())
    if match is None:
        raise ValueError(_FORMS)
    return Operand(float(match["factor"] or 1.0), _label(match["label"], labels), None)
