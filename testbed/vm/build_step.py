"""Runs a program of a kernel's build to its end: what it prints is followed, it ends with us, and it has a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testbed.errors import RunFailed
from testbed.lab import namespaces as ns
from testbed.units import show_time

_SHOWN_LINES = 25


def run_program(
    command: Sequence[str],
    directory: Path,
    *,
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
    follow: Callable[[str], None] | None = None,
) -> list[str]:
    """Run it in `directory`, `follow` gets every line of its output; returns the last lines of it.

    Raises RunFailed with these lines when it fails, and when it is killed, at the latest after `deadline_s`;
    FileNotFoundError when there is no such program.
    """
    last: deque[str] = deque(maxlen=_SHOWN_LINES)
    with subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, "LC_ALL": "C", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=lambda: ns.die_with_parent(signal.SIGTERM),  # at which make ends its own children
    ) as process:
        late = threading.Timer(deadline_s, lambda: os.killpg(process.pid, signal.SIGKILL))
        late.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                last.append(line.rstrip())
                if follow is not None:
                    follow(last[-1])
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # make's children as well
            raise
        finally:
            late.cancel()
    if code == -signal.SIGKILL:
        raise RunFailed(f"{command[0]} was killed, at the latest after {show_time(deadline_s)}")
    if code != 0:
        raise RunFailed("\n".join([f"{' '.join(command)}: exit code {code}:", *last]))
    return list(last)
