"""One YAML document read, overridden (`--set`) and validated into a pydantic model, or one clear error."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from testbed.errors import BadInput
from testbed.files import read_text
from testbed.spec import yaml_tree

T = TypeVar("T")

MOST_BYTES = 1_000_000


class Strict(BaseModel):
    """Base of every spec model: frozen, unknown keys refused, no number out of text or truth values."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises BadInput when there is no such file, or it holds anything else."""
    document = yaml_tree.parse(read_text(path, MOST_BYTES, "a readable YAML file"), str(path))
    if not isinstance(document, dict):
        raise BadInput.of(str(path), "file", document, "a mapping of fields")
    return document


def override(document: dict[str, Any], settings: Mapping[str, str], source: str) -> dict[str, Any]:
    """A copy of `document` with `--set` values laid over it; a key is dotted, a number means an entry of a list.

    Raises BadInput when a key leads through something that has no fields, or a value is not YAML.
    """
    result: Any = document
    for key, text in settings.items():
        at = f"--set {key}"
        if len(text) > MOST_BYTES or len(key) > _MOST_KEY:
            raise BadInput.of(source, at[:_MOST_KEY], f"{len(key) + len(text)} characters", "a shorter setting")
        result = _laid_over(result, key.split("."), yaml_tree.parse(text, source, at), (source, at, text))
    return dict(result)


_MOST_KEY = 200


def _laid_over(document: Any, keys: list[str], value: Any, where: tuple[str, str, str]) -> Any:
    """A copy of `document` with `value` in place of what `keys` lead to."""
    if not keys:
        return value
    (source, at, text), (key, *further) = where, keys
    if isinstance(document, dict):
        return {**document, key: _laid_over(document.get(key, {}), further, value, where)}
    if isinstance(document, list):
        if not key.isdecimal() or len(key) > 9 or int(key) >= len(document):
            raise BadInput.of(source, at, text, f"a number below {len(document)} in place of {key}")
        copy = list(document)
        copy[int(key)] = _laid_over(copy[int(key)], further, value, where)
        return copy
    if isinstance(document, str) and key != "schedule":  # a bare name in `schedules` gets options beside it
        return _laid_over({"schedule": document}, keys, value, where)
    raise BadInput.of(source, at, text, f"a field that holds others before .{key}, not {document!r}")


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def validated(kind: type[T], document: object, context: object = None) -> T:
    """`document`, plain values, as a `kind`, strictly: text is no number, 1 is not true. Raises ValidationError."""
    found: T = _adapter(cast(Hashable, kind)).validate_json(json.dumps(document), strict=True, context=context)
    return found


def validate(kind: type[T], document: object, source: str, context: object = None, *, at: str = "") -> T:
    """As `validated`; `at` is the field of the file that `document` is. Raises BadInput for the first thing wrong."""
    try:
        return validated(kind, document, context)
    except ValidationError as error:
        field, value, expected = first_fault(error)
        inside = "" if field == WHOLE else field
        raise BadInput.of(source, ".".join(filter(None, (at, inside))) or WHOLE, value, expected) from error


WHOLE = "document"
"""Stands for a field where all of a file is meant."""


class Fault(NamedTuple):
    """What is wrong with a document."""

    field: str
    value: object
    expected: str


class FieldError(ValueError):
    """Raised by a model's own validator to point at a field; its name is relative to what is being validated."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(expected)
        self.field, self.value, self.expected = field, value, expected


def matching(pattern: str, words: str) -> AfterValidator:
    """For Annotated[str, ...]: text that all of `pattern` matches; `words` says so to a person."""
    whole = re.compile(pattern)

    def check(text: str) -> str:
        if whole.fullmatch(text) is None:
            raise ValueError(words)
        return text

    return AfterValidator(check)


def first_fault(error: ValidationError) -> Fault:
    """The first thing that pydantic found wrong, in our words; of alternatives the one that came furthest."""
    errors = error.errors(include_url=False)
    first = errors[0]
    head = first["loc"][:1]
    first = max((one for one in errors if one["loc"][:1] == head), key=lambda one: len(one["loc"]))
    if not any(_is_alternative(part) for part in first["loc"]):
        first = errors[0]
    parts = [str(part) or "''" for part in first["loc"] if not _is_alternative(part)]
    if parts[-1:] == ["[key]"]:
        parts = parts[:-2]
    value = first.get("input")
    context: dict[str, Any] = first.get("ctx", {})
    match first["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            expected = "no such field (is it misspelt?)"
        case "missing" | "missing_argument":
            value, expected = "nothing", "this field to be given"
        case "value_error" if isinstance(context["error"], FieldError):
            cause = context["error"]
            parts, value, expected = [*parts, *filter(None, [cause.field])], cause.value, cause.expected
        case "value_error":
            expected = str(context["error"])
        case kind:
            expected = _expected(kind, context, str(first["msg"]))
    return Fault(".".join(parts) or WHOLE, value, expected)


def _is_alternative(part: int | str) -> bool:
    """Whether a step of pydantic's location is no field but a member of a union, such as list[str]."""
    return isinstance(part, str) and part != "[key]" and (part in _PLAIN or part.endswith((")", "]")))


_PLAIN = ("float", "int", "str", "bool", "none")


_WORDS = {
    "a whole number": ("int_type", "int_parsing", "int_from_float", "int_parsing_size"),
    "a number": ("float_type", "float_parsing"),
    "a finite number": ("finite_number",),
    "text": ("string_type", "string_unicode", "string_sub_type"),
    "true or false": ("bool_type", "bool_parsing"),
    "a list": ("list_type", "tuple_type", "iterable_type"),
    "a mapping of fields": (
        "dict_type",
        "mapping_type",
        "model_type",
        "model_attributes_type",
        "dataclass_type",
        "named_tuple_type",
        "arguments_type",
        "dataclass_exact_type",
    ),
    "nothing (null)": ("none_required",),
}
_IN_WORDS = {kind: words for words, kinds in _WORDS.items() for kind in kinds}


def _expected(kind: str, context: Mapping[str, Any], message: str) -> str:
    """What pydantic expected, in words that need no knowledge of it."""
    match kind:
        case _ if kind in _IN_WORDS:
            return _IN_WORDS[kind]
        case "greater_than":
            return f"more than {_number(context['gt'])}"
        case "greater_than_equal":
            return f"at least {_number(context['ge'])}"
        case "less_than":
            return f"less than {_number(context['lt'])}"
        case "less_than_equal":
            return f"at most {_number(context['le'])}"
        case "multiple_of":
            return f"a multiple of {context['multiple_of']:g}"
        case "too_short":
            return f"at least {_entries(context['min_length'])}"
        case "too_long":
            return f"at most {_entries(context['max_length'])}"
        case "string_too_long":
            return f"at most {context['max_length']} characters"
        case "string_too_short":
            return f"at least {context['min_length']} characters"
        case "string_pattern_mismatch":  # of a plug-in: our own models say it in words
            return f"text that matches {context['pattern']}"
        case "literal_error" | "enum":
            return str(context["expected"])
        case _:
            return message.removeprefix("Input should be ").removeprefix("Value should be ")


def _number(bound: float) -> str:
    return f"{bound:.0f}" if bound == round(bound) else f"{bound:g}"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
