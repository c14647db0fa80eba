"""The Linux capabilities that labs and guests need, each with what for; root in a container may lack some of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import MachineLacks


class Capability(NamedTuple):
    """One of capabilities(7)."""

    name: str
    """Without "CAP_", as container engines take it."""
    bit: int
    purpose: str


_SYS_ADMIN = Capability("SYS_ADMIN", 21, "makes namespaces, and mounts in them")
_NET_ADMIN = Capability("NET_ADMIN", 12, "makes interfaces, links and routes")
_NET_RAW = Capability("NET_RAW", 13, "sends the probes (ping) that measure links")
_SYS_CHROOT = Capability("SYS_CHROOT", 18, "enters the files of a container that runs already")
SYS_NICE = Capability("SYS_NICE", 23, "has workers and links go before other work")
"""A lab can do without; on a machine that does other work as well, its runs are hardly ever trusted then."""

READ_ALL = Capability("DAC_READ_SEARCH", 2, "lets workers read what is installed for its owner alone")
CHANGE_USER = (
    Capability("SETUID", 7, "has workers be a user of their own"),
    Capability("SETGID", 6, "has workers be of a group of their own"),
)
"""A lab can do without these as well: its workers then stay root, without capabilities."""

OF_GUESTS = (_SYS_ADMIN, _NET_ADMIN)
"""The virtual clock: what a guest's processes need is their own kernel's to give."""
OF_LABS = (*OF_GUESTS, _NET_RAW, _SYS_CHROOT)
"""The real clock."""


def lacking(needed: Sequence[Capability]) -> list[Capability]:
    """Those that this process has not in effect. Raises MachineLacks without /proc."""
    held = _held()
    return [capability for capability in needed if not held >> capability.bit & 1]


def container_remedy(lacking: Sequence[Capability]) -> str:
    """What root lacks, what for, and how a container gets it."""
    said = ", ".join(f"CAP_{capability.name}, which {capability.purpose}" for capability in lacking)
    options = " ".join(f"--cap-add {capability.name}" for capability in lacking)
    return f"root lacks {said}; a container gets it with: docker run {options} (or podman run)"


def _held() -> int:
    """Those in effect, as a mask."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if found is None:
        raise MachineLacks("/proc/self/status names no capabilities; mount /proc: mount -t proc proc /proc")
    return int(found[1], 16)
