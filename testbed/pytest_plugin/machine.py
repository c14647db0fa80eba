"""Why a machine cannot build labs, or run plans on the virtual clock; as a program, what a lab lacks as a JSON text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from testbed.errors import MachineLacks, RunFailed
from testbed.lab import capabilities, privileges

_DEADLINE_S = 120.0


def lab_lacks() -> str | None:
    """Why no lab can be built here, tried in a process of its own; None: one can. Raises RunFailed."""
    if (lack := _privilege_lacks(capabilities.OF_LABS)) is not None:
        return lack
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
    )
    if done.returncode:
        raise RunFailed(f"what this machine can do was not found: {done.stderr.strip()}")
    lacks: str | None = json.loads(done.stdout)
    return lacks


def virtual_clock_lacks() -> str | None:
    """Why the virtual clock cannot be used here; None: it can. Raises BadInput for a TESTBED_KERNEL that names none."""
    if (lack := _privilege_lacks(capabilities.OF_GUESTS)) is not None:
        return lack
    from testbed.vm import kernel

    try:
        kernel.require()
    except MachineLacks as lack:
        return str(lack)
    return None


def _privilege_lacks(needed: Sequence[capabilities.Capability]) -> str | None:
    try:
        privileges.require(needed)
    except MachineLacks as lack:
        return str(lack)
    return None


def _tried() -> str | None:
    from testbed.lab.doctor import examine

    wrong = [finding for finding in examine() if finding.needed and not finding.ok]
    return "; ".join(f"{one.name}: {one.detail} ({one.remedy})" for one in wrong) or None


if __name__ == "__main__":
    print(json.dumps(_tried()))
