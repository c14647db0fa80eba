"""What functions have made of an object, kept for the next time that they are asked about the very same one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Generic, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class _Itself(Generic[Argument]):
    """Equal to itself alone: to hash a schedule by what it holds takes as long as what is made of it."""

    def __init__(self, value: Argument) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value


def memoized_by_identity(most: int) -> Callable[[Callable[[Argument], Result]], Callable[[Argument], Result]]:
    """A decorator: what a function of one argument has made of the last `most` objects, none of which ever changes."""

    def decorate(function: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
        @lru_cache(maxsize=most)
        def made(itself: _Itself[Any]) -> Result:
            return function(itself.value)

        @wraps(function)
        def call(argument: Argument) -> Result:
            return made(_Itself(argument))

        return call

    return decorate
