"""What runs in a sandbox for test_building.py."""

from __future__ import annotations

import os

from networks import two_datacenters

from testbed.errors import RunFailed


def wait_for_ever() -> str:
    from testbed.lab import container
    from testbed.lab.lab import Lab

    container.SHELL_DEADLINE_S = 0.5
    os.environ["PATH"] = f"{os.environ['SILENT']}:{os.environ['PATH']}"
    try:
        with Lab(two_datacenters(), shaper="relay"):
            return "built"
    except RunFailed as error:
        return str(error)
