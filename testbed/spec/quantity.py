"""Fields of the YAML files that are quantities: text with a unit ("10 ms"), between two bounds named in that unit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import core_schema

from testbed.spec.document import FieldError
from testbed.units import COMPUTE, LENGTH, RATE, SIZE, TIME, parse, pattern

SI_UNITS = "numbers are SI units"
"""Validation context of a document that a program wrote: quantities are plain numbers, not text with a unit."""

WITH_UNITS = "quantities have units"
"""Serialization context of a document for people, as they would write it; without it quantities are SI numbers."""


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

    def written(self, value: float) -> str:
        """The value in its SI unit, as text that is read as the same number to the last bit."""
        digits = f"{value:.15g}" if float(f"{value:.15g}") == value else f"{value:.17g}"
        return f"{digits} {next(name for name, factor in self.units.items() if factor == 1)}"

    def expected(self) -> str:
        """For an error."""
        least, most = self._shown(self.least), self._shown(self.most)
        return f"{self.kind} above {least}, at most {most}" if self.above else f"{self.kind} from {least} to {most}"

    def schema(self) -> dict[str, Any]:
        """JSON Schema of it in a file: text with a unit, or a bare 0 where that is within the bounds."""
        text = {"type": "string", "pattern": pattern(self.units), "examples": [self._example()]}
        title = f"{self.expected()} ({', '.join(self.units)})"
        if self.least > 0 or self.above:
            return {"title": title, **text}
        return {"title": title, "anyOf": [text, {"type": "number", "const": 0}]}

    def _example(self) -> str:
        usual = _USUAL[self.kind]
        return usual if self.least <= parse(usual, self.units, self.kind) <= self.most else self._shown(self.most)

    def _shown(self, value: float) -> str:
        if value == 0:
            return "0"
        unit = next(name for name, factor in reversed(_ascending(self.units)) if value >= factor)
        number = value / self.units[unit]
        return f"{number:.0f} {unit}" if number == round(number) else f"{number:.6g} {unit}"


_USUAL = {
    "a time": "20 ms",
    "a rate": "1 Gbit/s",
    "a size": "1 MB",
    "a length": "2000 km",
    "a rate of computation": "312 Tflop/s",
}
"""What is shown of each kind as an example."""


def _ascending(units: dict[str, float]) -> list[tuple[str, float]]:
    """Units by size; powers of two and spellings beside the usual one are not for showing."""
    plain = ((name, size) for name, size in units.items() if name.isascii() and not name.endswith("iB"))
    return sorted(plain, key=lambda unit: unit[1])


_Read = Callable[[object, ValidationInfo], float]


@dataclass(frozen=True)
class Quantity:
    """In an annotation: how the field is read out of a file, and written with its unit."""

    read: Callable[[object, ValidationInfo], object]
    written: Callable[[float], str]
    schema: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What a file may have, where the quantity has its unit."""
        return self.schema()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """What pydantic makes of the annotation."""
        return core_schema.with_info_before_validator_function(
            self.read,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(self.serialized, info_arg=True),
        )

    def serialized(self, value: Any, info: core_schema.SerializationInfo) -> object:
        """The value as a document has it: a number, for people with its unit."""
        if info.context != WITH_UNITS or value is None:
            return value
        return list(map(self.written, value)) if isinstance(value, list) else self.written(value)


def _field(kind: str, units: dict[str, float]) -> Callable[..., Quantity]:
    def between(least: float, most: float, *, above: bool = False) -> Quantity:
        bounds = _Range(kind, units, least, most, above)
        return Quantity(bounds.read, bounds.written, bounds.schema)

    return between


seconds = _field("a time", TIME)
"""For Annotated[float, seconds(0, 10)]; with `above` the first bound itself is refused."""
bits_per_second = _field("a rate", RATE)
size_bytes = _field("a size", SIZE)
metres = _field("a length", LENGTH)
flop_per_second = _field("a rate of computation", COMPUTE)


def seconds_per_rank(least: float, most: float) -> Quantity:
    """One time, or a list with one for every rank."""
    bounds = _Range("a time", TIME, least, most, above=False)
    return Quantity(_per_rank(bounds.read), bounds.written, lambda: _list_too(bounds.schema()))


@dataclass(frozen=True)
class NumberPerRank:
    """In an annotation: one plain number, a list with one for every rank, or nothing."""

    kind: str
    least: float
    most: float

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """What pydantic makes of the annotation."""
        return core_schema.with_info_before_validator_function(_per_rank(self._read), handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The same for an editor."""
        number = {"type": "number", "minimum": self.least, "maximum": self.most}
        several = _list_too(number)["anyOf"]
        return {"title": self._expected(), "anyOf": [*several, {"type": "null"}]}

    def _read(self, value: object, _: ValidationInfo) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.least <= value <= self.most:
            raise ValueError(self._expected())
        return float(value)

    def _expected(self) -> str:
        return f"{self.kind} from {self.least:.0f} to {self.most:.0f}"


_PER_CENT = re.compile(r"\s*([0-9]{1,2}(?:\.[0-9]+)?)\s*%\s*")


@dataclass(frozen=True)
class Share:
    """In an annotation: part of a whole, as a number from 0 to below 1 or as per cent ("1 %"), or nothing."""

    of: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """What pydantic makes of the annotation."""
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The same for an editor."""
        number = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
        text = {"type": "string", "pattern": f"^{_PER_CENT.pattern}$", "examples": ["0.1 %"]}
        return {"title": self._expected(), "anyOf": [number, text, {"type": "null"}]}

    def _read(self, value: object) -> object:
        if value is None:
            return None
        per_cent = _PER_CENT.fullmatch(value) if isinstance(value, str) else None
        number = float(per_cent[1]) / 100 if per_cent else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1:
            raise ValueError(self._expected())
        return float(number)

    def _expected(self) -> str:
        return f"the share of {self.of} from 0 to below 1, or as per cent (0.001 and 0.1 % are the same)"


def _list_too(one: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of one, or a list with one for every rank."""
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "title": "one for every rank"}]}


def _per_rank(read_each: _Read) -> Callable[[object, ValidationInfo], object]:
    def read(value: object, info: ValidationInfo) -> object:
        if value is None or not isinstance(value, list):
            return None if value is None else read_each(value, info)
        found = []
        for index, entry in enumerate(value):
            try:
                found.append(read_each(entry, info))
            except ValueError as error:
                raise FieldError(str(index), entry, str(error)) from error
        return found

    return read
