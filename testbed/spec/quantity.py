"""Fields of the YAML files that are quantities: text with a unit ("10 ms"), between two bounds named in that unit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from pydantic import BeforeValidator, ValidationInfo

from testbed.spec.document import FieldError
from testbed.units import COMPUTE, LENGTH, RATE, SIZE, TIME, parse

SI_UNITS = "numbers are SI units"
"""Validation context of a document that a program wrote: quantities are plain numbers, not text with a unit."""


class _Range(NamedTuple):
    """The values that a field can have."""

    kind: str
    units: dict[str, float]
    least: float
    most: float
    above: bool
    """Whether `least` itself is too little."""

    def read(self, value: object, info: ValidationInfo) -> float:
        """The SI value. Raises ValueError saying what is expected, in units where the file has units."""
        if info.context != SI_UNITS:
            number = parse(value, self.units, self.kind)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            number = float(value)
        else:
            raise ValueError(f"{self.kind} as a number (SI units)")
        if not self.least <= number <= self.most or (self.above and number == self.least):
            raise ValueError(self.expected())
        return number

    def expected(self) -> str:
        """For an error."""
        least, most = self._shown(self.least), self._shown(self.most)
        return f"{self.kind} above {least}, at most {most}" if self.above else f"{self.kind} from {least} to {most}"

    def _shown(self, value: float) -> str:
        if value == 0:
            return "0"
        unit = next(name for name, factor in reversed(_ascending(self.units)) if value >= factor)
        number = value / self.units[unit]
        return f"{number:.0f} {unit}" if number == round(number) else f"{number:.6g} {unit}"


def _ascending(units: dict[str, float]) -> list[tuple[str, float]]:
    """Units by size; powers of two and spellings beside the usual one are not for showing."""
    plain = ((name, size) for name, size in units.items() if name.isascii() and not name.endswith("iB"))
    return sorted(plain, key=lambda one: one[1])


_Read = Callable[[object, ValidationInfo], float]


def _field(kind: str, units: dict[str, float]) -> Callable[..., BeforeValidator]:
    def between(least: float, most: float, *, above: bool = False) -> BeforeValidator:
        return BeforeValidator(_Range(kind, units, least, most, above).read)

    return between


seconds = _field("a time", TIME)
"""For Annotated[float, seconds(0, 10)]; with `above` the first bound itself is refused."""
bits_per_second = _field("a rate", RATE)
size_bytes = _field("a size", SIZE)
metres = _field("a length", LENGTH)
flop_per_second = _field("a rate of computation", COMPUTE)


def seconds_per_rank(least: float, most: float) -> BeforeValidator:
    """One time, or a list with one for every rank."""
    return _per_rank(_Range("a time", TIME, least, most, above=False).read)


def number_per_rank(kind: str, least: float, most: float) -> BeforeValidator:
    """One plain number, or a list with one for every rank."""

    def read(value: object, _: ValidationInfo) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{kind} from {least:.0f} to {most:.0f}")
        return float(value)

    return _per_rank(read)


def _per_rank(one: _Read) -> BeforeValidator:
    def read(value: object, info: ValidationInfo) -> object:
        if value is None or not isinstance(value, list):
            return None if value is None else one(value, info)
        found = []
        for index, entry in enumerate(value):
            try:
                found.append(one(entry, info))
            except ValueError as error:
                raise FieldError(str(index), entry, str(error)) from error
        return found

    return BeforeValidator(read)
