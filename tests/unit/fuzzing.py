"""Damaged inputs given to the command line, and what it must never do with them."""

from __future__ import annotations

import io
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest.mock import patch

import typer.main
from fuzzed_inputs import Case

from testbed.cli import main

ROOT = Path(__file__).parents[2]
MOST_CPU_S = 5.0
MOST_BYTES = 500_000_000
MOST_WAIT_S = 200.0
"""On the wall clock: what waits without computing. A busy machine must not reach it."""

_LINE = re.compile(r"error: (?P<where>.+?): (?P<field>.+?): got (?P<value>.+), expected (?P<expected>.+)")
_BLOCK, _MORE = re.compile(r"error: (?P<where>.+): \d+ faults"), re.compile(r"  and \d+ more")
_LEAKED = re.compile(
    r"[Ii]nput should|[Vv]alue error|pydantic|valid (?:integer|number|string|dictionary|list)\b|type=|Traceback"
    r"|ReaderError|ScannerError|function-|\[key\]|Field required|<class|object at 0x"
)
_MOST_CHARACTERS = 1700
_BAD_INPUT = 2


class Outcome(NamedTuple):
    """What became of a case."""

    case: Case
    code: int
    said: str
    cpu_s: float
    grown_bytes: int
    """By how much the most memory that the process ever had grew."""

    def fault(self) -> str:
        """What is wrong with it, in a line; "" if nothing."""
        if self.cpu_s > MOST_CPU_S:
            return f"hang: {self.cpu_s:.1f} s"
        if self.grown_bytes > MOST_BYTES:
            return f"memory: {self.grown_bytes / 1e6:.0f} MB"
        if "Traceback" in self.said:
            return "traceback: " + self.said.strip().splitlines()[-1]
        if self.code not in (0, 1, 2, 3, 4, 5):
            return f"exit code {self.code}"
        return self._fault_of_refusal() if self.code == _BAD_INPUT else ""

    def _fault_of_refusal(self) -> str:
        lines = self.said.strip().splitlines()
        if block := _BLOCK.fullmatch(lines[0] if lines else ""):  # several faults of one file, a line for each
            lines = [f"error: {block['where']}: {line.strip()}" for line in lines[1:] if not _MORE.fullmatch(line)]
        elif len(lines) != 1:
            return f"{len(lines)} lines: {self.said[:200]}"
        matches = [_LINE.fullmatch(line) for line in lines]
        for line, match in zip(lines, matches, strict=True):
            if match is None:
                return f"not file, field, value, expected: {line[:300]}"
            if _LEAKED.search(match["where"] + match["field"] + match["expected"]):
                return f"leaked wording: {line[:300]}"
            if len(line) > _MOST_CHARACTERS:
                return f"{len(line)} characters: {line[:100]}"
        # a schedule that was generated stands in no file
        misfit = any(match["where"].startswith("schedule ") for match in matches if match is not None)
        if self.case.about and not misfit and not any(self.case.about in line for line in lines):
            return f"{self.case.about} is not named: {lines[0][:300]}"
        return ""


_ELSEWHERE = Path(tempfile.gettempdir())
"""Where relative names lead to nothing that somebody needs."""

_command = lru_cache(maxsize=1)(typer.main.get_command)


class _TooLong(BaseException):
    """Raised inside a case that does not end."""


@contextmanager
def _deadline() -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _TooLong

    limits = (
        (signal.ITIMER_REAL, signal.SIGALRM, MOST_WAIT_S),
        (signal.ITIMER_PROF, signal.SIGPROF, 2 * MOST_CPU_S),
    )
    before = [signal.signal(sent, stop) for _, sent, _ in limits]
    for timer, _, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (timer, sent, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(sent, handler)


def run_here(case: Case) -> Outcome:
    """Run a case through the command line's entry point, in this process."""
    out, errors = io.StringIO(), io.StringIO()
    began, most, code = time.process_time(), _peak_bytes(), 0
    built = patch("typer.main.get_command", _command)  # half of a case's time, the same every time
    with patch.object(sys, "argv", ["testbed", *case.arguments]), redirect_stdout(out), redirect_stderr(errors), built:
        try:
            with _deadline(), chdir(_ELSEWHERE):
                main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except _TooLong:
            errors.write("Traceback: no end")
        except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
            code = 1
            traceback.print_exc(file=errors)
    return Outcome(case, code, errors.getvalue(), time.process_time() - began, _peak_bytes() - most)


def run_apart(case: Case) -> Outcome:
    """Run a case as a user does, in a process of its own with no more memory and time than it may have."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2 * MOST_BYTES, 2 * MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    command = [sys.executable, "-m", "testbed", *case.arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="backslashreplace", preexec_fn=limits,
    )  # fmt: skip
    try:
        _, said = process.communicate(timeout=MOST_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
        said += "Traceback: no end"
    return Outcome(case, process.returncode, said, 0.0, 0)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
