"""Which means of steadying a lab this machine allows, what it lacks for the others, and whether its processors halt."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path

from testbed.lab import namespaces as ns
from testbed.lab.disturbance import sleep_lateness
from testbed.lab.host_settings import Host, HostPriority, real_time_refused
from testbed.lab.probes import Spread
from testbed.units import show_time

_CAP_SYS_NICE = 23
_SET_TIMER_SLACK = 29
_HALTING_S = 20e-6
"""A processor halts if spinners make sleeps end sooner by as much, and by half: waking one up takes that at least."""


def real_time_lacks() -> str | None:
    """What the machine lacks for workers under SCHED_RR; None when it allows them."""
    if (refused := real_time_refused()) is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if _has_sys_nice() or limit > 0:
        return f"{refused}: this process has the right, so its cgroup has no share of real-time (cpu.rt_runtime_us)"
    nice = "CAP_SYS_NICE" if ns.in_first_user_namespace() else "CAP_SYS_NICE outside of its user namespace"
    return f"{refused}: neither {nice} nor a limit (RLIMIT_RTPRIO) above 0"


def halting() -> tuple[Spread, Spread | None]:
    """How late sleeps end on the machine as it is, and with spinners where it allows them: a third of a second."""
    host = Host(HostPriority.on)
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_TIMER_SLACK, 1)  # or the 50 us by which timers may be put together would hide what halting costs
    try:
        alone = sleep_lateness()
        host.steady()
        return alone, sleep_lateness() if host.spinners else None
    finally:
        host.close()
        libc.prctl(_SET_TIMER_SLACK, 0)  # the default again


def shown(alone: Spread, kept_awake: Spread | None) -> str:
    """What two measurements of `halting` say."""
    said = f"sleeps of 1 ms end {_late(alone)} late"
    if kept_awake is None:
        return f"{said}; not known with spinners"
    saved = alone.median - kept_awake.median
    halts = saved > _HALTING_S and kept_awake.median < alone.median / 2
    verdict = (
        "processors halt when idle, spinners help"
        if halts
        else "processors do not halt (or other work keeps them awake)"
    )
    return f"{said}, with spinners {_late(kept_awake)}: {verdict}"


def _late(found: Spread) -> str:
    return f"{show_time(found.median)} (99th percentile {show_time(found.p99)})"


def _has_sys_nice() -> bool:
    """In the machine's first user namespace, the only one in which this capability counts."""
    with contextlib.suppress(OSError):
        if not ns.in_first_user_namespace():
            return False
        for line in Path(f"/proc/{os.getpid()}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_NICE & 1)
    return False
