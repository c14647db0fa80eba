"""A process on a pseudo-terminal, for tests of what Ctrl-C and a keyboard do."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from in_sandbox import command_for

DEADLINE_S = 60


class Terminal:
    """A process on a pseudo-terminal of its own, as a user's shell would start it in the foreground."""

    def __init__(self, what: Callable[..., Any] | Sequence[str], directory: Path | None = None) -> None:
        """`what` is a function, for a sandbox, or a command, started in `directory`."""
        self._seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            command = command_for(what, (), -1) if callable(what) else list(what)
            os.chdir(directory or Path.cwd())
            os.execv(command[0], command)

    def expect(self, text: str) -> None:
        """Wait for `text`; what came after it is kept for the next call."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self._seen and time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.2)[0]:
                self._seen += os.read(self.fd, 1024).decode(errors="replace")
        before, found, self._seen = self._seen.partition(text)
        assert found, before

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def rest(self) -> str:
        """All that comes until the process closes its terminal."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self._seen += os.read(self.fd, 1024).decode(errors="replace")
                except OSError:  # what a terminal says whose last process has gone
                    return self._seen
        pytest.fail(f"did not end:\n{self._seen}")

    def exit_code(self) -> int:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        pytest.fail("did not end")
