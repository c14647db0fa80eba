"""What the results say of the machine a session ran on."""

from __future__ import annotations

import json
import os
from typing import Any

MACHINE_VARIABLE = "TESTBED_MACHINE"
"""Environment of a guest: what it is, as JSON (testbed.vm)."""


def this_machine() -> dict[str, Any]:
    """What the results say of this machine: a real clock, unless whoever booted it says otherwise."""
    said: dict[str, Any] = json.loads(os.environ.get(MACHINE_VARIABLE, "{}"))
    return {"clock": "real"} | said
