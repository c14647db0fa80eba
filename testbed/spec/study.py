"""A study as a file: a grid of topologies, workloads, schedules and values of any field, and what is claimed of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from testbed.errors import listed
from testbed.spec import yaml_tree
from testbed.spec.document import (
    Document,
    FieldError,
    Matching,
    StrictModel,
    WrittenAs,
    override,
    plain,
    read_yaml,
    validate,
)
from testbed.spec.setting import setting
from testbed.spec.topology import Name
from testbed.units import COMPUTE, LENGTH, RATE, SIZE, TIME, parse, show_compute, show_rate, show_size, show_time

MOST_CELLS = 100_000
MOST_VALUES = 10_000
"""Of one axis."""
MOST_REPETITIONS = 1000

OWN_FIELD = "a field of the study itself, whose `set` has what is the same in all cells"
"""What --set and the like may name of a study."""

_KINDS = {"time": TIME, "rate": RATE, "size": SIZE, "length": LENGTH, "computation": COMPUTE}

_SHOWN: dict[str, Callable[[float], str]] = {
    "time": show_time,
    "rate": show_rate,
    "size": show_size,
    "computation": show_compute,
    "length": lambda metres: f"{metres / 1e3:g} km",
}

_RANGE = re.compile(
    r"\s*(?P<first>[0-9.eE+-]+?)\s*(?P<first_unit>[^\W\d][^\s./]*(?:/s)?)?\s*\.\."
    r"\s*(?P<last>[0-9.eE+-]+?)\s*(?P<unit>[^\W\d][^\s/]*(?:/s)?)?\s*/\s*(?P<count>[0-9]{1,5})\s*(?P<log>log)?\s*"
)
_RANGE_TEXT = r"\s*[0-9].*\.\..*/\s*[0-9]{1,5}\s*(log)?\s*"
"""The same as an editor holds a text against, without the names of its parts."""
_RANGE_WORDS = "values as in 1..80 ms/12: from 1 to 80 ms in 12 equal steps (or 1..80 ms/12 log, in equal ratios)"

AxisName = Annotated[
    str,
    Matching(r"[A-Za-z][A-Za-z0-9_.-]{0,59}", "letters, digits, hyphens, dots and _, a letter first, at most 60"),
]


class AxisValue(NamedTuple):
    """A place on an axis."""

    shown: str
    """As the file has it."""
    number: float | None
    """What it is on a scale: SI units of what has one; None for a word."""
    kind: str
    """time, rate, size, length or computation; number, or word."""
    settings: Mapping[str, Any]
    """Fields, as `--set` names them, and their values as a YAML file has them."""

    def is_that_of(self, other: AxisValue) -> bool:
        """Whether both are one place, perhaps in other units."""
        if self.number is None or other.number is None:
            return self.shown == other.shown
        return self.kind == other.kind and math.isclose(self.number, other.number, rel_tol=1e-12)


def _values(value: object) -> object:
    if isinstance(value, str):
        return spread(value)
    of_words = isinstance(value, dict) and all(isinstance(fields, dict) for fields in value.values())
    if of_words or isinstance(value, list):
        return value
    raise ValueError(f"a list, {_RANGE_WORDS}, or a mapping of words to fields and their values")


class StudyAxis(StrictModel):
    """What is varied: a field or several together over values, or words that each stand for values of fields."""

    field: str | list[str] | None = Field(
        default=None, description="as --set names it; topology.X, or X where only a topology has such a field"
    )
    values: Annotated[
        list[Any] | dict[str, dict[str, Any]],
        BeforeValidator(_values),
        WrittenAs(list[Any] | dict[str, dict[str, Any]] | Annotated[str, Matching(_RANGE_TEXT, _RANGE_WORDS)]),
    ] = Field(description="a list, a range as in 1..80 ms/12, or a mapping of words to fields and their values")
    times: str | None = Field(
        default=None, description="what every number is multiplied by: with 20 ms, the value 2 stands for 40 ms"
    )
    scale: Literal["linear", "log"] = Field(default="linear", description="of the picture")

    @field_validator("values")
    @classmethod
    def _bounded(cls, values: list[Any] | dict[str, Any]) -> list[Any] | dict[str, Any]:
        if not 1 <= len(values) <= MOST_VALUES:
            raise ValueError(f"from 1 to {MOST_VALUES} values")
        return values

    @property
    def kind(self) -> str:
        """Of its values: time, rate, size, length or computation; number where they are of several; or word."""
        kinds = {place.kind for place in self.places()}
        return "word" if "word" in kinds else kinds.pop() if len(kinds) == 1 else "number"

    def show(self, number: float) -> str:
        """A place between the values, in the unit that they have."""
        return _SHOWN.get(self.kind, "{:.4g}".format)(number)

    def places(self) -> list[AxisValue]:
        """The values with what each sets. Raises FieldError, relative to the axis."""
        if isinstance(self.values, dict):
            if self.field is not None or self.times is not None:
                named = "field" if self.field is not None else "times"
                raise FieldError(named, getattr(self, named), "nothing: the words of values name the fields they set")
            return [
                AxisValue(word, None, "word", {setting(name): value for name, value in fields.items()})
                for word, fields in self.values.items()
            ]
        names = [self.field] if isinstance(self.field, str) else self.field
        if not names:
            raise FieldError("field", self.field, "the field that takes these values, or a list of such")
        found = []
        for index, value in enumerate(self.values):
            number, kind = _number(value)
            given = value if self.times is None else _multiplied(value, self.times, index)
            found.append(AxisValue(_shown(value), number, kind, {setting(name): given for name in names}))
        for index, place in enumerate(found):
            for other in found[:index]:
                if place.is_that_of(other):
                    again = "" if place.shown == other.shown else f" ({other.shown} is the same)"
                    raise FieldError(f"values.{index}", place.shown, f"every value once{again}")
        return found


class PublishedSpec(StrictModel):
    """Times that somebody else published, in a CSV file: shown beside ours, and held against them by claims."""

    file: str = Field(
        description="relative to this one; its columns: names of axes (or topology, workload), with their values; "
        "schedule: the label; and the times"
    )
    source: str = Field(min_length=1, description="who published them, and where: paper and table")
    column: str = Field(min_length=1, description="the one that has the times")
    unit: str = Field(description="of the times: s, ms or us")
    per: Literal["iteration", "microbatch"] = Field(default="iteration", description="what they are the time of")
    only: bool = Field(default=False, description="leave out the cells of which nothing is published")

    @field_validator("unit")
    @classmethod
    def _a_time(cls, unit: str) -> str:
        if unit not in TIME:
            raise ValueError(f"a unit of time ({listed(TIME)})")
        return unit


class StudySpec(StrictModel):
    """A grid: every topology with every workload at every place of all axes, each measured with all schedules."""

    name: Name = Field(description="of its directory of results")
    description: str = Field(default="", description="what it is about: the heading of its pictures")
    topologies: list[str] = Field(min_length=1, description="files, relative to this one, or names of ours")
    workloads: list[str | list[str]] = Field(
        min_length=1, description="files or names likewise; a list in the list: jobs at the same time"
    )
    schedules: list[Any] | None = Field(
        default=None, min_length=1, description="as a workload lists them; default: those of each workload"
    )
    policies: list[str] = Field(default=[], description="as --policy names them; default: default routes only")
    set: dict[str, Any] = Field(default={}, description="fields, as --set names them, that are the same in all cells")
    over: dict[AxisName, StudyAxis] = Field(default={}, description="the axes, by name")
    repetitions: int = Field(
        default=1, ge=1, le=MOST_REPETITIONS, description="of every cell; on the virtual clock with seeds 1, 2, 3, ..."
    )
    clock: Literal["virtual", "real", "none"] = Field(default="virtual", description="none: predicted, not measured")
    iterations: int | None = Field(default=None, ge=1, description="measured ones; default: each workload's")
    light: bool = Field(
        default=False, description="on the virtual clock: smaller models with the same messages, in the same time"
    )
    published: PublishedSpec | None = Field(default=None, description="times from a paper, to be shown beside ours")
    claims: list[str] = Field(default=[], description="what is to hold, as docs/studies.md writes it")

    @model_validator(mode="after")
    def _light_where_time_is_virtual(self) -> Self:
        if self.light and self.clock == "real":
            raise FieldError("light", True, "clock: virtual: another clock sees what a model computes")
        return self

    @field_validator("topologies", "workloads")
    @classmethod
    def _files_are_named_once(cls, files: list[str | list[str]]) -> list[str | list[str]]:
        for number, each in enumerate(files):
            if each in files[:number]:
                raise FieldError(str(number), each, "every one once")
        return files

    @field_validator("over")
    @classmethod
    def _axes_name_fields(cls, over: dict[str, StudyAxis]) -> dict[str, StudyAxis]:
        for name, axis in over.items():
            try:
                axis.places()
            except FieldError as error:
                raise FieldError(f"{name}.{error.field}", error.value, str(error)) from error
        return over

    @model_validator(mode="after")
    def _fields_are_said_once(self) -> Self:
        """What an axis sets in all of its places is not the same in all cells; and one axis would undo another."""
        same, by_axis = {setting(name): name for name in self.set}, dict[str, str]()
        own = {"schedules": self.schedules, "iterations": self.iterations}
        for axis_name, axis in self.over.items():
            of_places = [frozenset(place.settings) for place in axis.places()]
            for field in sorted(frozenset.union(*of_places) & own.keys()):
                if own[field] is not None:
                    expected = f"a field that the study does not set itself ({own[field]})"
                    raise FieldError(f"over.{axis_name}", field, expected)
            for field in sorted(same):
                if all(any(_undoes(later, field) for later in fields) for fields in of_places):
                    raise FieldError(f"set.{same[field]}", self.set[same[field]], f"no field of an axis ({axis_name})")
            for field in sorted(frozenset.union(*of_places)):
                for earlier, other in by_axis.items():
                    if other != axis_name and _undoes(field, earlier):
                        expected = f"a field that no other axis sets ({other} does)"
                        raise FieldError(f"over.{axis_name}", field, expected)
                by_axis[field] = axis_name
        return self


def _undoes(later: str, earlier: str) -> bool:
    """Whether nothing is left of what `earlier` set where `later` is set behind it: links, or links.*.delay."""
    keys, of_earlier = later.split("."), earlier.split(".")
    return len(keys) <= len(of_earlier) and all(
        key == other or (key == "*" and other.isdecimal()) for key, other in zip(keys, of_earlier, strict=False)
    )


def study_of(source: Path | Document, settings: Mapping[str, str] | None = None) -> StudySpec:
    """The study in a YAML file, or of a document, with `--set` values laid over it. Raises BadInput."""
    name = str(source) if isinstance(source, Path) else "study"
    document = read_yaml(source) if isinstance(source, Path) else plain(source, name)
    return validate(StudySpec, override(document, settings or {}, name), name)


def axis_of_text(text: str) -> tuple[str, dict[str, Any]]:
    """FIELD=VALUES of the command line, values a range or comma-separated: name and axis, as a file has it.

    Its name is the field, with `all` for `*`. Raises ValueError in words, BadInput for a list that is not one of YAML.
    """
    field, separator, written = text.partition("=")
    if not separator or not field or not written:
        raise ValueError("FIELD=VALUES, as in links.0.delay=1..80ms/12 or microbatches=4,8,16")
    values: Any = written if ".." in written else [_value(part.strip()) for part in _parts(written)]
    return field.replace("*", "all"), {"field": field, "values": values}


def _parts(text: str) -> list[str]:
    """What is between commas that are in no list or mapping."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _value(text: str) -> Any:
    """Of --over: a list or a mapping as YAML has it, a number, or the text."""
    return yaml_tree.parse(text, "--over", "option") if text.startswith(("[", "{")) else _plain(text)


def _plain(text: str) -> Any:
    """A number where the text is one, as YAML has it."""
    if not text.isascii() or "_" in text:  # which Python would read as numbers, too
        return text
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def spread(text: str) -> list[Any]:
    """The values of a range, to four digits: numbers, or texts with a unit.

    Raises ValueError in words.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(_RANGE_WORDS)
    try:
        first, last, count = float(match["first"]), float(match["last"]), int(match["count"])
    except ValueError:
        raise ValueError(_RANGE_WORDS) from None
    unit, log = match["unit"] or "", match["log"] is not None
    if match["first_unit"] and match["first_unit"] != unit:  # as in 500 us..2 ms
        units = _units_with(unit)
        first = parse(f"{match['first']} {match['first_unit']}", units, "both ends") / units[unit]
    if not 2 <= count <= MOST_VALUES or not first < last or (log and first <= 0) or not math.isfinite(last):
        raise ValueError(f"{_RANGE_WORDS}, ascending, from 2 to {MOST_VALUES} values")
    step = [number / (count - 1) for number in range(count)]
    numbers = [first * (last / first) ** at if log else first + (last - first) * at for at in step]
    if unit:
        return [f"{number:.4g} {unit}" for number in numbers]
    whole = [math.isclose(number, round(number), abs_tol=1e-9) for number in numbers]
    return [round(number) if one else float(f"{number:.4g}") for number, one in zip(numbers, whole, strict=True)]


def _units_with(unit: str) -> dict[str, float]:
    for units in _KINDS.values():
        if unit in units:
            return units
    raise ValueError(f"a unit of ours ({listed(name for units in _KINDS.values() for name in units)})")


def _number(value: object) -> tuple[float | None, str]:
    """What a value is on a scale, and of what kind."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), "number"
    for kind, units in _KINDS.items():
        try:
            return parse(value, units, kind), kind
        except ValueError:
            continue
    return None, "word"


def quantity(text: str) -> float | None:
    """The number that a text of a claim stands for, in SI units; None for a word."""
    return _number(_plain(text))[0]


def kind_of(text: str) -> str:
    """Of what kind a text of a claim is: time, rate, size, length or computation; number, or word."""
    return _number(_plain(text))[1]


def same_number(one: float | None, other: float | None) -> bool:
    """Whether two places on a scale are one, but for rounding; a word is none."""
    return one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9)


def _multiplied(value: object, unit: str, index: int) -> str:
    number, kind = _number(value)
    whole, of = _number(unit)
    if number is None or kind != "number":
        raise FieldError(f"values.{index}", value, "a number, which `times` multiplies")
    if whole is None or of in ("number", "word"):
        raise FieldError("times", unit, "a quantity with a unit, as in 20 ms")
    base = next(name for name, factor in _KINDS[of].items() if factor == 1)
    return f"{number * whole:.12g} {base}" if number else f"0 {base}"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
