"""Commands as somebody who is not root, or as root of a container: the beginning of their command lines."""

from __future__ import annotations

import sys
from pathlib import Path

UID = 12345

DOCKER_CAPABILITIES = (
    *("chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap"),
    *("net_bind_service", "sys_chroot", "kill", "audit_write"),
)
"""What Docker and podman leave to root of a container unless they are told otherwise."""

_SHOWN = """
exec 3<"$1" 4<"$2"
for hidden in $3; do mount -t tmpfs -o mode=755 own "$hidden"; done
mkdir -p "$1" "$2"
mount -c --bind /proc/self/fd/3 "$1"
mount -c --bind /proc/self/fd/4 "$2"
exec 3<&- 4<&-
shift 3
exec "$@"
"""
"""Python and the kernel of the virtual clock may lie where only root may look: there they alone are to be seen."""


def _seen(kernels: Path) -> list[str]:
    python = Path(sys.base_prefix)
    hidden = {
        str(path)
        for place in (python, kernels)
        for path in list(place.parents)[::-1]
        if not path.stat().st_mode & 0o001
    }
    tops = sorted(path for path in hidden if not any(path.startswith(f"{other}/") for other in hidden))
    own = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _SHOWN, "sh"]
    return [*own, str(python), str(kernels), " ".join(tops)]


def as_user(home: Path, kernels: Path, *more: str) -> list[str]:
    """A user without capabilities, groups or a way to any; `kernels` is the cache of built kernels.

    `more` are further options of setpriv.
    """
    dropped = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--bounding-set=-all", "--no-new-privs", *more]
    variables = [f"HOME={home}", f"XDG_CACHE_HOME={kernels.parents[1]}"]
    return [*_seen(kernels), "setpriv", *dropped, "env", *variables]


def as_container() -> list[str]:
    """Root with the capabilities that a container has by default."""
    kept = "".join(f",+{name}" for name in DOCKER_CAPABILITIES)
    return ["setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all"]


def without_user_namespaces(*more: str) -> list[str]:
    """A seccomp filter that refuses them, as container engines have one."""
    return [sys.executable, str(Path(__file__).with_name("no_user_namespaces.py")), *more]
