"""A network-emulation testbed for cross-datacenter LLM training.

`predict`, `load`, `compare` and `Study` (testbed/api.py, docs/python.md) are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.api import Results, Study, compare, load, predict

__version__ = "0.1.0"
__all__ = ["Results", "Study", "compare", "load", "predict"]


def __getattr__(name: str) -> Any:
    """What the package exports, from the module that has it; raises AttributeError for any other name."""
    if name in __all__:
        return getattr(import_module("testbed.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
