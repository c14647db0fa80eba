"""What a run ran on: the part of its manifest that is about machine and software."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
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
        "packages": dict(sorted(_packages())),
    }


def _packages() -> Iterator[tuple[str, str]]:
    """Names and versions of those that are installed."""
    for distribution in distributions():
        said = distribution.metadata  # parsed anew at every look, hundreds of lines each
        yield said["Name"], said["Version"]
