"""Times that a paper has published, read from a file beside the study, for the cells that they are of."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput, listed
from testbed.files import read_text
from testbed.spec.study import AxisValue, PublishedSpec, quantity, same_number
from testbed.units import TIME

_LABEL = "schedule"
_MOST_BYTES = 10_000_000


class PublishedTime(NamedTuple):
    """A line of the file."""

    places: Mapping[str, str]
    """Values by name of an axis, topology or workload: where it was measured; of others it says nothing."""
    label: str
    seconds: float


class PublishedTimes:
    """All lines of the file."""

    def __init__(self, asked: PublishedSpec, file: Path, axes: Sequence[str]) -> None:
        """Raises BadInput for a file that cannot be read so."""
        self._per_microbatch = asked.per == "microbatch"
        self.only = asked.only
        self._lines = _lines(asked, file, ("topology", "workload", *axes))

    def at(self, topology: str, workload: str, values: Mapping[str, AxisValue], microbatches: int) -> dict[str, float]:
        """Published seconds of an iteration by label, of one cell."""
        times = microbatches if self._per_microbatch else 1
        named: dict[str, tuple[str, float | None]]
        named = {"topology": (topology, None), "workload": (workload, None)}
        named |= {name: (value.shown, value.number) for name, value in values.items()}
        return {
            line.label: line.seconds * times
            for line in self._lines
            if all(_same(text, *named[name]) for name, text in line.places.items())
        }


def _lines(asked: PublishedSpec, file: Path, known: Sequence[str]) -> list[PublishedTime]:
    text = read_text(file, _MOST_BYTES, "a CSV file with published times")
    reader = csv.DictReader(io.StringIO(text))
    columns = list(reader.fieldnames or ())
    for needed in (_LABEL, asked.column):
        if needed not in columns:
            raise BadInput.of(str(file), "first line", listed(columns), f"a column {needed}")
    places = [name for name in known if name in columns]
    found: dict[tuple[str, ...], PublishedTime] = {}
    for number, row in enumerate(reader, 2):
        text = (row[asked.column] or "").strip()
        try:
            seconds = float(text) * TIME[asked.unit]
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise BadInput.of(str(file), f"line {number}, {asked.column}", text, "a time above 0")
        where = {name: (row[name] or "").strip() for name in places}
        key = (*where.values(), row[_LABEL])
        if key in found:
            raise BadInput.of(str(file), f"line {number}", listed(key), "every place and schedule once")
        found[key] = PublishedTime(where, row[_LABEL], seconds)
    return list(found.values())


def _same(text: str, shown: str, number: float | None) -> bool:
    """Whether a text of the file is an axis's value, as written or as a quantity."""
    return text == shown or same_number(quantity(text), number)
