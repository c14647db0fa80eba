"""Runs one function of a test file inside a sandbox, in a process of its own, and brings its result back as JSON.

In the test:  in_sandbox(measure, 10e-3, 1e9)     where `measure` is a top-level function of the test file.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MARK = "TESTBED_TEST_MARK"
"""In the environment of everything a test starts, so that other labs on the machine are never mistaken for it."""


class SandboxFailedError(AssertionError):
    """The function did not return; holds everything the process said."""


def in_sandbox(function: Callable[..., Any], *arguments: Any, timeout_s: float = 60) -> Any:
    read, write = os.pipe()
    with os.fdopen(read) as result:
        process = subprocess.Popen(
            command_for(function, arguments, write),
            pass_fds=[write],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.close(write)
        try:
            said, _ = process.communicate(timeout=timeout_s)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        answer = result.read()
    if process.returncode != 0 or not answer:
        raise SandboxFailedError(f"exit code {process.returncode}\n{said}")
    return json.loads(answer)


@contextmanager
def started(
    function: Callable[..., Any], *arguments: Any, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a function that a test interrupts or kills, and the mark of all its descendants."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark}
    command = command_for(function, arguments, -1)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process, mark
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def processes(mark: str) -> list[int]:
    """Pids of every process that carries the mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile
    return found


def command_for(function: Callable[..., Any], arguments: tuple[Any, ...], result_fd: int) -> list[str]:
    """The command line that runs a function in a sandbox; its result goes to `result_fd` unless that is -1."""
    file = inspect.getsourcefile(function)
    assert file is not None
    return [sys.executable, __file__, file, function.__name__, json.dumps(arguments), str(result_fd)]


def _main(file: str, name: str, arguments: str, result_fd: str) -> int:
    from testbed.lab.sandbox import run_in_sandbox

    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)

    def run() -> int:
        result = getattr(module, name)(*json.loads(arguments))
        if int(result_fd) >= 0:
            with os.fdopen(int(result_fd), "w") as stream:
                json.dump(result, stream)
            return 0
        return int(result or 0)

    return run_in_sandbox(run, interactive=getattr(getattr(module, name), "interactive", False))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
