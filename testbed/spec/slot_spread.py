"""A slot that is not the same every time: how far it spreads about its median, and what is drawn together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import core_schema

from testbed.errors import BadInput
from testbed.files import csv_rows, read_text
from testbed.spec.document import WHOLE, FieldError, StrictModel, faults, validated
from testbed.spec.quantity import seconds, seconds_per_rank
from testbed.units import TIME, parse, show_time

MOST_SLOT_S = 3600.0
LEAST_SAMPLES, MOST_SAMPLES = 2, 100_000
MOST_PROFILE_BYTES = 10_000_000

Times = Annotated[float | list[float], seconds_per_rank(0, MOST_SLOT_S)]
"""One time for every rank, or a list with one per pipeline rank."""

Each = Literal["action", "microbatch", "iteration", "rank"]

_P95 = 1.6448536269514722
"""Standard deviations from the median to the 95th percentile of a normal distribution."""


class SlotSpread(StrictModel):
    """The distribution of a slot: lognormal by its median and 95th percentile, or samples that are drawn from."""

    median: Times | None = Field(
        default=None, description="half of all slots are longer; beside samples it scales them, by default it is theirs"
    )
    p95: Times | None = Field(
        default=None, description="one slot of twenty is longer: lognormal; per rank where the median is"
    )
    samples: list[Annotated[float, seconds(0, MOST_SLOT_S)]] | None = Field(
        default=None, min_length=LEAST_SAMPLES, max_length=MOST_SAMPLES, description="slots as measured, each as likely"
    )
    profile: str | None = Field(
        default=None,
        max_length=500,
        description="a CSV file with samples, in a column F, I, W or B with its unit (`F ms,B ms`); they are filled in "
        "when the workload is read",
    )
    each: Each = Field(
        default="action",
        description="what has a draw of its own: an action (each microbatch on each rank); a microbatch (one draw for "
        "all ranks and kinds, as its length would have it); an iteration of a rank; a rank, for all of the training",
    )

    @model_validator(mode="after")
    def _one_form(self) -> SlotSpread:
        if (self.p95 is None) == (self.samples is None):
            found = "both" if self.p95 is not None else "nothing"
            raise FieldError("p95" if self.p95 is not None else "", found, "p95, samples or profile, one of them")
        if self.samples is not None:
            if not _middle(self.samples) > 0:
                raise FieldError("samples", 0, "a median above 0")
            return self
        if self.median is None:
            raise FieldError("median", "nothing", "a time beside p95")
        medians, ends = (value if isinstance(value, list) else [value] for value in (self.median, self.p95 or 0.0))
        if len(medians) != len(ends):
            raise FieldError("p95", self.p95, "one time for every rank where the median has one, else one time")
        for median, end in zip(medians, ends, strict=True):
            if not 0 < median <= end:
                expected = f"no less than the median, {show_time(median)}" if median else "a median above 0"
                raise FieldError("p95", show_time(end), expected)
        return self

    def middle(self, rank: int) -> float:
        """The median of a rank's slot, in seconds."""
        if self.median is None:
            assert self.samples is not None  # or there is a median
            return _middle(self.samples)
        return self.median[rank] if isinstance(self.median, list) else self.median

    def sigma(self, rank: int) -> float:
        """Standard deviation of the logarithm of a rank's slot; of a lognormal one."""
        end = self.p95[rank] if isinstance(self.p95, list) else self.p95
        assert end is not None
        return math.log(end / self.middle(rank)) / _P95

    def about(self, medians: list[float]) -> SlotSpread:
        """The same spread, as shares of the median, about other medians: one for each of any number of ranks.

        Where ranks spread differently and their number is another one, each spreads as the widest does.
        """
        if self.samples is not None:
            return self.model_copy(update={"median": medians})
        known = range(len(self.median) if isinstance(self.median, list) else 1)
        widest = max(self.sigma(rank) for rank in known)
        own = [self.sigma(rank) for rank in known] if len(known) == len(medians) else [widest] * len(medians)
        ends = [median * math.exp(sigma * _P95) for median, sigma in zip(medians, own, strict=True)]
        return self.model_copy(update={"median": medians, "p95": ends})


def _middle(samples: list[float]) -> float:
    """Their median; `statistics` takes long to import."""
    ordered, half = sorted(samples), len(samples) // 2
    return ordered[half] if len(samples) % 2 else (ordered[half - 1] + ordered[half]) / 2


_TIMES = seconds_per_rank(0, MOST_SLOT_S)


@dataclass(frozen=True)
class Slot:
    """In an annotation: one time, a list with one for every rank, or a `SlotSpread`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """What pydantic makes of the annotation."""
        return core_schema.with_info_before_validator_function(
            _read,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(_serialized, info_arg=True),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """All forms that a file may give it."""
        spread = handler(TypeAdapter(SlotSpread).core_schema)
        return {"anyOf": [*_TIMES.schema()["anyOf"], spread]}


def _read(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, dict):
        return value if isinstance(value, SlotSpread) else _TIMES.read(value, info)
    try:
        return validated(SlotSpread, value, info.context)
    except ValidationError as error:
        (field, found, expected), *further = faults(error, SlotSpread)
        raise FieldError("" if field == WHOLE else field, found, expected, further) from error


def _serialized(value: Any, info: core_schema.SerializationInfo) -> object:
    if isinstance(value, SlotSpread):
        return value.model_dump(mode="json", context=info.context, exclude_none=True)
    return _TIMES.serialized(value, info)


def with_samples(written: Any, kind: str, where: tuple[str, Path], field: str) -> Any:
    """A slot of a workload with the samples of the profile that it names, where it names one.

    `where` are the workload's source and directory. Raises BadInput.
    """
    if not isinstance(written, Mapping) or not isinstance(written.get("profile"), str) or "samples" in written:
        return written
    source, directory = where
    return {**written, "samples": _column(directory / written["profile"], kind, (source, f"{field}.profile"))}


def _column(path: Path, kind: str, where: tuple[str, str]) -> list[str]:
    """The column of a kind of action, as times with their unit."""
    expected = "a readable CSV file with a column for every kind that is drawn from it (F ms)"
    try:
        table = csv_rows(read_text(path, MOST_PROFILE_BYTES, expected), path.name)
    except BadInput as error:
        raise BadInput.of(*where, str(path), expected) from error
    headings = [heading.split() for heading in (table[0] if table else [])]
    found = [(place, heading[1]) for place, heading in enumerate(headings) if len(heading) == 2 and heading[0] == kind]
    if len(found) != 1 or found[0][1] not in TIME:
        named = ", ".join(" ".join(heading) for heading in headings)
        raise BadInput.of(*where, f"columns {named}"[:200], f"one column {kind} with its unit ({', '.join(TIME)})")
    ((place, unit),) = found
    cells = [(line, row[place].strip()) for line, row in enumerate(table[1:], 2) if len(row) > place]
    for line, cell in cells:
        try:
            parse(f"{cell} {unit}", TIME, "a time")
        except ValueError as error:
            where_it_is = f"line {line} of {path.name}, column {kind}"
            raise BadInput.of(*where, cell[:100], f"a number, 0 or more, in {where_it_is}") from error
    if len(cells) < LEAST_SAMPLES:
        expected = f"{LEAST_SAMPLES} samples or more in column {kind} of {path.name}"
        raise BadInput.of(*where, f"{len(cells)} below its name", expected)
    return [f"{cell} {unit}" for _, cell in cells]
