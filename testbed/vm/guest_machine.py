"""The two machines a guest can be: Debian's packaged kernel in real time, our time-travel kernel in virtual time."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import MachineLacks
from testbed.vm.kernel import Kernel
from testbed.vm.kernel_changes import UNWRITTEN, patches_of

PACKAGE_COMMAND = "apt-get install --no-install-recommends user-mode-linux"
_MODULES = Path("/usr/lib/uml/modules")
_NEEDED_MODULES = ("veth", "sch_netem", "tun", "sch_htb", "sch_ingress", "cls_matchall", "act_police")
"""In this order: none of them needs another module."""


@dataclass(frozen=True)
class GuestMachine:
    """What to boot."""

    kernel: Path
    virtual: bool
    """Whether its time moves only when every process is idle."""
    seed: int | None
    """Where the kernel's random numbers come from; None: from this machine."""
    modules: tuple[str, ...]
    """Kernel modules to load, in order."""
    build: dict[str, str]
    """What the kernel is, for the manifest."""
    seccomp: bool = False
    """Whether the kernel catches its guest's system calls by seccomp; by ptrace otherwise, which is slower."""
    leaves_unwritten: bool = False
    """Whether its kernel copies nothing that nobody has written, so that what pads messages takes no memory."""

    def identity(self) -> dict[str, Any]:
        """What the results of a run say of the machine."""
        vm: dict[str, Any] = {"kernel": self.build}
        if self.seed is not None:
            vm["kernel_seed"] = self.seed
        if self.virtual:
            vm["seccomp"] = self.seccomp
        return {"clock": "virtual" if self.virtual else "real", "vm": vm}


def packaged() -> GuestMachine:
    """Debian's User-Mode Linux. Raises MachineLacks naming the command that installs it."""
    program = shutil.which("linux.uml")
    if program is None:
        raise MachineLacks(f"Debian's User-Mode Linux is not installed; run: {PACKAGE_COMMAND}")
    versions = sorted(path for path in _MODULES.glob("*") if path.is_dir())
    if not versions:
        raise MachineLacks(f"User-Mode Linux has no modules in {_MODULES}; run: {PACKAGE_COMMAND} --reinstall")
    if cpu_has_amx(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")):
        raise MachineLacks(
            f"User-Mode Linux {versions[-1].name} does not boot on a CPU with AMX, which has more registers than it "
            "knows; use another machine, or --clock virtual"
        )
    modules = []
    for name in _NEEDED_MODULES:
        found = list(versions[-1].rglob(f"{name}.ko"))
        if not found:
            raise MachineLacks(
                f"User-Mode Linux {versions[-1].name} has no module {name}; it needs Debian 12's package"
            )
        modules.append(str(found[0]))
    build = {"package": "user-mode-linux", "release": versions[-1].name}
    return GuestMachine(Path(program), False, None, tuple(modules), build)


def cpu_has_amx(cpuinfo: str) -> bool:
    """Whether /proc/cpuinfo names AMX: User-Mode Linux 6.1 and 6.12 keep 2,696 bytes of registers, AMX has 11,008."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return flags is not None and "amx_tile" in flags[1].split()


def time_travel(kernel: Kernel, seed: int) -> GuestMachine:
    """Our kernel, its random numbers drawn from `seed`."""
    unwritten = UNWRITTEN in patches_of(kernel.source_version)
    return GuestMachine(kernel.path, True, seed, (), kernel.as_json(), kernel.seccomp, unwritten)


def memory_of_machine() -> int:
    """What this machine has, in bytes: no guest can use more."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
