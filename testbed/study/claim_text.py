"""What a study claims, read from a line of text each.

crosspipe-greedy <= 0.9 * 1f1b at lat=2, bw=0.25
zb-h1 < 620 ms
crosspipe-greedy is fastest at lat=2
crosspipe-greedy at lat=2 <= 1.1 * crosspipe-greedy at lat=0
order as the model's
order as published but within 2 %
error <= 0.05 %
error of 1f1b to published <= 10 %
crossing of gpipe and crosspipe-greedy between 30 ms and 45 ms along delay
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from testbed.errors import listed, meant
from testbed.spec.study import StudyAxis, kind_of, quantity, same_number
from testbed.study.claims import (
    Claim,
    Conditions,
    CrossingClaim,
    ErrorClaim,
    FastestClaim,
    Operand,
    OrderClaim,
    PublishedOrderClaim,
    RelationClaim,
)
from testbed.thresholds import TIE

_SIGNS = {"≤": "<=", "≥": ">=", "×": "*"}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_ORDER = re.compile(r"order as (the model's|predicted)")
_PUBLISHED_ORDER = re.compile(rf"order as published( but within (?P<near>{_NUMBER})\s*%)?")
_ERROR = re.compile(rf"error( of (?P<label>.+?))?(?P<published> to published)?\s*(<=|<)\s*(?P<limit>{_NUMBER})\s*%")
_FASTEST = re.compile(r"(?P<label>.+) is fastest")
_CROSSING = re.compile(
    r"crossing of (?P<one>.+) and (?P<other>.+) between (?P<low>.+) and (?P<high>.+?)( along (?P<axis>\S+))?"
)
_RELATION = re.compile(r"(?P<left>.+?)\s*(?P<sign><=|>=|<|>)\s*(?P<right>.+)")
_SIDE = re.compile(rf"((?P<factor>{_NUMBER})\s*[*x]\s*)?(?P<label>.+)")
_FORMS = (
    "A <= 0.9 * B, A < 620 ms, A at AXIS=VALUE <= 0.9 * B at AXIS=VALUE, A is fastest, order as the model's, "
    "order as published but within 2 %, error <= 0.05 %, error of A to published <= 10 %, "
    "or crossing of A and B between 30 ms and 45 ms along AXIS; behind it maybe: at AXIS=VALUE, ..."
)


def parse(
    text: str, axes: Mapping[str, StudyAxis], labels: Sequence[str], names: Mapping[str, Sequence[str]] | None = None
) -> Claim:
    """The claim that a text makes of a study with these axes and schedules. Raises ValueError in words.

    `names` has those of topologies, workloads and, of cells with several, jobs, by these words; None: any.
    """
    plain = " ".join(text.split())
    for sign, ours in _SIGNS.items():
        plain = plain.replace(sign, ours)
    if (relation := _RELATION.fullmatch(plain)) and not _ERROR.match(plain):
        return _relation(text, relation, axes, labels, names or {})
    said, places = _with_conditions(plain, axes, names or {})
    if _ORDER.fullmatch(said):
        return OrderClaim(text, places)
    if match := _PUBLISHED_ORDER.fullmatch(said):
        return PublishedOrderClaim(text, places, float(match["near"]) / 100 if match["near"] else TIE)
    if match := _ERROR.fullmatch(said):
        label = _label(match["label"], labels) if match["label"] else ""
        return ErrorClaim(text, places, float(match["limit"]) / 100, label, match["published"] is not None)
    if match := _FASTEST.fullmatch(said):
        return FastestClaim(text, places, _label(match["label"], labels))
    if match := _CROSSING.fullmatch(said):
        low, high = quantity(match["low"]), quantity(match["high"])
        if low is None or high is None or not low <= high:
            raise ValueError("between two values of an axis, the smaller one first, as in between 30 ms and 45 ms")
        axis = match["axis"] or _axis_along(axes, places)
        if axis not in axes:
            raise ValueError(f"an axis behind along ({listed(axes)}){meant(axis, axes)}")
        if any(kind_of(match[end]) != axes[axis].kind for end in ("low", "high")):
            raise ValueError(f"two values as {axis} has them ({listed(place.shown for place in axes[axis].places())})")
        pair = _label(match["one"], labels), _label(match["other"], labels)
        return CrossingClaim(text, places, *pair, (low, high), axis)
    raise ValueError(_FORMS)


def _relation(
    text: str,
    match: re.Match[str],
    axes: Mapping[str, StudyAxis],
    labels: Sequence[str],
    names: Mapping[str, Sequence[str]],
) -> RelationClaim:
    """Conditions behind the whole are of both sides; where both sides have some, so are those that only one names."""
    (left, at_left), (right, at_right) = (_with_conditions(match[side], axes, names) for side in ("left", "right"))
    sides = _side(left, labels), _side(right, labels)
    if all(side.seconds is not None for side in sides):
        raise ValueError("a schedule on one side at least")
    if not at_left.conditions or any(side.seconds is not None for side in sides):
        both = Conditions((*at_left.conditions, *at_right.conditions))
        return RelationClaim(text, both, *sides, match["sign"], Conditions(()), Conditions(()))
    if not at_right.conditions:
        raise ValueError("at AXIS=VALUE behind the right side too, or there only, where it is of both sides")
    named = [{name for name, _ in side.conditions} for side in (at_left, at_right)]
    apart = named[0] & named[1]
    shared = [each for side in (at_left, at_right) for each in side.conditions if each[0] not in apart]
    of_sides = (Conditions([each for each in side.conditions if each[0] in apart]) for side in (at_left, at_right))
    return RelationClaim(text, Conditions(shared), *sides, match["sign"], *of_sides)


def _with_conditions(
    text: str, axes: Mapping[str, StudyAxis], names: Mapping[str, Sequence[str]]
) -> tuple[str, Conditions]:
    """What stands before the last " at ", and what behind it says of axes and names. Raises ValueError in words."""
    said, separator, where = text.rpartition(" at ")
    if not separator or "=" not in where:
        return text, Conditions(())
    conditions, of_cells = list[tuple[str, str]](), ("topology", "workload", "job")
    known = (*(name for name in of_cells if not names or names.get(name)), *axes)
    for part in where.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or name not in known:
            raise ValueError(f"at NAME=VALUE, where NAME is one of {listed(known)}{meant(name, known)}")
        if name in dict(conditions):
            raise ValueError(f"{name} once behind one at")
        if name in axes:
            _require_on(name, axes[name], value)
        elif names and value not in names.get(name, ()):
            raise ValueError(f"a {name} of the study ({listed(names.get(name, ()))}) in place of {value}")
        conditions.append((name, value))
    return said, Conditions(conditions)


def _require_on(name: str, axis: StudyAxis, value: str) -> None:
    """Raises ValueError for a value that an axis does not have."""
    number, places = quantity(value), axis.places()
    shown = [place.shown for place in places]
    alike = any(same_number(number, place.number) and kind_of(value) == place.kind for place in places)
    if value not in shown and not alike:
        raise ValueError(f"a value of {name} ({listed(shown)}) in place of {value}")


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
    plain = text.strip()
    if plain in labels:
        return Operand(1.0, plain, None)
    seconds, kind = quantity(plain), kind_of(plain)
    if seconds is not None and kind != "number":
        if kind != "time" or seconds <= 0:
            raise ValueError(f"a time above 0, as in 620 ms, in place of {plain}")
        return Operand(1.0, "", seconds)
    match = _SIDE.fullmatch(plain)
    if match is None:
        raise ValueError(_FORMS)
    factor = float(match["factor"] or 1.0)
    if factor <= 0:
        raise ValueError(f"a factor above 0 in place of {match['factor']}")
    return Operand(factor, _label(match["label"], labels), None)
