"""One YAML document read, overridden (`--set`) and validated into a pydantic model, or one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.errors import BadInput

Model = TypeVar("Model", bound=BaseModel)

MAX_DOCUMENT_BYTES = 1_000_000


class Strict(BaseModel):
    """Base of every spec model: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice: the second would silently win."""


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if isinstance(key_node, yaml.ScalarNode):
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises BadInput when there is no such file, or it holds anything else."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput.of(str(path), "file", error.strerror, "a readable YAML file") from error
    if len(text) > MAX_DOCUMENT_BYTES:
        raise BadInput.of(str(path), "file", f"{len(text)} bytes", f"at most {MAX_DOCUMENT_BYTES} bytes")
    try:
        document = yaml.load(text, Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "file"
        problem = getattr(error, "problem", None) or type(error).__name__
        raise BadInput.of(str(path), where, problem, "valid YAML") from error
    if not isinstance(document, dict):
        raise BadInput.of(str(path), "file", type(document).__name__, "a mapping of fields")
    return document


def override(document: dict[str, Any], settings: dict[str, str], source: str) -> dict[str, Any]:
    """A copy of `document` with `--set` values laid over it; a key is dotted, a value is YAML.

    Raises BadInput when a key leads through something that is not a mapping, or a value is not YAML.
    """
    result = dict(document)
    for key, text in settings.items():
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise BadInput.of(source, f"--set {key}", text, "a YAML value") from error
        *parents, last = key.split(".")
        target = result
        for parent in parents:
            child = target.get(parent, {})
            if not isinstance(child, dict):
                raise BadInput.of(source, f"--set {key}", text, f"{parent} to be a mapping")
            target[parent] = dict(child)
            target = target[parent]
        target[last] = value
    return result


def validate(model: type[Model], document: dict[str, Any], source: str) -> Model:
    """`document` as a `model`. Raises BadInput for the first thing that is wrong with it."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        refuse(error, source)


def refuse(error: ValidationError, source: str) -> NoReturn:
    """Raises the first of pydantic's errors as BadInput."""
    raise BadInput.of(source, *first_fault(error))


class Fault(NamedTuple):
    """What is wrong with a document."""

    field: str
    value: object
    expected: str


def first_fault(error: ValidationError) -> Fault:
    """The first thing that pydantic found wrong, in our words."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "document"
    value = first.get("input")
    expected = first["msg"]
    match first["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return Fault(field, value, "no such field (is it misspelt?)")
        case "missing" | "missing_argument":
            return Fault(field, "nothing", "this field to be given")
        case "value_error":
            cause = first["ctx"]["error"]
            if isinstance(cause, FieldError):
                return Fault(cause.field, cause.value, cause.expected)
            expected = str(cause)
        case _:
            expected = expected.removeprefix("Input should be ").removeprefix("Value should be ")
    return Fault(field, value, expected)


class FieldError(ValueError):
    """Raised by a model's own validator to point at another field than the one being validated."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(expected)
        self.field, self.value, self.expected = field, value, expected
