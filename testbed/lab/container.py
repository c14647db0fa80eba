"""Containers: Mininet hosts with a PID namespace of their own, and the Mininet objects that describe their wires."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Host

from testbed.errors import MachineLacks, RunFailed

_NEW_PIDS = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "setsid", "--ctty"]
"""setsid: the shell, now a child of unshare, must lead a session to have the terminal that Ctrl-C arrives on."""


class Container(Host):  # type: ignore[misc]  # Mininet has no types
    """A Mininet host with its own network, mount and PID namespace. `pid` is the process that holds them."""

    @classmethod
    def setup(cls) -> None:
        """Mininet's check that its tools are there. Raises MachineLacks (Mininet would exit)."""
        for tool, package in (
            ("mnexec", "mininet"),
            ("unshare", "util-linux"),
            ("nsenter", "util-linux"),
            ("setsid", "util-linux"),
        ):
            if shutil.which(tool) is None:
                raise MachineLacks(f"{tool} is missing; add it with: apt-get install {package}")

    def _popen(self, cmd: list[str], **params: Any) -> subprocess.Popen[bytes]:
        starts_shell = cmd[:2] == ["mnexec", "-cdn"]
        popen: subprocess.Popen[bytes] = super()._popen(
            cmd[:2] + _NEW_PIDS + cmd[2:] if starts_shell else cmd, **params
        )
        return popen

    def entry(self) -> list[str]:
        """The command prefix that runs a command inside; mnexec -a would leave the PID namespace out."""
        namespaces = ["--net", "--mount", f"--pid=/proc/{self.pid}/ns/pid_for_children"]
        return ["nsenter", "--target", str(self.pid), *namespaces, "--"]

    def popen(self, *args: Any, **params: Any) -> subprocess.Popen[bytes]:
        """Mininet's popen, in the container's PID namespace as well."""
        params.setdefault("mncmd", self.entry())
        popen: subprocess.Popen[bytes] = super().popen(*args, **params)
        return popen

    def run(self, command: Sequence[str], *, timeout_s: float = 30.0) -> str:
        """Run a command in the container and return its output. Raises RunFailed with the whole output."""
        return run([*self.entry(), *command], where=self.name, timeout_s=timeout_s)


class Port(Intf):  # type: ignore[misc]
    """An interface that the lab has configured already; Mininet only has to know it."""

    def config(self, **_params: object) -> dict[str, object]:
        """Nothing: Mininet would run ifconfig in a shell for each setting."""
        return {}

    def updateIP(self) -> str | None:  # noqa: N802 - Mininet's name
        """The address, without asking ifconfig."""
        return self.ip  # type: ignore[no-any-return]


class Wire(Link):  # type: ignore[misc]
    """A connection whose two interfaces the lab has made already."""

    @classmethod
    def makeIntfPair(cls, *_args: object, **_params: object) -> None:  # noqa: N802 - Mininet's name
        """Nothing: the interfaces exist."""


def run(command: Sequence[str], *, where: str = "", timeout_s: float = 30.0) -> str:
    """Run a command (never a shell string), return its standard output. Raises RunFailed with everything it said."""
    shown = f"{where}: {' '.join(command)}" if where else " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{shown}: no end after {timeout_s:g} s\n{error.stdout!r}{error.stderr!r}") from error
    except FileNotFoundError as error:
        raise MachineLacks(f"{shown}: {error}") from error
    if done.returncode != 0:
        raise RunFailed(f"{shown}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
