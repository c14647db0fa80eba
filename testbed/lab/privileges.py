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
    PLAIN_PROCESS = "plain process"
    """It may make no namespaces: a guest's kernel can be a process of its own all the same."""


def require(needed: Sequence[Capability]) -> Privilege:
    """By which right this process can do what takes the capabilities that are `needed`.

    A lab of root's that lacks some of them would be a worse one in a user namespace, so they are named; a guest is the
    same, and needs no namespaces in the end. Root of a user namespace with the network or the processes of outside is a
    user, who makes another one. Raises MachineLacks, naming what would help.
    """
    lacking = capabilities.lacking(needed)
    if not lacking and ns.may_come_back():
        return Privilege.ROOT
    if needed == capabilities.OF_GUESTS:
        return Privilege.USER_NAMESPACE if user_namespace_refused() is None else Privilege.PLAIN_PROCESS
    if lacking and os.geteuid() == 0:
        raise MachineLacks(capabilities.container_remedy(lacking))
    if user_namespace_refused() is None:
        return Privilege.USER_NAMESPACE
    raise MachineLacks(no_namespaces())


def no_namespaces() -> str:
    """Why this process can make no namespaces, and what would help."""
    return f"user {os.geteuid()} cannot make the lab's namespaces: {user_namespace_refused()}; {_REMEDY}"


_REMEDY = (
    "let users make user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, "
    "user.max_user_namespaces=1000; in a container --security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined), "
    "or run as root"
)


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
            # the first process of the PID namespace: none can be started in it once that has ended
            if (first := os.fork()) != 0:
                os.waitpid(first, 0)
                os._exit(0)
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
