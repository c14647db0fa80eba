"""control.json: what the iterations of a case took once more in the same run, with links that were not shaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from testbed.errors import BadInput
from testbed.files import read_json
from testbed.spec.document import validate

CONTROL = "control.json"
_EXPECTED = "what `testbed run --control` writes"


@dataclass(frozen=True)
class ControlTimes:
    """Of one job in one case."""

    label: str
    """Of the case."""
    job: str
    """"" where there is one job only."""
    iterations_s: tuple[float, ...]
    """Of those that count, in order; seconds."""

    @property
    def median_s(self) -> float:
        """Of an iteration."""
        return median(self.iterations_s)


def as_document(found: Sequence[ControlTimes]) -> dict[str, Any]:
    """For control.json."""
    return {"controls": [asdict(times) for times in found]}


def read(directory: Path) -> dict[tuple[str, str], ControlTimes]:
    """By label and job, what a run has of controls; nothing of a run without. Raises BadInput naming file and field."""
    path = directory / CONTROL
    if not path.is_file():
        return {}
    rows = read_json(path, _EXPECTED).get("controls")
    if not isinstance(rows, list):
        raise BadInput.of(str(path), "controls", rows, f"a list: {_EXPECTED}")
    found = [validate(ControlTimes, row, str(path), at=f"controls.{number}") for number, row in enumerate(rows)]
    for number, times in enumerate(found):
        if not times.iterations_s or min(times.iterations_s) <= 0:
            where = f"controls.{number}.iterations_s"
            raise BadInput.of(str(path), where, times.iterations_s, "one time or more, all above 0")
    return {(times.label, times.job): times for times in found}
