"""What a session makes or imports once it is at work: done beforehand in the process that sessions are forked from."""

from __future__ import annotations

import importlib

from testbed.plan.plan import Plan
from testbed.results import provenance, run_tables
from testbed.schedule.registry import FAMILIES
from testbed.spec import document
from testbed.spec.choice import ScheduleChoice
from testbed.spec.model import MODELS

LATER = ("numpy.ma", "pyarrow.compute", "pyarrow.dataset")
"""Modules that NumPy and pyarrow import when they are first asked for something."""


def prepare() -> None:
    """Do it; a second time takes nothing."""
    run_tables.arrays_without_pandas()  # before pyarrow.dataset, with which pandas would come
    for module in LATER:
        importlib.import_module(module)
    provenance.packages()
    for registry in (FAMILIES, MODELS):
        for name in registry.built_in:
            registry.find(name)
    document.adapter(Plan)
    ScheduleChoice.model_rebuild()
