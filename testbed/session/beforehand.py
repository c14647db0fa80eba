"""What a session makes or imports once it is at work: done beforehand in the process that sessions are forked from."""

from __future__ import annotations

import importlib

from testbed.planning import file
from testbed.results import provenance, run_tables

LATER = ("numpy.ma", "pyarrow.compute", "pyarrow.dataset")
"""Modules that NumPy and pyarrow import when they are first asked for something."""


def prepare() -> None:
    """Do it; a second time takes nothing."""
    for module in LATER:
        importlib.import_module(module)
    run_tables.arrays_without_pandas()
    provenance.packages()
    file.adapter()
