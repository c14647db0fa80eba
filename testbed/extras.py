"""Packages that predicting does without: which extra of ours brings them, and the command that adds them."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from typing import Literal

from testbed.errors import MachineLacks

Extra = Literal["report", "trace", "train", "ray"]

PACKAGES: dict[Extra, tuple[str, ...]] = {
    "report": ("pandas", "pyarrow"),
    "trace": ("perfetto",),
    "train": ("mininet", "pandas", "pyarrow", "pyroute2", "setuptools", "torch"),
    "ray": ("ray",),
}
"""By extra, what it brings; each is imported by the name that it is installed by."""

_STOOD_IN_FOR = {"distutils": "setuptools"}
"""What Mininet imports, and Python 3.12 dropped: the package that has it."""


def require(extra: Extra) -> None:
    """Raises MachineLacks, naming the command that adds them, where packages of an extra are missing."""
    missing = [name for name in PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise _lacks(extra, missing)


def of_missing_module(error: ModuleNotFoundError) -> MachineLacks | None:
    """The same for an import that failed; None where none of our extras has that module."""
    module = (error.name or "").partition(".")[0]
    name = _STOOD_IN_FOR.get(module, module)
    return next((_lacks(extra, [name]) for extra, packages in PACKAGES.items() if name in packages), None)


def command(extra: Extra) -> str:
    """What a user types to add an extra's packages to the Python that runs this.

    They are named one by one: an index may have another project called testbed.
    """
    try:
        lines = requires("testbed") or []
    except PackageNotFoundError:
        lines = []
    wanted = [line.partition(";")[0].strip() for line in lines if f'extra == "{extra}"' in line]
    if not wanted:  # the sources of a checkout as they are, or an older set-up of it
        return "make setup"
    return shlex.join([sys.executable, "-m", "pip", "install", *wanted])


def _lacks(extra: Extra, missing: list[str]) -> MachineLacks:
    return MachineLacks(f"{', '.join(missing)}: not installed (extra {extra}); add it with: {command(extra)}")
