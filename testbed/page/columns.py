"""Columns of numbers as text for a page: whole multiples of a unit, each the difference to the one before it.

The bytes of all numbers lie in planes (all lowest bytes first), deflated, in base64. assets/blocks.js reads them.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOTHING = -(2**31)
"""Stands for what is no number."""

_MOST = 2**31 - 2
_FINEST_S = 1e-6
"""Times are told to a microsecond: the next decimals of a real clock are noise, and would make a page half as large
again."""


def unit_of(values: NDArray[Any], finest: float = 1.0) -> float:
    """The power of ten times `finest` in which all of these numbers are whole and fit into 32 bits."""
    known = np.abs(values[np.isfinite(values)].astype(float))
    beyond = float(known.max(initial=0.0)) / _MOST
    return finest if beyond <= finest else finest * 10.0 ** math.ceil(math.log10(beyond) - math.log10(finest))


def time_unit(*columns: NDArray[Any]) -> float:
    """Seconds in which all of these times are told."""
    return max((unit_of(column, _FINEST_S) for column in columns), default=_FINEST_S)


def whole(values: NDArray[Any], unit: float = 1.0) -> NDArray[np.int32]:
    """In that unit, rounded; NOTHING for what is not finite."""
    known = np.isfinite(values)
    return np.where(known, np.rint(np.where(known, values, 0) / unit), NOTHING).astype(np.int32)


def packed(columns: Mapping[str, NDArray[np.int32]]) -> str:
    """All columns, one behind the other, as one text."""
    planes = []
    for column in columns.values():
        step = np.diff(column.astype(np.int64), prepend=0).astype(np.int32)  # modulo 2**32, as the page adds them up
        turned = ((step << 1) ^ (step >> 31)).astype("<i4")  # small whichever the sign
        planes.append(turned.view(np.uint8).reshape(-1, 4).T.tobytes())
    return base64.b64encode(zlib.compress(b"".join(planes), 6)).decode("ascii")
