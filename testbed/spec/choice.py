"""A schedule that a workload asks for: a family or a file, its options, and the label that the results call it by."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from testbed.plugins import Unusable, in_file, read_content
from testbed.spec.document import FieldError, Matching, StrictModel

_LABEL = r"[A-Za-z0-9][A-Za-z0-9 ._=+-]{0,59}"
MOST_LABEL = 60
_LABEL_WORDS = "a label in letters, digits, blanks and ._=+-, a letter or digit first, at most 60"

Label = Annotated[str, Matching(_LABEL, _LABEL_WORDS)]
_NAME = r"[a-z0-9][a-z0-9-]{0,29}"
IN_FILE = r"[^\x00-\x1f]{1,200}\.py:[A-Za-z_][A-Za-z0-9_]*|[^\x00-\x1f]{1,200}\.csv"
SCHEDULE = rf"{_NAME}|{IN_FILE}"
"""What a schedule's name looks like, and one of a file of the user's own."""
Reference = Annotated[
    str,
    Matching(SCHEDULE, "a schedule's name, FILE.py:NAME or FILE.csv"),
]


def with_ending(label: str, ending: str) -> str:
    """A label with these words behind it, cut short before them where both are too long."""
    return label[: MOST_LABEL - len(ending)].rstrip() + ending


def own_name(schedule: str) -> str:
    """What a schedule is called where nobody says otherwise: NAME of FILE.py:NAME, the stem of FILE.csv."""
    reference = in_file(schedule)
    name = PurePath(schedule).stem if schedule.endswith(".csv") else schedule if reference is None else reference.name
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9 ._=+-]", "", name)[:60]


def file_named(schedule: str) -> str | None:
    """The file that FILE.py:NAME or FILE.csv names; None for a registered name."""
    reference = in_file(schedule)
    return schedule if schedule.endswith(".csv") else None if reference is None else reference.file


class ScheduleChoice(StrictModel):
    """One schedule to run, with its options: the fields that are not named here, checked by the family."""

    model_config = ConfigDict(extra="allow", frozen=True)

    schedule: Reference = Field(description="a registered name, FILE.py:NAME, or FILE.csv in torch's notation")
    label: Label = Field(
        default_factory=lambda data: own_name(data.get("schedule", "")), description="what the results call it"
    )
    memory: float | None = Field(
        default=None, gt=0, le=1e6, description="microbatches in flight, for this schedule only"
    )
    content: str | None = Field(default=None, description="what FILE holds; filled in when the workload is read")

    def options(self) -> dict[str, Any]:
        """The options a generator takes, without those left out."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @property
    def labelled(self) -> bool:
        """Whether the label was given, not made from the schedule's name."""
        return "label" in self.model_fields_set

    def as_document(self) -> dict[str, Any]:
        """As a workload has it, label and content of the file included."""
        return self.model_dump(exclude_none=True)

    def as_identity(self) -> dict[str, Any]:
        """As `as_document`, without the content of the file."""
        return self.model_dump(exclude_none=True, exclude={"content"})


def choice_named(schedule: str, directory: Path) -> ScheduleChoice:
    """The choice of a schedule without options; files are relative to `directory`. Raises Unusable."""
    file = file_named(schedule)
    content = None if file is None else read_content(file, directory)
    if file is None and not re.fullmatch(_NAME, schedule):
        raise Unusable(schedule, "a schedule's name, FILE.py:NAME or FILE.csv")
    return ScheduleChoice(schedule=schedule, content=content)


def with_labels(choices: Sequence[ScheduleChoice]) -> list[ScheduleChoice]:
    """The choices with a label of its own each: where one name stands several times, the options that differ are added.

    Raises FieldError, relative to the list, for two equal labels.
    """
    indexes_of: dict[str, list[int]] = defaultdict(list)
    for index, choice in enumerate(choices):
        if not choice.labelled:
            indexes_of[choice.label].append(index)
    labelled = list(choices)
    for indexes in (indexes for indexes in indexes_of.values() if len(indexes) > 1):
        given = [(choices[index].options(), choices[index].memory) for index in indexes]
        settings = [options | ({} if memory is None else {"memory": memory}) for options, memory in given]
        names = list(dict.fromkeys(name for options in settings for name in options))
        differing = [name for name in names if len({repr(options.get(name)) for options in settings}) > 1]
        for index, options in zip(indexes, settings, strict=True):
            shown = (f"{name}={_shown(options[name])}" for name in differing if name in options)
            words = [choices[index].label, *shown]
            labelled[index] = choices[index].model_copy(update={"label": " ".join(words)})
    first: dict[str, int] = {}
    for index, choice in enumerate(labelled):
        if not re.fullmatch(_LABEL, choice.label):
            expected = f"{_LABEL_WORDS}: give it one"
            raise FieldError(f"{index}.label", choice.label, expected)
        if choice.label in first:
            expected = f"a label of its own (schedules.{first[choice.label]} has this one)"
            raise FieldError(f"{index}.label", choice.label, expected)
        first[choice.label] = index
    return labelled


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "+".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
