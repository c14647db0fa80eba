"""Damaged results: whatever is missing or wrong in what a run wrote is one error that names where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.errors import BadInput


class Document(dict[str, Any]):
    """An object of a JSON file; a field that is not there is an error of that file, not of whoever asks for it."""

    def __init__(self, values: dict[str, Any], source: str, at: str) -> None:
        super().__init__(values)
        self._source, self._at = source, at

    def __missing__(self, key: str) -> Any:
        raise BadInput.of(self._source, f"{self._at}{key}", "nothing", "this field to be given")


def as_document(value: Any, source: str, at: str = "") -> Any:
    """What a JSON file holds, with Documents for its objects; `at` is where that is, with a dot behind it."""
    if isinstance(value, dict):
        inside = {key: as_document(item, source, f"{at}{key}.") for key, item in value.items()}
        return Document(inside, source, at)
    if isinstance(value, list):
        return [as_document(item, source, f"{at}{index}.") for index, item in enumerate(value)]
    return value


@contextmanager
def judging(directory: Path) -> Iterator[None]:
    """What the body cannot compute is the files' fault: they hold other types, or do not belong together.

    Raises BadInput naming the directory, where no file was found to be wrong when it was read.
    """
    try:
        yield
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        NotImplementedError,
        TypeError,
        ValueError,
    ) as e:
        said = f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise BadInput.of(str(directory), "data files", said, "files that one run has written, as it wrote them") from e
