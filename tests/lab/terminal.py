"""A process on a pseudo-terminal, for tests of what Ctrl-C and a keyboard do."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from in_sandbox import command_for


class Terminal:
    """A process on a pseudo-terminal of its own, as a user's shell would start it in the foreground."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            command = command_for(function, (), -1)
            os.execv(command[0], command)

    def expect(self, text: str) -> None:
        """Wait for `text`; what came after it is kept for the next call."""
        deadline = time.monotonic() + 20
        while text not in self._seen and time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.2)[0]:
                self._seen += os.read(self.fd, 1024).decode(errors="replace")
        before, found, self._seen = self._seen.partition(text)
        assert found, before

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def exit_code(self) -> int:
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        pytest.fail("did not end")
