"""Whether a lab on the real clock can be built here: `python -m testbed.lab.real_clock` prints why not, exit code 3."""

from __future__ import annotations

import os
import sys

from testbed.errors import ExitCode, MachineLacks
from testbed.lab import capabilities, privileges
from testbed.lab.privileges import Privilege
from testbed.lab.shaping import netem
from testbed.lab.shaping.relay import open_tap


def lacks() -> str | None:
    """What this process lacks for shaped links on the real clock, found by trying; None: nothing."""
    try:
        if privileges.require(capabilities.OF_LABS) is Privilege.ROOT:
            return None  # what is missing then, a run says
    except MachineLacks as lack:
        return str(lack)
    return privileges.in_user_namespace(_no_shaper)


def _no_shaper() -> str | None:
    """In a network of one's own: why neither shaper of links works there."""
    refused = netem.available()
    if refused is None:
        return None
    try:
        os.close(open_tap("probe0"))
    except (OSError, MachineLacks) as error:
        return f"a user can shape no links here: no netem ({refused}), and {error}"
    return None


if __name__ == "__main__":
    why = lacks()
    print(why or "", end="")
    sys.exit(ExitCode.OK if why is None else ExitCode.MACHINE_LACKS)
