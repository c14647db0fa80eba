"""What the library has to say while a command works, handed to whoever watches the command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Handler(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


@contextmanager
def said_by_the_library(say: Callable[[str], None]) -> Iterator[None]:
    """Hand every message of the testbed's loggers to `say`."""
    logger, handler = logging.getLogger("testbed"), _Handler(say)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
