"""Containers: Mininet hosts with a PID namespace of their own, and the Mininet objects that describe their wires."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Sequence
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Host

from testbed.errors import MachineLacks, RunFailed

SHELL_DEADLINE_S = 60.0
"""For a container's shell to come up: it takes 50 ms, and on a machine that is busy otherwise a few seconds."""

_LOOK_S = 0.1
_PROMPT = chr(127)
"""Mininet's: how it knows that a shell has done what it was told."""

_PROMPTS = 2
"""As it comes up, and when it has done what it was told."""

_LOCAL_FLAGS = 3
"""Of a terminal, where termios has them."""

_NEW_PIDS = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "setsid", "--ctty"]
"""setsid: the shell, now a child of unshare, must lead a session to have the terminal that Ctrl-C arrives on."""


class BoundedHost(Host):  # type: ignore[misc]  # Mininet has no types
    """A Mininet host whose shell comes up in time, or that is an error: Mininet would read its terminal for ever."""

    new_pids: Sequence[str] = ()
    """What the shell is started by, inside its network namespace."""

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 - Mininet's name
        """Mininet's, with an end. Raises RunFailed when the shell ends, or does not come up in SHELL_DEADLINE_S."""
        del mnopts  # what Mininet's other kinds of host need
        self.launch_shell()
        self.come_up()

    def launch_shell(self) -> None:
        """Start the shell, which is to `come_up`, and tell it all that Mininet's has to hear before anything else."""
        bash = ["bash", "--norc", "--noediting", "-is", f"mininet:{self.name}"]
        command, environment = ["mnexec", "-dn", *self.new_pids, *bash], os.environ | {"PS1": _PROMPT}
        self.master, self.slave = pty.openpty()
        attributes = termios.tcgetattr(self.slave)
        attributes[_LOCAL_FLAGS] &= ~termios.ECHO
        termios.tcsetattr(self.slave, termios.TCSANOW, attributes)
        self.stdin = self.stdout = os.fdopen(self.master, "r")
        self.pollOut = select.poll()
        self.pollOut.register(self.stdout, select.POLLIN)  # not, as usual, also when it can be written
        terminal = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        # mnexec -c would close all numbers that a descriptor may have, one by one
        self.shell = self._popen(command, **terminal, close_fds=True, env=environment)
        self.pid = self.shell.pid
        self.outToNode[self.stdout.fileno()] = self.inToNode[self.stdin.fileno()] = self
        self.execed, self.lastCmd, self.lastPid, self.readbuf = False, None, None, ""
        self.waiting = True
        self._until_s = time.monotonic() + SHELL_DEADLINE_S
        self.write("unset HISTFILE; set +m\n")

    def come_up(self) -> None:
        """Wait until the shell has come up, and has done what it was told. Raises as `startShell`."""
        try:
            self._hear_prompts()
        except BaseException:
            self.shell.kill()
            self.cleanup()
            raise

    def _hear_prompts(self) -> None:
        said, prompts = "", 0
        while prompts < _PROMPTS:
            ended = self.ended()  # looked at first: what it said before its end is read below
            self.waiting = True
            heard = self.monitor(timeoutms=1e3 * _LOOK_S)
            prompts += heard.count(_PROMPT) + (not self.waiting)
            said += heard
            if prompts < _PROMPTS and (ended is not None or time.monotonic() > self._until_s):
                why = ended or f"its shell did not come up within {SHELL_DEADLINE_S:g} s"
                words = " ".join(said.split())
                raise RunFailed(f"container {self.name} cannot be started: {why}{f': {words}' if words else ''}")
        self.waiting = False

    def ended(self) -> str | None:
        """How the process that holds the container has ended, in words; None while it lives."""
        status = None if self.shell is None else self.shell.poll()
        if status is None:
            return None
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"its shell ended with exit code {status}"


class Container(BoundedHost):
    """A Mininet host with its own network, mount and PID namespace. `pid` is the process that holds them."""

    new_pids = _NEW_PIDS

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 - Mininet's name
        """Started only: who makes many has them `come_up` side by side."""
        del mnopts
        self.launch_shell()

    @classmethod
    def setup(cls) -> None:
        """Mininet's check that its tools are there. Raises MachineLacks (Mininet would exit)."""
        for tool, package in (
            ("mnexec", "mininet"),
            ("unshare", "util-linux"),
            ("nsenter", "util-linux"),
            ("setsid", "util-linux"),
            ("bash", "bash"),
            ("ping", "iputils-ping"),
        ):
            if shutil.which(tool) is None:
                raise MachineLacks(f"{tool} is missing; add it with: apt-get install {package}")

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
