"""One YAML document read, overridden (`--set`) and validated into a pydantic model, or one clear error."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import core_schema

from testbed.errors import BadInput, meant, nearest
from testbed.files import read_text
from testbed.spec import presets, yaml_tree

T = TypeVar("T")

Document = Mapping[str, Any]
"""What a file holds, as plain values."""

MOST_BYTES = 1_000_000


class StrictModel(BaseModel):
    """Base of every spec model: frozen, unknown keys refused, no number out of text or truth values."""

    # built when first used: no command uses all of them, and a model that is part of another needs no schema of its own
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, or in the preset of that name where there is no such file.

    Raises BadInput when there is neither, or it holds anything else.
    """
    file = presets.located(path)
    expected = "a readable YAML file" if file.exists() else _expected_file(path)
    text = read_text(file, MOST_BYTES, expected)
    document = yaml_tree.parse(text, str(path))
    if not isinstance(document, dict):
        raise BadInput.of(str(path), "file", document, "a mapping of fields")
    return document


def _expected_file(path: Path) -> str:
    """What is expected where there is no such file: one beside it may have been meant, or a preset."""
    beside = {file.stem: file for file in sorted(path.parent.glob("*.yaml"))} if path.parent.is_dir() else {}
    near = nearest(path.name.removesuffix(path.suffix), beside)
    found = presets.preset_meant(path) if near is None else beside[near]
    hint = "`testbed presets` lists them" if found is None else f"did you mean {found}?"
    return f"a YAML file, or the name of a preset ({hint})"


def plain(document: Document, source: str) -> dict[str, Any]:
    """A copy of a document that a program made, with lists for tuples. Raises BadInput for what no file can hold."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(document), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput.of(
            source, WHOLE, str(error), "text, finite numbers, lists and mappings, as in a file"
        ) from error
    return found


def override(document: dict[str, Any], settings: Mapping[str, str], source: str) -> dict[str, Any]:
    """A copy of `document` with `--set` values laid over it; a key is dotted, a number an entry of a list, * every one.

    Raises BadInput when a key leads through something that has no fields, or a value is not YAML.
    """
    result: Any = document
    for key, text in settings.items():
        if len(text) > MOST_BYTES or len(key) > _MOST_KEY:
            raise BadInput.of(source, key[:_MOST_KEY], f"{len(key) + len(text)} characters", "a shorter setting")
        result = _laid_over(result, key.split("."), yaml_tree.parse(text, source, key), (source, key, text))
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
        if key == "*":
            return [_laid_over(entry, further, value, where) for entry in document]
        if not key.isdecimal() or len(key) > 9 or int(key) >= len(document):
            raise BadInput.of(source, at, text, f"a number below {len(document)}, or *, in place of {key}")
        copy = list(document)
        copy[int(key)] = _laid_over(copy[int(key)], further, value, where)
        return copy
    if isinstance(document, str) and key != "schedule":  # a bare name in `schedules` gets options beside it
        return _laid_over({"schedule": document}, keys, value, where)
    raise BadInput.of(source, at, text, f"a field that holds others before .{key}, not {document!r}")


@lru_cache(maxsize=64)
def adapter(kind: Any) -> TypeAdapter[Any]:
    """What reads and writes a kind, made once: for a plan that takes longer than to read one."""
    return TypeAdapter(kind)


def validated(kind: type[T], document: object, context: object = None) -> T:
    """`document`, plain values, as a `kind`, strictly: text is no number, 1 is not true. Raises ValidationError."""
    found: T = adapter(cast(Hashable, kind)).validate_json(json.dumps(document), strict=True, context=context)
    return found


def validate(kind: type[T], document: object, source: str, context: object = None, *, at: str = "") -> T:
    """As `validated`; `at` is the field of the file that `document` is. Raises BadInput for all that is wrong."""
    try:
        return validated(kind, document, context)
    except ValidationError as error:
        found = [
            fault._replace(field=".".join(filter(None, (at, "" if fault.field == WHOLE else fault.field))) or WHOLE)
            for fault in faults(error, kind)
        ]
        raise BadInput.of_all(source, found) from error


WHOLE = "document"
"""Stands for a field where all of a file is meant."""


class Fault(NamedTuple):
    """What is wrong with a document."""

    field: str
    value: object
    expected: str


class FieldError(ValueError):
    """Raised by a model's own validator to point at a field; its name is relative to what is being validated."""

    def __init__(self, field: str, value: object, expected: str, further: Sequence[Fault] = ()) -> None:
        """`further` faults are relative to the same place."""
        super().__init__(expected)
        self.field, self.value, self.expected, self.further = field, value, expected, further


def whole(pattern: str) -> str:
    """The pattern for JSON Schema, where one that says nothing else matches a part of the text."""
    return f"^(?:{pattern})$"


@dataclass(frozen=True)
class Matching:
    """For Annotated[str, ...]: text that all of `pattern` matches; `words` says so to a person."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """The check behind that of the type."""
        compiled = re.compile(self.pattern)

        def check(text: str) -> str:
            if compiled.fullmatch(text) is None:
                raise ValueError(self.words)
            return text

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The type, and the pattern."""
        return {**handler(schema), "pattern": whole(self.pattern)}


@dataclass(frozen=True)
class WrittenAs:
    """For Annotated[...]: in JSON Schema the field is as this type, which has all forms that a file may give it."""

    kind: Any

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """That of the other type."""
        return handler(TypeAdapter(self.kind).core_schema)


def first_fault(error: ValidationError) -> Fault:
    """The first thing that pydantic found wrong, in our words."""
    return faults(error)[0]


def faults(error: ValidationError, kind: Any = None) -> list[Fault]:
    """All that pydantic found wrong with a `kind`, in our words; of a field's alternatives the one that came furthest.

    Where `kind` is given, what is misspelt is told from the fields that it has.
    """
    by_field: dict[tuple[int | str, ...], Any] = {}
    for entry in error.errors(include_url=False):
        if entry["type"] == _CONSEQUENCE:
            continue
        place = tuple(takewhile(lambda part: not _is_alternative(part), entry["loc"]))
        if place not in by_field or _came(entry) > _came(by_field[place]):
            by_field[place] = entry
    return [fault for entry in by_field.values() for fault in _in_our_words(entry, kind)]


def _came(entry: Mapping[str, Any]) -> tuple[int, bool]:
    """How far pydantic came before this error: to which field, and whether to a model's own validator behind them."""
    return len(entry["loc"]), isinstance(entry.get("ctx", {}).get("error"), FieldError)


def _in_our_words(entry: Mapping[str, Any], kind: Any) -> list[Fault]:
    """One of pydantic's errors: mostly one fault, of a model inside a field maybe more."""
    *steps, last = entry["loc"] or ("",)
    places = [step for step in steps if not _is_alternative(step)]
    if entry["loc"] and (entry["type"] in _UNKNOWN or not _is_alternative(last)):  # a field may be called "]"
        places.append(last)
    parts = [str(part) if str(part).strip() else repr(part) for part in places]
    if parts[-1:] == ["[key]"]:
        parts = parts[:-2]
    value, further = entry.get("input"), list[Fault]()
    context: dict[str, Any] = entry.get("ctx", {})
    match entry["type"]:
        case kind_of_error if kind_of_error in _UNKNOWN:
            expected = no_such_field(parts[-1], _fields_at(kind, parts[:-1]))
        case "missing" | "missing_argument":
            value, expected = "nothing", "this field to be given"
        case "value_error" if isinstance(context["error"], FieldError):
            cause = context["error"]
            further = [fault._replace(field=".".join([*parts, fault.field])) for fault in cause.further]
            parts, value, expected = [*parts, *filter(None, [cause.field])], cause.value, cause.expected
        case "value_error":
            expected = str(context["error"])
        case name:
            expected = _expected(name, context, str(entry["msg"]))
    return [Fault(".".join(parts) or WHOLE, value, expected), *further]


def no_such_field(name: str, known: Iterable[str]) -> str:
    """What is expected where a field of that name stands and should not."""
    return f"no such field{meant(name, known) or ' (is it misspelt?)'}"


def _fields_at(kind: Any, parts: Sequence[str]) -> list[str]:
    """The fields that a `kind` has at the place that `parts` lead to, as a file names them; [] where nobody knows."""
    models = _models_in(kind)
    for part in parts:  # a part that is no field is a number or a key of what holds the models
        fields = [
            field for model in models for name, field in model.model_fields.items() if part in (name, field.alias)
        ]
        if fields:
            models = [model for field in fields for model in _models_in(field.annotation)]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation is made of: itself, its alternatives, what a list or a mapping holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _is_alternative(part: int | str) -> bool:
    """Whether a step of pydantic's location is no field but a member of a union, such as list[str]."""
    return isinstance(part, str) and part != "[key]" and (part in _PLAIN or part.endswith((")", "]")))


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Errors whose location ends with the name of a field that does not exist."""

_CONSEQUENCE = "default_factory_not_called"
"""Of a field whose default is made of others: that one of those is wrong, which an error of its own says."""

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
