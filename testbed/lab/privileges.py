"""By which right a sandbox can be made here: as root, or in a user namespace of the user's own; found by trying."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache

from testbed.errors import MachineLacks, in_words
from testbed.lab import capabilities
from testbed.lab import namespaces as ns
from testbed.lab.capabilities import Capability

_NOTHING = "-"


class Privilege(StrEnum):
    """What lets a process make namespaces."""

    ROOT = "root"
    """Capabilities that it has."""
    USER_NAMESPACE = "user namespace"
    """It may make a user namespace, and has all capabilities there."""


def require(needed: Sequence[Capability]) -> Privilege:
    """By which right this process can do what takes the capabilities that are `needed`.

    A lab of root's that lacks some of them would be a worse one in a user namespace, so they are named; a guest is the
    same. Raises MachineLacks, naming what would help.
    """
    lacking = capabilities.lacking(needed)
    if not lacking:
        return Privilege.ROOT
    root = os.geteuid() == 0
    if root and needed == capabilities.OF_LABS:
        raise MachineLacks(capabilities.container_remedy(lacking))
    refused = user_namespace_refused()
    if refused is None:
        return Privilege.USER_NAMESPACE
    if root:
        raise MachineLacks(f"{capabilities.container_remedy(lacking)}; {_AS_USER}")
    raise MachineLacks(f"user {os.geteuid()} cannot make the lab's namespaces: {refused}; {_REMEDY}")


_REMEDY = (
    "let users make user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, "
    "user.max_user_namespaces=1000; in a container --security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined), "
    "or run as root"
)

_AS_USER = "the virtual clock wants none where a user may make user namespaces: docker run --user 1000"
"""Root without CAP_SETFCAP may not be root in one: Linux 5.12."""


@cache
def user_namespace_refused() -> str | None:
    """Why this process may not make a user namespace with a network and mounts in it, by trying; None: it may."""
    return in_user_namespace(lambda: None)


def in_user_namespace(find: Callable[[], str | None]) -> str | None:
    """What `find` says in a process with a user namespace, a network and mounts of its own, or why there is none."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = ""
        try:
            ns.enter_user_namespace(
                ns.CLONE_NEWNET | ns.CLONE_NEWNS | ns.CLONE_NEWIPC | ns.CLONE_NEWUTS | ns.CLONE_NEWPID
            )
            ns.mount("none", "/", "none", ns.MS_REC | ns.MS_PRIVATE)
            said = find() or _NOTHING
        except OSError as error:
            said = in_words(error)
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as stream:
        found = stream.read() or "the attempt died"
    os.waitpid(pid, 0)
    return None if found == _NOTHING else found
