"""Whether guests can be booted here, found by booting them: half a second in virtual time, two in real time."""

from __future__ import annotations

from collections.abc import Callable

from testbed.errors import TestbedError
from testbed.lab.doctor import Finding
from testbed.vm import kernel, machine
from testbed.vm.boot import run_assignments

_LIMIT_S = 60.0


def examine() -> list[Finding]:
    """One finding per kind of guest; a lab can do without both."""
    return [
        _try("user-mode-linux", machine.packaged, machine.PACKAGE_COMMAND),
        _try("time-travel", lambda: machine.time_travel(kernel.require(), 1), kernel.BUILD_COMMAND),
    ]


def _try(name: str, choose: Callable[[], machine.Machine], remedy: str) -> Finding:
    try:
        chosen = choose()
        boot = run_assignments(chosen, [], training=False, limit_s=_LIMIT_S)
    except (TestbedError, OSError) as error:
        return Finding(name, False, str(error), remedy, needed=False)
    clock = "virtual" if chosen.virtual else "real"
    what = chosen.build.get("release") or chosen.build["source_version"]
    how = ", seccomp" if chosen.seccomp else ""
    return Finding(name, True, f"Linux {what} boots in {boot.wall_s:.1f} s ({clock} clock{how})", "", needed=False)
