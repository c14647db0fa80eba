"""Whether guests can be booted here, found by booting them: half a second in virtual time, two in real time."""

from __future__ import annotations

from collections.abc import Callable

from testbed.errors import MachineLacks, TestbedError
from testbed.lab import capabilities, privileges
from testbed.lab.doctor import NOT_TRIED, FeatureCheck
from testbed.vm import guest_machine, kernel
from testbed.vm.boot import run_assignments

_LIMIT_S = 60.0


def examine() -> list[FeatureCheck]:
    """One finding per kind of guest; a lab can do without both."""
    return [
        _try("user-mode-linux", guest_machine.packaged, guest_machine.PACKAGE_COMMAND),
        _try("time-travel", lambda: guest_machine.time_travel(kernel.require(), 1), kernel.BUILD_COMMAND),
    ]


def _try(name: str, choose: Callable[[], guest_machine.GuestMachine], remedy: str) -> FeatureCheck:
    try:
        privileges.require(capabilities.OF_GUESTS)
    except MachineLacks:
        return FeatureCheck(name, False, NOT_TRIED, "", needed=False, tried=False)
    try:
        chosen = choose()
        boot = run_assignments(chosen, [], training=False, limit_s=_LIMIT_S)
    except (TestbedError, OSError) as error:
        said = str(error)
        return FeatureCheck(name, False, said, remedy if remedy in said else "", needed=False)
    clock = "virtual" if chosen.virtual else "real"
    what = chosen.build.get("release") or chosen.build["source_version"]
    how = ", seccomp" if chosen.seccomp else ""
    return FeatureCheck(name, True, f"Linux {what} boots in {boot.wall_s:.1f} s ({clock} clock{how})", "", needed=False)
