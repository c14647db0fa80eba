"""What a run ran on: the part of its manifest that is about machine and software."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions
from typing import Any

from testbed import source


def environment() -> dict[str, Any]:
    """What the run ran on, for the manifest: nothing in it names a directory of this machine."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["testbed", *sys.argv[1:]],
        **source.identity(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": packages(),
    }


@cache
def packages() -> dict[str, str]:
    """Names and versions of those that are installed."""
    said = (distribution.metadata for distribution in distributions())  # parsed anew at every look
    return dict(sorted((one["Name"], one["Version"]) for one in said))
