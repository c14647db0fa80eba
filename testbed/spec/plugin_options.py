"""Options of what a user names: the further parameters of its function, with their types and bounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from testbed.errors import BadInput, meant
from testbed.plugins import Unusable
from testbed.spec.document import first_fault, validated


def checked_options(
    function: Callable[..., Any], known: Sequence[str], given: Mapping[str, Any], name: str, where: tuple[str, str]
) -> dict[str, Any]:
    """What is `given` of the parameters `known`, as the function's annotations have them.

    `where` is the source, and what stands in front of an option's name, in errors; `name` is what has the options.
    Raises BadInput naming the option, and what is expected of it.
    """
    source, field = where
    for option, value in given.items():
        if option not in known:
            expected = f"an option of {name} ({', '.join(known) or 'it has none'}){meant(option, known)}"
            raise BadInput.of(source, f"{field}{option}", value, expected)
    if not given:
        return {}
    try:
        return validated(options_model(function, tuple(known)), dict(given)).model_dump(exclude_unset=True)
    except ValidationError as error:
        fault = first_fault(error)
        raise BadInput.of(source, f"{field}{fault.field}", fault.value, fault.expected) from error


@lru_cache(maxsize=64)
def options_model(function: Callable[..., Any], known: tuple[str, ...]) -> type[BaseModel]:
    """The parameters as fields with types and bounds. Raises Unusable where a type is not known."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except NameError as error:
        raise Unusable(function.__name__, f"annotations that mean something when it runs ({error})") from error
    fields: dict[str, Any] = {}
    for name in known:
        parameter = parameters[name]
        annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
        fields[name] = (annotation, ... if parameter.default is parameter.empty else parameter.default)
    return create_model("Options", __config__=ConfigDict(extra="forbid"), **fields)
