"""The first program of a guest that no sandbox of this machine's holds: lays out in there what one would lay out here.

Where nobody may make namespaces, the guest's kernel is a plain process, whose root is all of this machine's files,
read-only. Its process 1 hides homes and secrets, makes the root that every guest has (guest_files.py), moves there, and
becomes testbed.vm.guest.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from testbed.lab import namespaces as ns
from testbed.lab.hidden_files import hide_secrets, libraries_of_python
from testbed.vm.guest_files import PYTHON, SOURCE, lay_out

HOME, COPY, SHOWN, LOG = "TESTBED_HOME", "TESTBED_COPY", "TESTBED_SHOWN", "TESTBED_LOG"
"""In its environment: the user's home, the frozen package, directories that are shown (joined by colons), and a file of
the job's for what goes wrong before the guest has its own."""

_ROOT = Path("/run/root")
_POWER_OFF = 0x4321FEDC


def main() -> NoReturn:
    """Never returns: a process 1 that ends is a kernel panic."""
    try:
        ns.mount("proc", "/proc", "proc")
        ns.mount("tmpfs", "/run", "tmpfs")
        _say_to(os.environ[LOG])
        _lay_out()
        kept = {name: value for name, value in os.environ.items() if name not in (HOME, COPY, SHOWN, LOG)}
        os.execve(PYTHON, [PYTHON, "-m", "testbed.vm.guest"], kept | {"PYTHONPATH": SOURCE, "HOME": "/"})
    except BaseException:  # noqa: BLE001 - the last chance to say what went wrong; the host prints it
        traceback.print_exc()
    sys.stderr.flush()
    os.sync()
    ctypes.CDLL(None).reboot(_POWER_OFF)
    os._exit(1)


def _say_to(log: str) -> None:
    """Have what is said go to a file of the host's."""
    there = Path("/run/log")
    there.mkdir()
    ns.mount("none", str(there), "hostfs", ns.MS_SYNCHRONOUS, str(Path(log).parent))
    number = os.open(there / Path(log).name, os.O_WRONLY | os.O_APPEND)
    os.dup2(number, 1)
    os.dup2(number, 2)


def _lay_out() -> None:
    os.environ["HOME"] = os.environ[HOME]
    hide_secrets([*libraries_of_python(), *map(Path, filter(None, os.environ[SHOWN].split(":")))])
    lay_out(_ROOT, Path(os.environ[COPY]))
    os.chdir(_ROOT)
    ns.mount(".", "/", "none", ns.MS_MOVE)
    os.chroot(".")
    os.chdir("/")


if __name__ == "__main__":
    main()
